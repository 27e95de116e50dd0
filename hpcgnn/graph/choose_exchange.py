"""Choose the cheapest exchange for a graph, where the configuration says exchange.method = auto.

Every exchange that works is built for the pattern of all nodes, which gives the rows that one
product moves. The machine's links are measured, and a model of messages estimates seconds from
both. `hpcgnn.plan` chooses in the same way, from rows counted without ranks and from given links.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hpcgnn.comm import Network, ProcessGrid, Sent, Volume, are_joined, bcast
from hpcgnn.config.config import Config
from hpcgnn.config.run_features import features_of
from hpcgnn.graph.context import Context
from hpcgnn.graph.read_edges import read_matrix
from hpcgnn.graph.stored_rows import StoredRows
from hpcgnn.nn import find_model
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.spmm import make_exchange, make_wire
from hpcgnn.support import conflicts
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import LocalIndices

MEASURE_S = 0.4
"""Approximate seconds for measuring the links."""

# In order of preference. Broadcasts are left out: they never move fewer rows than `aware`. `aware`
# has the least work besides messages: `joint` has two products instead of one, and `push` can send
# its sums only after computing them.
_DIRECT = ("aware", "joint", "push")
_BY_HOSTS = ("hierarchical_joint", "hierarchical")
_NEAR = 1.05
"""Ratio to the fewest seconds that counts as equal; the model ignores other work and overlap."""


@dataclass(frozen=True)
class ExchangeChoice:
    """A chosen exchange and the reasons for it.

    `seconds` are the modelled seconds of the messages of one product of the model's width, for each
    exchange.
    """

    method: str
    seconds: Mapping[str, float]
    network: Network

    @classmethod
    def of(cls, seconds: Mapping[str, float], network: Network) -> "ExchangeChoice":
        """Choose the first exchange, in the order of `seconds`, within `_NEAR` of the fastest."""
        least = min(seconds.values())
        method = next(name for name, estimate in seconds.items() if estimate <= _NEAR * least)
        return cls(method, dict(seconds), network)

    def describe(self) -> str:
        """Return the choice as a line of text."""
        costs = ", ".join(f"{name} {1e3 * estimate:.3g}" for name, estimate in self.seconds.items())
        network = self.network
        return (
            f"exchange.method = auto: {self.method} (modelled ms of messages a product: {costs}; "
            f"between hosts {network.bandwidth / 1e9:.3g} GB/s a rank and "
            f"{network.latency_s * 1e6:.3g} us a message)"
        )


Aggregations: TypeAlias = tuple[Aggregation, ...]
"""Aggregations to use instead of the model's; empty for those of the model."""


def candidates(
    config: Config, hosts: LocalIndices, aggregations: Aggregations = ()
) -> tuple[str, ...]:
    """Return the exchanges that a configuration allows on ranks of `hosts`, (ranks,) int32."""
    # Exchanges by hosts pay for their barriers only if there is a network and hosts have ranks to
    # share rows.
    by_hosts = 1 < int(hosts.max(initial=0)) + 1 < len(hosts)
    names = _DIRECT + _BY_HOSTS * by_hosts

    def works(name: str) -> bool:
        return not any(conflicts(features_of(with_method(config, name), aggregations)))

    return tuple(filter(works, names))


def row_bytes(config: Config) -> int:
    """Return the bytes of a row of the model's width on the wire."""
    half = config.train.precision == "bfloat16"
    like = np.empty((0, config.model.hidden), np.uint16 if half else config.train.dtype)
    return make_wire(config.travel.wire).row_bytes(like)


def joins_messages(config: Config, aggregations: Aggregations = ()) -> bool:
    """Return whether products can join the short messages of their two exchanges.

    They cannot in attention, whose push depends on what it fetched, in a staged push, which waits
    for its fetch, and on a GPU, whose rows leave when it has packed them.
    """
    used = aggregations or find_model(config.model.name).aggregations
    attends = any(a.attends for a in used)
    resident = config.exchange.schedule == "resident"
    return resident and not attends and config.train.device == "cpu"


def with_method(config: Config, method: str) -> Config:
    """Return a configuration with another exchange."""
    return replace(config, exchange=replace(config.exchange, method=method))


@collective
def with_chosen_exchange(
    grid: ProcessGrid, config: Config, aggregations: Aggregations = ()
) -> tuple[ExchangeChoice, Config]:
    """Return the cheapest exchange for a configuration's graph, and the configuration with it.

    Raises `CollectiveInputError` if the store cannot be read, or does not fit the configuration or
    the number of ranks.
    """
    alone = grid.unreplicated() if grid.groups > 1 else grid
    network = Network.measured(alone, MEASURE_S)
    choice = ExchangeChoice.of(method_seconds(alone, config, network, aggregations), network)
    # Groups may have measured other links.
    return choice, with_method(config, bcast(grid.world, choice.method))


@collective
def method_seconds(
    grid: ProcessGrid, config: Config, network: Network, aggregations: Aggregations = ()
) -> dict[str, float]:
    """Return the modelled seconds of a product's messages for each exchange."""
    concrete = with_method(config, "aware")
    hosts = np.unique(grid.host_names, return_inverse=True)[1].astype(np.int32)
    size, joined, seconds = row_bytes(concrete), joins_messages(concrete, aggregations), {}
    names = candidates(config, hosts, aggregations)
    context = Context(grid, concrete, aggregations=aggregations)
    with StoredRows.opened(context, ()) as stored:
        pattern = read_matrix(stored).matrix
    for name in names:
        exchange = make_exchange(name, grid, pattern, TraceRecorder.off())
        seconds[name] = network.seconds(*_sent(grid, exchange.volumes, size, joined=joined), hosts)
    return seconds


@collective
def _sent(
    grid: ProcessGrid, volumes: tuple[Volume, ...], size: int, *, joined: bool
) -> tuple[Sent, Sent]:
    """Return what every rank sends in a product, to all ranks and to other hosts only."""
    away = grid.hosts != grid.hosts[grid.block]
    totals = []
    for ranks in (np.ones_like(away), away):
        sent = sum(volume.sent[ranks].sum() for volume in volumes)
        received = sum(volume.received[ranks].sum() for volume in volumes)
        messages = sum(np.count_nonzero(v.sent[ranks]) for v in volumes)
        if joined and len(volumes) > 1:
            fetched, pushed = (v.sent[ranks] for v in volumes)
            messages -= np.count_nonzero(are_joined(fetched, pushed, size))
        totals.append([sent, sent * size, received * size, messages])
    of_ranks = np.array(grid.world.allgather(totals), np.int64)
    return Sent(*of_ranks[:, 0].T), Sent(*of_ranks[:, 1].T)
