"""The pairs that a rank scores: training pairs, new in each epoch, and fixed evaluation pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from hpcgnn.comm import Communicator, ProcessGrid, RowMap, RowRequest
from hpcgnn.comm.row_map import distinct, found_among, numbered
from hpcgnn.config.links import LinksConfig
from hpcgnn.kernels.mixing import uniform
from hpcgnn.sampling import Subgraph
from hpcgnn.spmd import collective
from hpcgnn.storage import row_positions
from hpcgnn.train.links.edges import SHARES, LinkEdges, Links, mixed
from hpcgnn.train.links.negatives import NEGATIVES, NodePool, uniformly
from hpcgnn.train.links.ranking import KnownTargets, Queries
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sources.source import (
    BatchExamples,
    BatchShare,
    Examples,
    SubgraphExamples,
    WholeTargets,
)
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

# Seed of the fixed negatives of validation and test edges; no epoch or step has this number.
_TESTED = -1


@dataclass(frozen=True, eq=False)
class Pairs:
    """Edges with negatives, as positions among the rows that their scores are computed from.

    `rows` are ascending int64 global rows, `sources` and `targets` (E,) int32 positions among them,
    `wrong` (E, K) int32 those of negatives that replace the targets, and `relations` (E,) int64.
    `request` fetches these rows; None if this rank has all of them, in order.
    """

    rows: GlobalIndices
    sources: LocalIndices
    targets: LocalIndices
    wrong: LocalIndices
    relations: GlobalIndices
    request: RowRequest | None = None

    @classmethod
    def of(cls, edges: LinkEdges, wrong: GlobalIndices, num_rows: int) -> "Pairs":
        """Return the pairs of edges and their negatives (E, K), global rows below `num_rows`."""
        nodes = np.concatenate([edges.sources, edges.targets, wrong.reshape(-1)])
        rows = distinct(nodes, num_rows)
        positions = numbered(rows, np.arange(len(rows), dtype=np.int32), nodes)
        sources, targets, flat = np.split(positions, [len(edges), 2 * len(edges)])
        return cls(rows, sources, targets, flat.reshape(wrong.shape), edges.relations)

    @classmethod
    def side_by_side(cls, pieces: Sequence["Pairs"]) -> "Pairs":
        """Return the concatenation of pieces and of their rows, without a request."""
        offsets = np.cumsum([0, *(len(piece.rows) for piece in pieces[:-1])]).astype(np.int32)
        placed = list(zip(pieces, offsets, strict=True))
        return cls(
            np.concatenate([piece.rows for piece in pieces]),
            np.concatenate([piece.sources + offset for piece, offset in placed]),
            np.concatenate([piece.targets + offset for piece, offset in placed]),
            np.concatenate([piece.wrong + offset for piece, offset in placed]),
            np.concatenate([piece.relations for piece in pieces]),
        )

    @collective
    def with_request(self, layer: Communicator, row_map: RowMap) -> "Pairs":
        """Return these pairs with a request for their rows."""
        return replace(self, request=RowRequest.make(layer, row_map, self.rows))

    def __len__(self) -> int:
        return len(self.sources)


@dataclass(frozen=True, eq=False)
class Tested:
    """Validation or test edges that this rank ranks; all ranks have about equally many.

    `known` holds the known targets of their sources; None if edges are ranked among negatives only.
    """

    edges: LinkEdges
    pairs: Pairs
    known: KnownTargets | None


class PairSource(Protocol):
    """Provides the pairs that a rank scores."""

    tested: Mapping[str, Tested]

    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the training pairs of an epoch; collective."""


class DrawnPairs:
    """The pairs of this rank's edges; negatives are drawn by original `ids` (num_local,)."""

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        row_map: RowMap,
        ids: GlobalIndices,
        links: Links,
        options: LinksConfig,
    ) -> None:
        self._grid, self._row_map, self._options = grid, row_map, options
        self._edges = links.shares["train"]
        ends = NodePool(grid.layer, row_map, ids, self._edges, len(links.names), links.types)
        self._wrong_ends, self._nodes = NEGATIVES[options.negatives](ends), uniformly(ends)
        self.tested: Mapping[str, Tested] = {name: self._test(links, name) for name in SHARES[1:]}

    @collective
    def wrong(self, seed: int, epoch: int) -> GlobalIndices:
        """Return the negatives (E, K) of this rank's training edges in an epoch."""
        return self._wrong_ends.draw(self._edges, self._options.num_negatives, (seed, epoch))

    @collective
    def trained(self, seed: int, epoch: int) -> Pairs:
        """Return the training pairs of an epoch."""
        return self._pairs(self._edges, self.wrong(seed, epoch))

    @collective
    def _test(self, links: Links, name: str) -> Tested:
        # Spread the edges: ranks that own popular targets would have most of the work.
        edges = links.shares[name].spread(self._grid.layer)
        seeds = (self._options.split_seed, _TESTED)
        wrong, known_targets = self._nodes.draw(edges, self._options.ranked, seeds), None
        if self._options.ranking == "all":
            queries = Queries(edges.sources, edges.relations)
            known_targets = KnownTargets.of(self._grid, self._row_map, links, queries)
        return Tested(edges, self._pairs(edges, wrong), known_targets)

    def _pairs(self, edges: LinkEdges, wrong: GlobalIndices) -> Pairs:
        row_map = self._row_map
        return Pairs.of(edges, wrong, row_map.num_rows).with_request(self._grid.layer, row_map)


@collective
def share_edges(grid: ProcessGrid, links: Links) -> LinkEdges:
    """Return the training edges of all ranks, on each rank.

    They are sorted by their words, so that the order is the same for all partitions.
    """
    edges = links.shares["train"].shared(grid)
    return edges[edges.in_order()]


def enclosed(
    sources: GlobalIndices, starts: GlobalIndices, nodes: LocalIndices
) -> tuple[GlobalIndices, GlobalIndices, GlobalIndices]:
    """Return the numbers of the edges between some nodes, and the positions of their ends in these.

    `sources` are those of all edges, grouped by target; a target's edges begin at its `starts`.
    """
    numbers = row_positions(starts, nodes)
    sources_inside, inside = found_among(nodes, sources[numbers])
    targets = np.repeat(np.arange(len(nodes)), starts[nodes + 1] - starts[nodes])
    return numbers[inside], sources_inside[inside], targets[inside]


class BatchedLinks(BatchExamples):
    """Batches of training edges with negatives."""

    unit = "edges"

    def __init__(
        self, grid: ProcessGrid, graph: SampledGraph, links: Links, options: LinksConfig
    ) -> None:
        self._edges, self._options = share_edges(grid, links), options
        self._num_nodes = graph.edges.num_nodes
        # Each rank draws the negatives of whole batches alone, whatever the number of ranks.
        row_map = RowMap(np.array([0, self._num_nodes], np.int64), 0)
        alone, num_relations = grid.alone(), len(links.names)
        ends = NodePool(
            alone.layer, row_map, graph.node_ids, self._edges, num_relations, links.types
        )
        self._wrong_ends = NEGATIVES[options.negatives](ends)

    def __len__(self) -> int:
        return len(self._edges)

    @override
    def batch(self, share: BatchShare) -> tuple[LocalIndices, Pairs]:
        edges, positions = self._edges[share.numbers], share.positions
        wrong = self._wrong_ends.draw(edges, self._options.num_negatives, share.seeds)
        ends = Pairs.of(edges[positions], wrong[positions], self._num_nodes)
        return ends.rows.astype(np.int32), ends

    @override
    def targets(self, pieces: Sequence[Pairs]) -> Pairs:
        return Pairs.side_by_side(pieces)


class PairExamples(Examples):
    """The training edges of this rank as examples; `num_train` counts those of all ranks.

    `trained` returns the targets of an epoch from seed and epoch; `batched` and `enclosed` make
    the examples of a sampled graph, and may be collective.
    """

    trains = None

    def __init__(
        self,
        num_nodes: int,
        num_train: int,
        trained: Callable[[int, int], Any],
        batched: Callable[[SampledGraph], BatchExamples],
        enclosed: Callable[[SampledGraph], SubgraphExamples],
    ) -> None:
        self._num_nodes, self.num_train, self._trained = num_nodes, num_train, trained
        self._batched, self._enclosed = batched, enclosed

    @property
    @override
    def labels_of_nodes(self) -> Array:
        return np.zeros(self._num_nodes, np.int64)

    @collective
    @override
    def on_whole(self, seed: int, epoch: int) -> WholeTargets:
        # A plan rehearses one rank alone, which may have no edges.
        return WholeTargets(None, self._trained(seed, epoch), max(self.num_train, 1))

    @collective
    @override
    def in_batches(self, graph: SampledGraph) -> BatchExamples:
        return self._batched(graph)

    @collective
    @override
    def in_subgraphs(self, graph: SampledGraph) -> SubgraphExamples:
        return self._enclosed(graph)


class EnclosedLinks(SubgraphExamples):
    """The training edges with both ends in a subgraph, and negatives from it."""

    def __init__(
        self, grid: ProcessGrid, graph: SampledGraph, links: Links, options: LinksConfig
    ) -> None:
        num_nodes = graph.edges.num_nodes
        self._types = np.zeros(num_nodes, np.uint8) if links.types is None else links.types
        edges = share_edges(grid, links)
        self._edges = edges[np.argsort(edges.targets, kind="stable")]
        self._starts = np.searchsorted(self._edges.targets, np.arange(num_nodes + 1))
        self._count = options.num_negatives

    @override
    def inside(
        self, subgraphs: Sequence[Subgraph], nodes: LocalIndices, seeds: tuple[int, int]
    ) -> tuple[None, Pairs]:
        parts, num_before = [self._within(np.zeros(0, np.int32), 0, (*seeds, 0))], 0
        for subgraph in subgraphs:
            parts.append(self._within(subgraph.nodes, num_before, (*seeds, subgraph.number)))
            num_before += len(subgraph.nodes)
        sources, targets, wrong, relations = (np.concatenate(p) for p in zip(*parts, strict=True))
        return None, Pairs(np.arange(num_before), sources, targets, wrong, relations)

    def _within(
        self, nodes: LocalIndices, num_before: int, seeds: tuple[int, ...]
    ) -> tuple[LocalIndices, LocalIndices, LocalIndices, GlobalIndices]:
        """Return sources, targets, negatives and relations of a subgraph's edges.

        Nodes are positions in the subgraph plus `num_before`.
        """
        inside, sources, targets = enclosed(self._edges.sources, self._starts, nodes)
        edges = self._edges[inside]
        words = mixed(edges.words[:, None], *seeds, np.arange(self._count)[None, :])
        # Draw among the subgraph's nodes of the target's type, the target included.
        kinds = self._types[nodes]
        by_kind = np.argsort(kinds, kind="stable")
        first, last = (
            np.searchsorted(kinds[by_kind], kinds[targets], side)[:, None]
            for side in ("left", "right")
        )
        nth = (uniform(words) * (last - first)).astype(np.int64)
        wrong = by_kind[np.minimum(first + nth, last - 1)]
        from_row, to_row, wrong_row = (
            (positions + num_before).astype(np.int32) for positions in (sources, targets, wrong)
        )
        return from_row, to_row, wrong_row, edges.relations
