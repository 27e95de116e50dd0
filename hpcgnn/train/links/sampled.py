"""Link prediction on sampled subgraphs: what the steps of an epoch score, and on what.

Subgraphs are of the graph without the edges that are predicted, as the whole is: none of them is
aggregated over. With ``sampling.sampler=neighbour`` a step is a batch of edges to train on, with
sampled neighbours of their ends and of their wrong ends. With the others it is subgraphs, and in
each of them the edges to train on whose both ends it has, with wrong ends in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, agree, share_on_hosts
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphView, NodeFeatures
from hpcgnn.operator import on_graph
from hpcgnn.partition import row_positions
from hpcgnn.sampling import FanOutSampler, LayeredSample, Subgraph
from hpcgnn.spmd import collective
from hpcgnn.support import Reasons, Trait
from hpcgnn.train.links.edges import LinkEdges, Links, mixed, uniform
from hpcgnn.train.links.negatives import NEGATIVES, Ends
from hpcgnn.train.links.pairs import Needed
from hpcgnn.train.sampled.graph import home_rows, share_whole
from hpcgnn.train.sampled.input import StepInput, SubgraphInput
from hpcgnn.train.sampled.task import NO_MESSAGES, SUBGRAPHS, check_fan_outs
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

SAMPLED_LINKS: Reasons = {
    **SUBGRAPHS,
    **NO_MESSAGES,
    Trait.PARTS: "edges are drawn from the whole graph, which every host holds",
}
"""What link prediction lacks on sampled subgraphs."""


@dataclass(frozen=True, eq=False)
class LinkStep:
    """What a step of a rank scores, where the model is.

    Parameters
    ----------
    needed
        Edges with wrong ends, by their places among the encoder's rows.
    size
        Edges of all ranks; None: to be added up.
    """

    view: GraphView
    features: NodeFeatures
    needed: Needed
    size: int | None


@collective
def share_edges(grid: ProcessGrid, links: Links) -> LinkEdges:
    """Return the edges to train on of all ranks, by their words: in one order for all partitions.

    Each rank holds them.
    """
    mine = links.shares["train"]
    names = ("sources", "targets", "relations", "words")
    columns = [share_on_hosts(grid, f"links.{name}", getattr(mine, name)) for name in names]
    return LinkEdges(*columns)[np.argsort(columns[-1], kind="stable")]


class LinkBatches(StepInput[LinkStep]):
    """Batches of edges with sampled neighbours; ranks take pieces of the same batches."""

    def __init__(self, views: SampledViews, edges: LinkEdges, links: Links) -> None:
        self.views, self._edges = views, edges
        self._grid, self._graph, self._sampling = views.parts
        self._options = views.context.config.links
        alone, num_nodes = self._grid.alone(), self._graph.edges.num_nodes
        # Every rank draws the wrong ends of whole batches by itself: no matter how many there are.
        row_map = RowMap(np.array([0, num_nodes], np.int64), 0)
        ids, num_relations = self._graph.node_ids, len(links.names)
        ends = Ends(alone.layer, row_map, ids, edges, num_relations, links.types)
        self._wrong_ends = NEGATIVES[self._options.negatives](ends)
        self._size = min(self._sampling.budget, len(edges))
        self.num_steps = self._sampling.steps or -(-len(edges) // self._size)

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch, and the edges of a step."""
        return {"steps_per_epoch": self.num_steps, "edges_per_step": self._size}

    def draw(self, seed: int, epoch: int) -> Iterator[tuple[LayeredSample, Needed, int]]:
        """Yield this rank's share of each batch, its edges, and how many all ranks have."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self._edges))
        sampler = FanOutSampler(self._graph.edges, seed, self._sampling.fan_outs)
        # Here and not in the threads, which must not communicate, not even with themselves.
        drawn = [self._batch(order, step, seed, epoch) for step in range(self.num_steps)]

        def make(step: int) -> LayeredSample:
            needed, _ = drawn[step]
            return sampler.sample(epoch * self.num_steps + step, needed.rows.astype(np.int32))

        samples = self.make_ahead(make, range(self.num_steps))
        for (needed, size), sample in zip(drawn, samples, strict=True):
            yield sample, needed, size

    def _batch(self, order: GlobalIndices, step: int, seed: int, epoch: int) -> tuple[Needed, int]:
        """Return this rank's edges of a batch with wrong ends, and how many all ranks have."""
        first = step * self._size % len(order)
        edges = self._edges[order[first : first + self._size]]
        wrong = self._wrong_ends.draw(edges, self._options.num_negatives, (seed, epoch))
        mine = np.zeros(len(edges), np.bool_)
        mine[np.array_split(np.arange(len(edges)), self._grid.num_blocks)[self._grid.block]] = True
        num_nodes = self._graph.edges.num_nodes
        return Needed.of(edges[mine], wrong[mine], num_nodes), len(edges)

    def prepare(self, drawn: tuple[LayeredSample, Needed, int]) -> LinkStep:
        """Return what a step scores of a batch."""
        sample, needed, size = drawn
        view, inputs = self.views.of_layers(sample)
        return LinkStep(view, self.views.features(inputs), needed, size)


class LinkSubgraphs(StepInput[LinkStep]):
    """The edges within sampled subgraphs, told from wrong ends in the same subgraph."""

    @collective
    def __init__(self, views: SampledViews, edges: LinkEdges, types: Array | None) -> None:
        self.views, self._count = views, views.context.config.links.num_negatives
        self._types = np.zeros(views.graph.edges.num_nodes, np.uint8) if types is None else types
        self._input = SubgraphInput.of_whole(views)
        self.num_steps = self._input.num_steps
        self._edges = edges[np.argsort(edges.targets, kind="stable")]
        bounds = np.arange(views.graph.edges.num_nodes + 1)
        self._starts = np.searchsorted(self._edges.targets, bounds)

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch, and the sizes of subgraphs."""
        return self._input.describe()

    def draw(self, seed: int, epoch: int) -> Iterator[tuple[list[Subgraph], tuple[int, int]]]:
        """Yield this rank's subgraphs of each step, with seed and epoch."""
        return ((each, (seed, epoch)) for each in self._input.draw(seed, epoch))

    def prepare(self, drawn: tuple[list[Subgraph], tuple[int, int]]) -> LinkStep:
        """Return what a step scores of subgraphs."""
        subgraphs, seeds = drawn
        view = self.views.of_subgraphs(subgraphs)
        parts, before = [self._within(np.zeros(0, np.int32), 0, (*seeds, 0))], 0
        for each in subgraphs:
            parts.append(self._within(each.nodes, before, (*seeds, each.number)))
            before += len(each.nodes)
        sources, targets, wrong, relations = (np.concatenate(p) for p in zip(*parts, strict=True))
        needed = Needed(np.arange(before), sources, targets, wrong, relations)
        return LinkStep(view.graph, self.views.features(view.nodes), needed, None)

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
            (each + before).astype(np.int32) for each in (sources, targets, wrong)
        )
        return from_row, to_row, wrong_row, edges.relations


@collective
def link_steps(context: Context, graph: LocalGraph, links: Links) -> StepInput[LinkStep]:
    """Return what draws the steps; the graph was read with its rows, without the edges of `links`.

    Raises
    ------
    CollectiveInputError
        When the graph has too many nodes to sample.
    """
    grid, config = context.grid, context.config
    nothing = np.zeros(graph.row_map.num_local, np.int64)
    home = home_rows(graph, nothing, nothing.astype(np.bool_))
    wanted = on_graph(context.wanted, directed=graph.facts.directed)
    with agree(grid.world):
        if config.sampling.sampler == "neighbour":
            check_fan_outs(config, graph.num_aggregations(config))
    with context.trace.span("read.whole"):
        views = SampledViews(context, share_whole(grid, home), wanted)
        edges = share_edges(grid, links)
    with context.trace.span("plan.sampling"):
        if config.sampling.sampler == "neighbour":
            return LinkBatches(views, edges, links)
        return LinkSubgraphs(views, edges, links.types)


@collective
def count_edges(grid: ProcessGrid, step: LinkStep) -> int:
    """Return the edges of a step on all ranks, at least 1."""
    if step.size is not None:
        return step.size
    return max(int(grid.layer.allreduce(len(step.needed.sources))), 1)
