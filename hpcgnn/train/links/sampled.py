"""Link prediction on sampled subgraphs: what steps score.

Subgraphs are of the graph without the edges that are predicted, as the whole is: none of them is
aggregated over. With ``sampling.sampler=neighbour`` a step is a batch of edges to train on, with
sampled neighbours of their ends and of their wrong ends. With the others it is subgraphs, and in
each of them the edges to train on whose both ends it has, with wrong ends in it.
"""

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from hpcgnn.comm import ProcessGrid, RowMap, share_on_hosts
from hpcgnn.config.links import LinksConfig
from hpcgnn.kernels.mixing import uniform
from hpcgnn.partition import row_positions
from hpcgnn.sampling import Subgraph
from hpcgnn.spmd import collective
from hpcgnn.train.links.edges import LinkEdges, Links, mixed
from hpcgnn.train.links.negatives import NEGATIVES, NodePool
from hpcgnn.train.links.pairs import Needed, Pairs
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sources.examples import BatchExamples, SubgraphExamples
from hpcgnn.typing import GlobalIndices, LocalIndices


@collective
def share_edges(grid: ProcessGrid, links: Links) -> LinkEdges:
    """Return the edges to train on of all ranks, by their words: in one order for all partitions.

    Each rank holds them.
    """
    training_edges = links.shares["train"]
    names = ("sources", "targets", "relations", "words")
    columns = [
        share_on_hosts(grid, f"links.{name}", getattr(training_edges, name)) for name in names
    ]
    return LinkEdges(*columns)[np.argsort(columns[-1], kind="stable")]


class BatchedLinks(BatchExamples):
    """The edges to train on, of which a batch is some with wrong ends."""

    unit = "edges"

    def __init__(
        self, grid: ProcessGrid, graph: SampledGraph, links: Links, options: LinksConfig
    ) -> None:
        self._edges, self._options = share_edges(grid, links), options
        self._num_nodes = graph.edges.num_nodes
        # Every rank draws the wrong ends of whole batches by itself: no matter how many there are.
        row_map = RowMap(np.array([0, self._num_nodes], np.int64), 0)
        alone, num_relations = grid.alone(), len(links.names)
        ends = NodePool(
            alone.layer, row_map, graph.node_ids, self._edges, num_relations, links.types
        )
        self._wrong_ends = NEGATIVES[options.negatives](ends)

    def __len__(self) -> int:
        return len(self._edges)

    @override
    def batch(
        self, numbers: GlobalIndices, selected: GlobalIndices, seeds: tuple[int, int]
    ) -> tuple[LocalIndices, Needed]:
        edges = self._edges[numbers]
        wrong = self._wrong_ends.draw(edges, self._options.num_negatives, seeds)
        ends = Needed.of(edges[selected], wrong[selected], self._num_nodes)
        return ends.rows.astype(np.int32), ends

    @override
    def targets(self, ends: Needed) -> Pairs:
        return Pairs(ends, None)


class EnclosedLinks(SubgraphExamples):
    """The edges to train on with both ends in a subgraph, and wrong ends in it."""

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
        parts, before = [self._within(np.zeros(0, np.int32), 0, (*seeds, 0))], 0
        for subgraph in subgraphs:
            parts.append(self._within(subgraph.nodes, before, (*seeds, subgraph.number)))
            before += len(subgraph.nodes)
        sources, targets, wrong, relations = (np.concatenate(p) for p in zip(*parts, strict=True))
        ends = Needed(np.arange(before), sources, targets, wrong, relations)
        return None, Pairs(ends, None)

    def _within(
        self, nodes: LocalIndices, before: int, seeds: tuple[int, ...]
    ) -> tuple[LocalIndices, LocalIndices, LocalIndices, GlobalIndices]:
        """Return sources, targets, wrong ends and relations of a subgraph's edges.

        Ends are places behind `before` rows.
        """
        edges = self._edges[row_positions(self._starts, nodes)]
        lengths = self._starts[nodes + 1] - self._starts[nodes]
        near = np.searchsorted(nodes, edges.sources)
        inside = near < len(nodes)
        inside[inside] = nodes[near[inside]] == edges.sources[inside]
        edges, sources = edges[inside], near[inside]
        targets = np.repeat(np.arange(len(nodes)), lengths)[inside]
        words = mixed(edges.words[:, None], *seeds, np.arange(self._count)[None, :])
        # Of the type of the target, which is one of them.
        kinds = self._types[nodes]
        of_kinds = np.argsort(kinds, kind="stable")
        first, last = (
            np.searchsorted(kinds[of_kinds], kinds[targets], side)[:, None]
            for side in ("left", "right")
        )
        nth = (uniform(words) * (last - first)).astype(np.int64)
        wrong = of_kinds[np.minimum(first + nth, last - 1)]
        from_row, to_row, wrong_row = (
            (positions + before).astype(np.int32) for positions in (sources, targets, wrong)
        )
        return from_row, to_row, wrong_row, edges.relations
