"""The exchanges by their names in configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.sparse import MAIN, DistCSR
from hpcgnn.spmd import collective
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.cover import Cover, all_columns, all_rows, minimum
from hpcgnn.spmm.exchange.broadcast import BroadcastExchange
from hpcgnn.spmm.exchange.direct import DirectExchange, received_directly
from hpcgnn.spmm.exchange.ghosts import Channel, GhostExchange, GhostFactory
from hpcgnn.spmm.exchange.hosts import HostExchange, received_by_hosts
from hpcgnn.spmm.exchange.peers import Ghosts, Peers, Received
from hpcgnn.spmm.gpu.hosts import DeviceHostExchange
from hpcgnn.spmm.remote import Exchange
from hpcgnn.spmm.schedule import RESIDENT, Schedule
from hpcgnn.spmm.wire import make_wire
from hpcgnn.support import NOTHING, Reasons, Trait, load_own
from hpcgnn.trace import TraceRecorder


@collective
def _through_hosts(channel: Channel, ghosts: Ghosts) -> GhostExchange:
    """Return the ghost exchange of ranks that share the memory of their host."""
    if channel.carrier.memory is MAIN:
        return HostExchange(channel, ghosts)
    on_host = replace(channel, carrier=Carrier(channel.grid))
    return DeviceHostExchange(HostExchange(on_host, ghosts), channel.carrier)


@dataclass(frozen=True)
class Method:
    """A way to exchange the rows and sums of products.

    `cover` divides entries into fetched and pushed ones, and `make_ghosts` makes the exchange that
    moves the rows of either. `received` tells planners which rows messages bring; None: every rank
    gets whole block rows. `needs` and `lacks` concern other features of a run, see `Trait`.
    """

    cover: Cover
    make_ghosts: GhostFactory
    received: Received | None
    needs: frozenset[Trait] = frozenset({Trait.PUSHES})
    lacks: Reasons = field(default_factory=lambda: NOTHING)


_OF_HOSTS: Reasons = {
    Trait.PLANNED_FROM_DEGREES: "its rows are counted in the graph only",
    Trait.PLANNED_FROM_MESH: "its rows depend on where hosts begin",
}

METHODS: Mapping[str, Method] = {
    "oblivious": Method(
        all_columns,
        BroadcastExchange,
        None,
        needs=frozenset(),
        lacks={
            Trait.PLANNED_FROM_MESH: "it sends all rows to all ranks, and the small grid that is "
            "counted has few",
        },
    ),
    "aware": Method(all_columns, DirectExchange, received_directly, needs=frozenset()),
    "push": Method(all_rows, DirectExchange, received_directly),
    "joint": Method(minimum, DirectExchange, received_directly),
    "hierarchical": Method(
        all_columns, _through_hosts, received_by_hosts, needs=frozenset(), lacks=_OF_HOSTS
    ),
    "hierarchical_joint": Method(
        minimum,
        _through_hosts,
        received_by_hosts,
        needs=frozenset({Trait.PUSHES, Trait.ADDED_PUSHES}),
        lacks=_OF_HOSTS,
    ),
}
"""The exchanges by their names."""

EXCHANGES = tuple(METHODS)
"""Names of exchanges."""

AUTO = "auto"
"""Name that stands for the exchange with the lowest cost, see `hpcgnn.graph.choose_exchange`."""


def find_method(name: str) -> Method:
    """Return the exchange `name`: one of `EXCHANGES`, or ``package.module:NAME`` for a `Method`.

    Raises InputError if there is none or its module does not load (`load_own`).
    """
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise InputError(f"exchange {name!r} is unknown; choose one of {', '.join(EXCHANGES)}")
    return load_own(
        "exchange.method", name, lambda value: isinstance(value, Method), "hpcgnn.spmm.Method"
    )


@collective
def make_exchange(
    name: str,
    grid: ProcessGrid,
    pattern: DistCSR,
    trace: TraceRecorder,
    wire: str = "native",
    schedule: Schedule = RESIDENT,
    carrier: Carrier | None = None,
) -> Exchange:
    """Return the exchange `name` (see `find_method`) for a pattern, whose values do not matter.

    `wire` is as in `make_wire`. Without a `carrier`, rows and products are in main memory. Raises
    InputError if there is no such exchange or wire format.
    """
    carrier = carrier or Carrier(grid)
    channel = Channel(grid, make_wire(wire), schedule, carrier, trace, Peers(grid))
    return exchange_by(name, channel, pattern)


@collective
def exchange_by(name: str, channel: Channel, pattern: DistCSR) -> Exchange:
    """Return the exchange `name` (see `find_method`) for a pattern over a channel."""
    method = find_method(name)
    return Exchange(channel, pattern, method.cover, method.make_ghosts)
