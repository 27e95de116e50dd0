"""The exchanges by the name that configurations use."""

from functools import partial

from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.sparse import MAIN, DistCSR
from hpcgnn.spmm.broadcast import BroadcastExchange
from hpcgnn.spmm.carrier import Carrier, HostCarrier
from hpcgnn.spmm.cover import COVERS
from hpcgnn.spmm.device_hosts import DeviceHostExchange, SharedExchange
from hpcgnn.spmm.exchange import CoveredExchange, Exchange, FetchAll, GhostFactory
from hpcgnn.spmm.ghosts import GhostExchange, Ghosts, Wire
from hpcgnn.spmm.hosts import HostExchange
from hpcgnn.spmm.planned import PlannedExchange
from hpcgnn.spmm.schedule import RESIDENT, Schedule
from hpcgnn.spmm.staged import StagedExchange
from hpcgnn.spmm.staged_hosts import StagedHostExchange
from hpcgnn.trace import TraceRecorder

__all__ = ["EXCHANGES", "WIRES", "make_exchange", "make_wire"]

EXCHANGES = ("oblivious", "aware", "push", "joint", "hierarchical")
"""Names of exchanges."""

WIRES = ("native", "bfloat16", "float16")
"""Names of wire formats; native is the dtype of the arrays."""


def make_exchange(
    name: str,
    grid: ProcessGrid,
    pattern: DistCSR,
    trace: TraceRecorder,
    wire: str = "native",
    schedule: Schedule = RESIDENT,
    carrier: Carrier | None = None,
) -> Exchange:
    """Return the exchange called `name` for a pattern.

    Collective.

    Parameters
    ----------
    name
        One of `EXCHANGES`.
    grid
        The ranks.
    pattern
        The matrix; its values do not matter.
    trace
        Where rows and bytes are recorded.
    wire
        One of `WIRES`.
    schedule
        How many ghosts are in memory at one time.
    carrier
        Where rows and products are; None: main memory.

    Raises
    ------
    InputError
        When there is no such exchange or wire format.
    """
    if name not in EXCHANGES:
        raise InputError(f"exchange {name!r} is unknown; choose one of {', '.join(EXCHANGES)}")
    travels, carrier = make_wire(wire), carrier or HostCarrier(grid)
    if name == "oblivious":
        broadcast = partial(BroadcastExchange, schedule=schedule)
        return FetchAll(grid, pattern, broadcast, travels, trace, carrier)
    cover, make_ghosts = COVERS["aware" if name == "hierarchical" else name], _mover(name, schedule)
    return CoveredExchange(grid, pattern, cover, make_ghosts, travels, trace, carrier)


def make_wire(name: str) -> Wire:
    """Return the wire format called `name`.

    Not collective.

    Raises
    ------
    InputError
        When there is no such format.
    """
    if name not in WIRES:
        raise InputError(f"wire format {name!r} is unknown; choose one of {', '.join(WIRES)}")
    if name == "bfloat16":
        return Wire("bfloat16")
    return Wire("float16") if name == "float16" else Wire()


def _mover(name: str, schedule: Schedule) -> GhostFactory:
    """Return what moves rows between owners and the ranks that need them."""
    if name == "hierarchical":
        return partial(_make_shared, schedule=schedule)
    if not schedule.sequential:
        return PlannedExchange
    return partial(StagedExchange, schedule=schedule)


def _make_shared(
    grid: ProcessGrid,
    ghosts: Ghosts,
    wire: Wire,
    trace: TraceRecorder,
    *,
    schedule: Schedule,
    carrier: Carrier,
) -> GhostExchange:
    """Return the exchange of ranks that share the memory of their host; collective."""
    there = HostCarrier(grid)
    made: SharedExchange
    if schedule.sequential:
        made = StagedHostExchange(grid, ghosts, wire, trace, schedule, there)
    else:
        made = HostExchange(grid, ghosts, wire, trace, there)
    return made if carrier.memory is MAIN else DeviceHostExchange(made, carrier)
