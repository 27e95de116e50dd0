"""Link prediction on sampled subgraphs: what the steps of an epoch score, and on what.

Subgraphs are of the graph without the edges that are predicted, as the whole is: none of them is
aggregated over. With ``sampling.sampler=neighbour`` a step is a batch of edges to train on, with
sampled neighbours of their ends and of their wrong ends. With the others it is subgraphs, and in
each of them the edges to train on whose both ends it has, with wrong ends in it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from hpcgnn.comm import ProcessGrid, RowMap, agree, share_on_hosts
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import GraphView, NodeFeatures, find_model
from hpcgnn.operator import on_graph
from hpcgnn.sampling import FanOutSampler, LayeredSample, Prefetch, Subgraph
from hpcgnn.spmd import collective
from hpcgnn.train.links.edges import LinkEdges, Links, mixed, uniform
from hpcgnn.train.links.negatives import NEGATIVES, Ends
from hpcgnn.train.links.pairs import Needed
from hpcgnn.train.sampled.graph import HomeRows, share_whole
from hpcgnn.train.sampled.input import SubgraphInput
from hpcgnn.train.sampled.task import check_fan_outs, check_sampled_options
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.typing import GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class LinkStep:
    """What a step of a rank scores, where the model is.

    Parameters
    ----------
    view, features
        What the encoder sees.
    needed
        Edges with wrong ends, by their places among the encoder's rows.
    size
        Edges of all ranks; None: to be added up.
    """

    view: GraphView
    features: NodeFeatures
    needed: Needed
    size: int | None


class LinkSteps(Protocol):
    """Draws what the steps of an epoch score; a function of seed and epoch."""

    num_steps: int

    def steps(self, seed: int, epoch: int) -> Iterator[Callable[[], LinkStep]]:
        """Yield what makes this rank's share of each step ready."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the summary says of an epoch."""
        ...


@dataclass(frozen=True, eq=False)
class SharedLinks:
    """The edges to train on of all ranks, by their words, so in one order for all partitions.

    Parameters
    ----------
    edges
        Of all ranks.
    num_relations
        That are predicted.
    """

    edges: LinkEdges
    num_relations: int

    @classmethod
    @collective
    def share(cls, grid: ProcessGrid, links: Links) -> "SharedLinks":
        """Bring the edges of all ranks together; each rank holds them."""
        mine = links.shares["train"]
        columns = {
            name: share_on_hosts(grid, f"links.{name}", getattr(mine, name))
            for name in ("sources", "targets", "relations", "words")
        }
        order = np.argsort(columns["words"], kind="stable")
        edges = LinkEdges(**{name: each[order] for name, each in columns.items()})
        return cls(edges, len(links.names))

    def take(self, places: GlobalIndices) -> LinkEdges:
        """Return some of the edges."""
        edges = self.edges
        columns = edges.sources, edges.targets, edges.relations, edges.words
        return LinkEdges(*(each[places] for each in columns))


class LinkBatches:
    """Batches of edges with sampled neighbours; ranks take pieces of the same batches.

    Parameters
    ----------
    views
        Of the whole graph.
    links
        The edges to train on.
    """

    def __init__(self, views: SampledViews, links: SharedLinks) -> None:
        self._views, self._links = views, links
        self._grid, self._graph, self._sampling = views.parts
        self._options = views.context.config.links
        alone, num_nodes = self._grid.alone(), self._graph.edges.num_nodes
        # Every rank draws the wrong ends of whole batches by itself: no matter how many there are.
        row_map = RowMap(np.array([0, num_nodes], np.int64), 0)
        ends = Ends(alone.layer, row_map, self._graph.node_ids, links.edges, links.num_relations)
        self._wrong_ends = NEGATIVES[self._options.negatives](ends)
        self._size = min(self._sampling.budget, len(links.edges))
        self.num_steps = self._sampling.steps or -(-len(links.edges) // self._size)

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch, and the edges of a step."""
        return {"steps_per_epoch": self.num_steps, "edges_per_step": self._size}

    def steps(self, seed: int, epoch: int) -> Iterator[Callable[[], LinkStep]]:
        """Yield what makes this rank's share of each step ready."""
        device = self._views.context.device
        return device.prepare_ahead(self._draw(seed, epoch), self._prepare)

    def _draw(self, seed: int, epoch: int) -> Iterator[tuple[LayeredSample, Needed, int]]:
        order = np.random.default_rng([seed, epoch]).permutation(len(self._links.edges))
        sampler = FanOutSampler(self._graph.edges, seed, self._sampling.fan_outs)
        # Here and not in the threads, which must not communicate, not even with themselves.
        drawn = [self._batch(order, step, seed, epoch) for step in range(self.num_steps)]

        def make(step: int) -> LayeredSample:
            needed, _ = drawn[step]
            return sampler.sample(epoch * self.num_steps + step, needed.rows.astype(np.int32))

        threads, depth = self._sampling.threads, self._sampling.ahead
        with Prefetch(make, range(self.num_steps), threads=threads, depth=depth) as pool:
            for (needed, size), sample in zip(drawn, pool, strict=True):
                yield sample, needed, size

    def _batch(self, order: GlobalIndices, step: int, seed: int, epoch: int) -> tuple[Needed, int]:
        """Return this rank's edges of a batch with wrong ends, and how many all ranks have."""
        first = step * self._size % len(order)
        edges = self._links.take(order[first : first + self._size])
        wrong = self._wrong_ends.draw(edges, self._options.num_negatives, (seed, epoch))
        mine = np.zeros(len(edges), np.bool_)
        mine[np.array_split(np.arange(len(edges)), self._grid.num_blocks)[self._grid.block]] = True
        return Needed.of(edges.where(mine), wrong[mine]), len(edges)

    def _prepare(self, drawn: tuple[LayeredSample, Needed, int]) -> LinkStep:
        sample, needed, size = drawn
        view, inputs = self._views.of_layers(sample)
        features = self._graph.features[torch.from_numpy(inputs).long()]
        return LinkStep(view, features.to(self._views.context.device.place), needed, size)


class LinkSubgraphs:
    """The edges within sampled subgraphs, told from wrong ends in the same subgraph.

    Parameters
    ----------
    views, links
        As for `LinkBatches`.
    """

    @collective
    def __init__(self, views: SampledViews, links: SharedLinks) -> None:
        self._views = views
        self._graph, self._count = views.parts[1], views.context.config.links.num_negatives
        self._input = SubgraphInput.of_whole(views)
        self.num_steps = self._input.num_steps
        edges = links.edges
        order = np.argsort(edges.targets, kind="stable")
        self._links = SharedLinks(links.take(order), links.num_relations)
        bounds = np.arange(self._graph.edges.num_nodes + 1)
        self._starts = np.searchsorted(self._links.edges.targets, bounds)

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch, and the sizes of subgraphs."""
        return self._input.describe()

    def steps(self, seed: int, epoch: int) -> Iterator[Callable[[], LinkStep]]:
        """Yield what makes this rank's share of each step ready."""
        device = self._views.context.device
        drawn = ((each, (seed, epoch)) for each in self._input.draw(seed, epoch))
        return device.prepare_ahead(drawn, self._prepare)

    def _prepare(self, drawn: tuple[Sequence[Subgraph], tuple[int, int]]) -> LinkStep:
        subgraphs, seeds = drawn
        view = self._views.of_subgraphs(subgraphs)
        parts, before = [self._edges(np.zeros(0, np.int32), 0, (*seeds, 0))], 0
        for each in subgraphs:
            parts.append(self._edges(each.nodes, before, (*seeds, each.number)))
            before += len(each.nodes)
        features = self._graph.features[torch.from_numpy(view.nodes).long()]
        fields = zip(*parts, strict=True)
        needed = Needed(np.arange(before), *(np.concatenate(each) for each in fields))
        return LinkStep(view.graph, features.to(self._views.context.device.place), needed, None)

    def _edges(
        self, nodes: LocalIndices, before: int, seeds: tuple[int, ...]
    ) -> tuple[GlobalIndices, ...]:
        """Return sources, targets, wrong ends and relations of a subgraph's edges.

        Ends are places behind `before` rows.
        """
        lengths = self._starts[nodes + 1] - self._starts[nodes]
        ends = np.cumsum(lengths)
        places = np.arange(int(lengths.sum())) + np.repeat(
            self._starts[nodes] - (ends - lengths), lengths
        )
        edges = self._links.take(places)
        near = np.searchsorted(nodes, edges.sources)
        inside = near < len(nodes)
        inside[inside] = nodes[near[inside]] == edges.sources[inside]
        edges, sources = edges.where(inside), near[inside]
        targets = np.repeat(np.arange(len(nodes)), lengths)[inside]
        words = mixed(edges.words[:, None], *seeds, np.arange(self._count)[None, :])
        wrong = np.minimum((uniform(words) * len(nodes)).astype(np.int64), max(len(nodes) - 1, 0))
        return sources + before, targets + before, wrong + before, edges.relations


@collective
def link_steps(context: Context, graph: LocalGraph, links: Links) -> LinkSteps:
    """Return what draws the steps; the graph was read with its rows, without the edges of `links`.

    Raises
    ------
    CollectiveInputError
        When the graph has too many nodes to sample.
    """
    assert graph.rows is not None
    grid, config = context.grid, context.config
    nothing = np.zeros(graph.row_map.num_local, np.int64)
    home = HomeRows(
        row_map=graph.row_map,
        edges=graph.rows.edges,
        walked=graph.rows.both_ways,
        features=graph.features.to(torch.device("cpu")),
        labels=nothing,
        trained=nothing.astype(np.bool_),
        node_ids=graph.products.node_ids,
    )
    wanted = on_graph(context.wanted, directed=graph.facts.directed)
    with agree(grid.world):
        if config.sampling.sampler == "neighbour":
            check_fan_outs(config, wanted, graph.num_aggregations(config))
    with context.trace.span("read.whole"):
        views = SampledViews(context, share_whole(grid, home), wanted)
        shared = SharedLinks.share(grid, links)
    with context.trace.span("plan.sampling"):
        if config.sampling.sampler == "neighbour":
            return LinkBatches(views, shared)
        return LinkSubgraphs(views, shared)


def check_sampled_links(config: Config) -> None:
    """Raise `InputError` where an option does not apply to links on sampled subgraphs."""
    model, options = find_model(config.model.name), config.sampling
    check_sampled_options(config, model.aggregations)
    for given, key, why in (
        (model.reads_edges, "model.name", "models that read features of edges need whole graphs"),
        (options.topology != "shared", "sampling.topology", "leave it shared"),
        (
            options.sampler != "neighbour" and config.links.negatives != "uniform",
            "links.negatives",
            "wrong ends are drawn from a subgraph; leave it uniform, or set "
            "sampling.sampler=neighbour",
        ),
    ):
        if given:
            raise InputError(f"{key} does not apply to links.sampled = true: {why}")


@collective
def count_edges(grid: ProcessGrid, step: LinkStep) -> int:
    """Return the edges of a step on all ranks, at least 1."""
    if step.size is not None:
        return step.size
    return max(int(grid.layer.allreduce(len(step.needed.sources))), 1)
