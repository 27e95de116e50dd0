"""A graph that runs are planned on, and what one rank would hold of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from hpcgnn.comm import Place, RowMap
from hpcgnn.config.config import Config
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.operator import Aggregation
from hpcgnn.plan.counted_messages import CountedRequest, WantedRows
from hpcgnn.plan.objectives import Predicted
from hpcgnn.plan.peers import PatternShare
from hpcgnn.plan.traffic import ALL, PatternKey, Ranks, Traffic
from hpcgnn.sparse import EdgeTable
from hpcgnn.storage import NodeBlock
from hpcgnn.support import Trait
from hpcgnn.typing import Array, FloatArray, Mask, Offsets


@dataclass(frozen=True, eq=False)
class Share:
    """All that a rank holds before it trains; the process that rehearses it gets nothing else.

    Parameters
    ----------
    aggregations
        That the model wants.
    place
        In the grid.
    sets
        The active sets ``S_0 .. S_L`` of its nodes; empty without active sets.
    nodes
        Of the rank, as the store holds them.
    requests
        What it fetches beside the products.
    edges
        What is read of its edges.
    largest
        Of reproducible runs: the largest sums of a row and of a column of each pattern, in the
        integers that weights are rounded to, of all ranks.
    """

    config: Config
    facts: GraphFacts
    aggregations: tuple[Aggregation, ...]
    place: Place
    row_map: RowMap
    sets: tuple[Mask, ...]
    nodes: NodeBlock
    predicted: Predicted
    requests: Mapping[PatternKey, Callable[..., CountedRequest]]
    edges: "OwnEdges"
    largest: Mapping[PatternKey, tuple[float, float]]

    @property
    def patterns(self) -> Mapping[PatternKey, PatternShare]:
        """Its matrices by their keys."""
        return self.edges.patterns


@dataclass(frozen=True, eq=False)
class OwnEdges:
    """The matrices of a rank by their keys, and what is read of their edges.

    Where messages are of edges, or attention reads their features, `table` has them, and values of
    the patterns are numbers of its entries. `means` (num_local, F) are of the features of each
    row's edges, where the model reads these.
    """

    patterns: Mapping[PatternKey, PatternShare]
    table: EdgeTable | None = None
    means: FloatArray | None = None


class Survey(ABC):
    """What all ranks need of each other for a pattern."""

    @abstractmethod
    def traffic(self, ranks: Ranks) -> Traffic:
        """Return the rows that an exchange moves between block rows."""

    @abstractmethod
    def share(self, ranks: Ranks, place: Place) -> PatternShare:
        """Return the matrix of the rank at a place, and what others tell it."""


class Planned(ABC):
    """What a plan asks of a graph; `store_bytes` are of its file.

    `counts_by` is the trait of exchanges that it counts.
    """

    store_bytes: int
    counts_by: ClassVar[Trait] = Trait.PLANNED

    @abstractmethod
    def survey(self, key: PatternKey, ranks: Ranks) -> Survey:
        """Return what ranks need for a pattern."""

    @abstractmethod
    def surveys(self, ranks: Ranks) -> dict[PatternKey, Survey]:
        """Return what ranks need for every pattern."""

    @abstractmethod
    def row_starts(self, blocks: int) -> Offsets:
        """Return (blocks + 1,) rows of so many block rows, as training assigns them.

        Raises `InputError` for more block rows than parts.
        """

    @abstractmethod
    def trains(self, starts: Offsets) -> Array:
        """Return (blocks,) what each block row trains on: nodes, those with an edge, graphs."""

    def requests(self, starts: Offsets) -> Mapping[PatternKey, WantedRows]:
        """Return what ranks fetch beside the products."""
        return {}

    @abstractmethod
    def share(
        self, config: Config, ranks: Ranks, surveys: Mapping[PatternKey, Survey], block: int
    ) -> Share:
        """Return the share of the rank that holds a block row and serves its columns.

        `config` has the exchange that is rehearsed, `surveys` are of every pattern, for these
        ranks.
        """


class PlannedGraph(Planned):
    """A source of counts: a stored graph, or one of which degrees alone are known.

    `wanted` are the aggregations of the model.
    """

    facts: GraphFacts
    wanted: tuple[Aggregation, ...]

    @property
    @abstractmethod
    def keys(self) -> tuple[PatternKey, ...]:
        """The patterns that training multiplies with."""

    @abstractmethod
    def sets(self, row_map: RowMap) -> tuple[Mask, ...]:
        """Return the active sets ``S_0 .. S_L`` of a block row; empty without any."""

    @abstractmethod
    def read_nodes(self, row_map: RowMap) -> NodeBlock:
        """Return features, labels and split of a block of rows."""

    @abstractmethod
    def own_edges(self, patterns: Mapping[PatternKey, PatternShare], block: int) -> OwnEdges:
        """Return what is read of the edges of the rank of a block row, with its patterns."""

    @abstractmethod
    def largest(self) -> Mapping[PatternKey, tuple[float, float]]:
        """Return the largest sums of rows and columns of each pattern, in integers; see `Share`."""

    @abstractmethod
    def predicted(self, starts: Offsets, block: int) -> Predicted:
        """Return what the rank of a block row predicts."""

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
        place = Place(ranks.num_blocks, replication, block, replica, hosts, groups)
        requests = self.requests(ranks.starts)
        patterns = {key: survey.share(ranks, place) for key, survey in surveys.items()}
        return Share(
            config=config,
            facts=self.facts,
            aggregations=self.wanted,
            place=place,
            row_map=row_map,
            sets=self.sets(row_map),
            nodes=_with_structure(config, self.read_nodes(row_map)),
            predicted=self.predicted(ranks.starts, block),
            requests={key: rows.of_rank(block, key) for key, rows in requests.items()},
            edges=self.own_edges(patterns, block),
            largest=self.largest() if config.train.reproducible else {},
        )


def _with_structure(config: Config, nodes: NodeBlock) -> NodeBlock:
    """Return the nodes with columns as wide as those that ``graph.structure`` makes."""
    if not config.graph.num_structural:
        return nodes
    columns = np.zeros((nodes.stop - nodes.start, config.graph.num_structural))
    tables = [columns] if nodes.features is None else [nodes.features, columns]
    return replace(nodes, features=np.concatenate(tables, axis=1))


def numbered_edges(patterns: Mapping[PatternKey, PatternShare], table: EdgeTable) -> OwnEdges:
    """Return the patterns with a rank's entries numbered from its first one on, and its edges."""
    whole = patterns[ALL].block
    # Entries stand in the order of rows, so those of a block row are one range.
    numbers = [part.values for part in (whole.diagonal, whole.remote) if part.values is not None]
    first = int(min((array.min() for array in numbers if len(array)), default=0))
    renumbered = {}
    for key, share in patterns.items():
        parts = share.block.diagonal.values, share.block.remote.values
        values = (None if array is None else array - first for array in parts)
        renumbered[key] = replace(share, block=share.block.with_values(*values))
    return OwnEdges(renumbered, table.take(np.arange(first, first + whole.nnz)))
