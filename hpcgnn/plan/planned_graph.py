"""The interface of graphs that runs are planned on, and the share of one rank."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from hpcgnn.comm import GridPosition, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.operator import Aggregation
from hpcgnn.plan.counted_messages import CountedRequest, WantedRows
from hpcgnn.plan.objectives import PlannedObjective
from hpcgnn.plan.simulated_peers import PatternShare
from hpcgnn.plan.traffic import ALL, PatternKey, Ranks, Traffic
from hpcgnn.sparse import EdgeTable
from hpcgnn.storage import NodeBlock
from hpcgnn.support import Trait
from hpcgnn.typing import Array, FloatArray, Mask, Offsets


@dataclass(frozen=True, eq=False)
class Share:
    """Everything that a rank has before training; its rehearsing process gets nothing else.

    `sets` are the active sets ``S_0 .. S_L`` of its nodes, empty without active sets; `nodes` are
    as the store holds them; `requests` are for the rows that it fetches beside the products;
    `edges` are the matrices and the data of its edges. In reproducible runs, `largest` is the
    largest row sum and column sum of each pattern over all ranks, in the integers that weights are
    rounded to.
    """

    config: Config
    facts: GraphFacts
    aggregations: tuple[Aggregation, ...]
    position: GridPosition
    row_map: RowMap
    sets: tuple[Mask, ...]
    nodes: NodeBlock
    predicted: PlannedObjective
    requests: Mapping[PatternKey, Callable[..., CountedRequest]]
    edges: "OwnEdges"
    largest: Mapping[PatternKey, tuple[float, float]]

    @property
    def patterns(self) -> Mapping[PatternKey, PatternShare]:
        """Its matrices by their keys."""
        return self.edges.patterns


@dataclass(frozen=True, eq=False)
class OwnEdges:
    """The matrices of a rank by their keys, and the data of their edges.

    If the model computes messages or its attention reads edge features, `table` has the edges, and
    values of the patterns are numbers of its entries. `means` (num_local, F) are the mean features
    of each row's edges, if the model reads these.
    """

    patterns: Mapping[PatternKey, PatternShare]
    table: EdgeTable | None = None
    means: FloatArray | None = None


class Survey(ABC):
    """The needs of all ranks from each other for a pattern."""

    @abstractmethod
    def traffic(self, ranks: Ranks) -> Traffic:
        """Return the rows that an exchange moves between block rows."""

    @abstractmethod
    def share(self, ranks: Ranks, position: GridPosition) -> PatternShare:
        """Return the matrix of the rank at a position, and the answers of other ranks."""


class Planned(ABC):
    """A graph that can be planned on; `store_bytes` is the size of its store.

    `counts_by` is the trait that an exchange must not lack to be counted.
    """

    store_bytes: int
    counts_by: ClassVar[Trait] = Trait.PLANNED

    @abstractmethod
    def survey(self, key: PatternKey, ranks: Ranks) -> Survey:
        """Return the needs of ranks for a pattern."""

    @abstractmethod
    def surveys(self, ranks: Ranks) -> dict[PatternKey, Survey]:
        """Return the needs of ranks for every pattern."""

    @abstractmethod
    def row_starts(self, blocks: int) -> Offsets:
        """Return (blocks + 1,) the first rows of block rows, as training assigns them.

        Raises `InputError` for more block rows than parts.
        """

    @abstractmethod
    def trains(self, starts: Offsets) -> Array:
        """Return (blocks,) the number of nodes, edges or graphs that each block row trains on."""

    def requests(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        """Return the rows that ranks fetch beside the products."""
        return {}

    @abstractmethod
    def share(
        self, config: Config, ranks: Ranks, surveys: Mapping[PatternKey, Survey], block: int
    ) -> Share:
        """Return the share of the rank that holds a block row and serves its columns.

        `config` has the exchange to rehearse; `surveys` are those of all patterns for these ranks.
        """


class PlannedGraph(Planned):
    """A stored graph, or one known only by its degrees; `aggregations` are the model's."""

    facts: GraphFacts
    aggregations: tuple[Aggregation, ...]

    @property
    @abstractmethod
    def keys(self) -> tuple[PatternKey, ...]:
        """The keys of the patterns that training multiplies with."""

    @abstractmethod
    def sets(self, row_map: RowMap) -> tuple[Mask, ...]:
        """Return the active sets ``S_0 .. S_L`` of a block row; empty without any."""

    @abstractmethod
    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        """Return features, labels and split of a block of rows."""

    @abstractmethod
    def own_edges(self, patterns: Mapping[PatternKey, PatternShare], block: int) -> OwnEdges:
        """Return the patterns of the rank of a block row with the data of their edges."""

    @abstractmethod
    def largest(self) -> Mapping[PatternKey, tuple[float, float]]:
        """Return each pattern's largest row sum and column sum in integers; see `Share`."""

    @abstractmethod
    def predicted(self, starts: Offsets, block: int) -> PlannedObjective:
        """Return the part of the rank of a block row in the objective."""

    @override
    def surveys(self, ranks: Ranks) -> dict[PatternKey, Survey]:
        return {key: self.survey(key, ranks) for key in self.keys}

    @override
    def share(
        self, config: Config, ranks: Ranks, surveys: Mapping[PatternKey, Survey], block: int
    ) -> Share:
        row_map, replication = RowMap(ranks.starts, block), ranks.exchange.replication
        replica = block % replication
        hosts, groups = ranks.hosts(replica), ranks.exchange.groups
        position = GridPosition(ranks.num_blocks, replication, block, replica, hosts, groups)
        requests = self.requests(ranks.starts)
        patterns = {key: survey.share(ranks, position) for key, survey in surveys.items()}
        return Share(
            config=config,
            facts=self.facts,
            aggregations=self.aggregations,
            position=position,
            row_map=row_map,
            sets=self.sets(row_map),
            nodes=_with_structure(config, self.read_nodes(row_map)),
            predicted=self.predicted(ranks.starts, block),
            requests={key: rows.of_rank(block, key) for key, rows in requests.items()},
            edges=self.own_edges(patterns, block),
            largest=self.largest() if config.train.reproducible else {},
        )


def _with_structure(config: Config, nodes: NodeBlock) -> NodeBlock:
    """Return the nodes with zero columns in place of those that ``graph.structure`` makes."""
    if not config.graph.num_structural:
        return nodes
    columns = np.zeros((nodes.stop - nodes.start, config.graph.num_structural))
    tables = [columns] if nodes.features is None else [nodes.features, columns]
    return replace(nodes, features=np.concatenate(tables, axis=1))


def numbered_edges(patterns: Mapping[PatternKey, PatternShare], table: EdgeTable) -> OwnEdges:
    """Return the patterns with entries numbered from the rank's first, and the rank's edges."""
    whole = patterns[ALL].block
    # Entries are in row order, so those of a block row are one range.
    numbers = [part.values for part in (whole.diagonal, whole.remote) if part.values is not None]
    first = int(min((array.min() for array in numbers if len(array)), default=0))
    renumbered = {}
    for key, share in patterns.items():
        parts = share.block.diagonal.values, share.block.remote.values
        values = (None if array is None else array - first for array in parts)
        renumbered[key] = replace(share, block=share.block.with_values(*values))
    return OwnEdges(renumbered, table.take(np.arange(first, first + whole.nnz)))
