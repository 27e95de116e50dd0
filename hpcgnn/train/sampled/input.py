"""What the steps of sampled training work on: subgraphs, or batches with sampled neighbours."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum, share_on_hosts
from hpcgnn.config.sampling import SamplingConfig
from hpcgnn.nn import GraphView, NodeFeatures
from hpcgnn.sampling import (
    AliasTable,
    Coefficients,
    EdgeSampler,
    FanOutSampler,
    FrontierSampler,
    LayeredSample,
    NodeSampler,
    Prefetch,
    RandomWalkSampler,
    Sampler,
    Subgraph,
    SubgraphSource,
    Topology,
    count_coverage,
    edge_weights,
    node_weights,
)
from hpcgnn.spmd import collective
from hpcgnn.train.sampled.graph import SampledGraph
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.typing import FloatArray, LocalIndices, Offsets

Ready = TypeVar("Ready")
Made = TypeVar("Made")

_COUNTED = 1 << 62
"""Seed of the subgraphs that are counted before training: no seed of a model."""


@collective
def make_sampler(
    walked: Topology, config: SamplingConfig, shared: ProcessGrid | None = None
) -> Sampler:
    """Return the sampler of a configuration, of subgraphs, with the seed of counted ones.

    Collective when the graph is shared.

    Parameters
    ----------
    shared
        The ranks, when all of them draw from this graph: tables are then held once on every host.
    """
    name, budget, clip = config.sampler, config.budget, config.clip
    if name == "walk":
        roots = max(budget // (config.walk_length + 1), 1)
        return RandomWalkSampler(
            topology=walked, seed=_COUNTED, multiple=clip, roots=roots, length=config.walk_length
        )
    if name == "edge":
        table = _table(shared, edge_weights(walked))
        return EdgeSampler(
            topology=walked, seed=_COUNTED, multiple=clip, draws=max(budget // 2, 1), table=table
        )
    if name == "node":
        table = _table(shared, node_weights(walked))
        return NodeSampler(topology=walked, seed=_COUNTED, multiple=clip, draws=budget, table=table)
    return FrontierSampler(
        topology=walked,
        seed=_COUNTED,
        multiple=clip,
        walkers=config.walkers,
        budget=budget,
        enlargement=config.enlargement,
        entered=name == "multidimensional",
    )


def no_nodes(walked: Topology) -> Sampler:
    """Return a sampler of empty sets, for a part that has nothing to draw."""
    return RandomWalkSampler(topology=walked, seed=_COUNTED, roots=0, length=0)


def _table(shared: ProcessGrid | None, weights: FloatArray) -> AliasTable:
    table = AliasTable.build(weights)
    if shared is None:
        return table
    thresholds, aliases = (
        np.array_split(each, shared.num_blocks)[shared.block]
        for each in (table.thresholds, table.aliases)
    )
    return AliasTable(
        share_on_hosts(shared, "sampling.table.thresholds", thresholds),
        share_on_hosts(shared, "sampling.table.aliases", aliases),
    )


_PROBED = 8
"""Subgraphs that tell how large the others are."""


@dataclass(frozen=True, eq=False)
class StepData:
    """What a step of the model needs, where the model is.

    Parameters
    ----------
    view, features, labels
        What the model sees, and the labels of the rows that count.
    size
        Of a batch, over all ranks; None: as many as the subgraphs of all ranks hold.
    trained, weights
        Of subgraphs: the rows that count, and the factors of their losses; None: all, and ones.
    """

    view: GraphView
    features: NodeFeatures
    labels: Tensor
    size: int | None = None
    trained: Tensor | None = None
    weights: Tensor | None = None


class StepInput(ABC, Generic[Ready]):
    """Draws what the steps of an epoch work on; a function of seed and epoch."""

    views: SampledViews
    num_steps: int
    pool_bytes = 0
    """The most bytes that waited in a pool."""

    def steps(self, seed: int, epoch: int) -> Iterator[Callable[[], Ready]]:
        """Yield, for each step, what makes this rank's share of it ready."""
        return self.views.context.device.prepare_ahead(self.draw(seed, epoch), self.prepare)

    @abstractmethod
    def draw(self, seed: int, epoch: int) -> Iterator[Any]:
        """Yield this rank's share of each step, as it is drawn."""

    @abstractmethod
    def prepare(self, drawn: Any) -> Ready:
        """Return what a step works on, where the model is."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what the summary says of an epoch."""

    def make_ahead(
        self, make: Callable[[Any], Made], items: Iterable[Any], least_depth: int = 1
    ) -> Iterator[Made]:
        """Yield what threads make of items, ahead of their use; see `Prefetch`."""
        config = self.views.context.config.sampling
        depth = max(config.ahead, least_depth)
        with Prefetch(make, items, threads=config.threads, depth=depth) as pool:
            for made in pool:
                self.pool_bytes = max(self.pool_bytes, pool.most_bytes)
                yield made


@dataclass(eq=False, kw_only=True)
class SubgraphInput(StepInput[StepData]):
    """The subgraphs of each step.

    Parameters
    ----------
    views
        Makes what models see of them.
    mine
        Which of the subgraphs of a step are this rank's.
    lane, num_lanes
        Ranks that sample different graphs draw different numbers: those of their lane.
    mean_nodes
        Of a subgraph, on all ranks together.
    num_counted
        Subgraphs that were counted for coefficients.
    num_steps
        Of an epoch.
    """

    views: SampledViews
    source: SubgraphSource
    mine: range
    lane: int = 0
    num_lanes: int = 1
    mean_nodes: float
    num_counted: int
    num_steps: int

    @classmethod
    @collective
    def of_whole(cls, views: SampledViews) -> "SubgraphInput":
        """Prepare subgraphs of one graph that all ranks know, and share them among the ranks."""
        grid, graph, config = views.parts
        sampler = make_sampler(graph.walked, config, grid)
        source = SubgraphSource(sampler, edges=graph.edges)
        num_nodes = graph.edges.num_nodes
        mean_nodes = max(_mean_nodes(sampler, range(_PROBED)), 1.0)
        num_counted = int(np.ceil(config.coverage * num_nodes / mean_nodes))
        if num_counted > 0:
            numbers = range(grid.block, num_counted, grid.num_blocks)
            counted = _count(source, numbers, config)
            source = replace(source, coefficients=_add_up(grid, counted, num_counted))
        bounds = _bounds(config.subgraphs, np.ones(grid.num_blocks, np.int64))
        return cls(
            views=views,
            source=source,
            mine=range(bounds[grid.block], bounds[grid.block + 1]),
            mean_nodes=mean_nodes,
            num_counted=num_counted,
            num_steps=_num_steps(config, num_nodes, mean_nodes),
        )

    @classmethod
    @collective
    def of_part(cls, views: SampledViews) -> "SubgraphInput":
        """Prepare subgraphs of this rank's part; those of all parts make one of the budget."""
        grid, graph, config = views.parts
        sizes = np.array(grid.layer.allgather(graph.edges.num_roots), np.int64)
        # A part that can draw nothing gets no share of the budget, and empty subgraphs.
        draws = grid.layer.allgather(_can_draw(graph, config) * graph.edges.num_roots)
        budget, walkers = (
            int(np.diff(_bounds(total, np.array(draws, np.int64)))[grid.block])
            for total in (config.budget, config.walkers)
        )
        mine = replace(config, budget=max(budget, 1), walkers=max(walkers, 1))
        sampler = make_sampler(graph.walked, mine) if budget > 0 else no_nodes(graph.walked)
        source = SubgraphSource(sampler, edges=graph.edges)
        lane, num_lanes = grid.block, grid.num_blocks
        held = _mean_nodes(sampler, range(lane, _PROBED * num_lanes, num_lanes))
        mean_nodes = float(grid.layer.allreduce(held))
        num_counted = int(np.ceil(config.coverage * graph.edges.num_roots / max(held, 1.0)))
        if config.coverage > 0:
            numbers = range(lane, num_counted * num_lanes, num_lanes)
            source = replace(source, coefficients=_count(source, numbers, config))
        return cls(
            views=views,
            source=source,
            mine=range(config.subgraphs),
            lane=lane,
            num_lanes=num_lanes,
            mean_nodes=mean_nodes,
            num_counted=int(grid.layer.allreduce(num_counted)),
            num_steps=_num_steps(config, int(sizes.sum()), mean_nodes),
        )

    def draw(self, seed: int, epoch: int) -> Iterator[list[Subgraph]]:
        """Yield this rank's subgraphs of each step."""
        config, mine = self.views.context.config.sampling, np.array(self.mine, np.int64)
        # Subgraphs are numbered through all epochs, so that a resumed run draws what comes next.
        firsts = (epoch * self.num_steps + np.arange(self.num_steps)) * config.subgraphs
        numbers = (firsts[:, None] + mine).reshape(-1) * self.num_lanes + self.lane
        source = replace(self.source, sampler=replace(self.source.sampler, seed=seed))
        subgraphs = self.make_ahead(source, numbers.tolist(), len(mine))
        for _ in range(self.num_steps):
            yield [next(subgraphs) for _ in mine]

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch, and the sizes of subgraphs."""
        return {
            "steps_per_epoch": self.num_steps,
            "mean_nodes": self.mean_nodes,
            "counted_subgraphs": self.num_counted,
        }

    def prepare(self, drawn: list[Subgraph]) -> StepData:
        """Return what the model needs of subgraphs."""
        graph, device = self.views.graph, self.views.context.device
        view = self.views.of_subgraphs(drawn)
        nodes_N = _rows(view.nodes)
        trained_N = torch.from_numpy(graph.trained)[nodes_N]
        labels, weights_T = graph.labels[nodes_N[trained_N]], None
        if view.weights is not None:
            weights = torch.from_numpy(view.weights)
            weights = weights.to(getattr(torch, self.views.context.config.train.dtype))
            weights_T = device.put(weights[trained_N])
        features, put = self.views.features(view.nodes), device.put
        return StepData(
            view.graph, features, put(labels), trained=put(trained_N), weights=weights_T
        )


class BatchInput(StepInput[StepData]):
    """Batches of training nodes with sampled neighbours.

    Parameters
    ----------
    views
        Makes what models see of them.
    parts
        Ranks know different training nodes: each draws a share of a batch in proportion to its
        own. Otherwise all draw the same batch, and each takes a piece of it.
    """

    @collective
    def __init__(self, views: SampledViews, *, parts: bool) -> None:
        self.views, self._parts = views, parts
        grid, graph, config = self._grid, self._graph, self._config = views.parts
        self._trained = np.flatnonzero(graph.trained).astype(np.int32)
        counts = grid.layer.allgather(len(self._trained)) if parts else [len(self._trained)]
        self._counts = np.array(counts, np.int64)
        self._total = int(self._counts.sum())
        self.num_steps = config.steps or int(np.ceil(self._total / config.budget))

    def describe(self) -> dict[str, Any]:
        """Return the steps of an epoch."""
        return {"steps_per_epoch": self.num_steps}

    def draw(self, seed: int, epoch: int) -> Iterator[tuple[LayeredSample, int]]:
        """Yield this rank's share of each batch, and the size of the batch.

        An epoch goes through the training nodes in a new order, again and again
        when it has more steps than that takes.
        """
        config, grid = self._config, self._grid
        order = np.random.default_rng([seed, epoch]).permutation(self._trained)
        sampler = FanOutSampler(self._graph.edges, seed, config.fan_outs)
        batches = [self._batch(order, step) for step in range(self.num_steps)]
        lane, lanes = (grid.block, grid.num_blocks) if self._parts else (0, 1)

        def make(step: int) -> LayeredSample:
            number = (epoch * self.num_steps + step) * lanes + lane
            return sampler.sample(number, np.sort(batches[step][0]))

        samples = self.make_ahead(make, range(self.num_steps))
        for (_, size), sample in zip(batches, samples, strict=True):
            yield sample, size

    def prepare(self, drawn: tuple[LayeredSample, int]) -> StepData:
        """Return what the model needs of a batch."""
        (sample, size), put = drawn, self.views.context.device.put
        view, inputs = self.views.of_layers(sample)
        labels = self._graph.labels[_rows(sample.layers[-1].outputs)]
        return StepData(view, self.views.features(inputs), put(labels), size)

    def _batch(self, order: LocalIndices, step: int) -> tuple[LocalIndices, int]:
        """Return this rank's training nodes of a batch, and how many all ranks have."""
        size = min(self._config.budget, self._total)
        first = step * size % self._total
        stop, block = min(first + size, self._total), self._grid.block
        if not self._parts:
            piece = np.array_split(order[first:stop], self._grid.num_blocks)[block]
            return piece, stop - first
        # Proportional cuts of every rank's order: all ranks end an epoch in the same step.
        begins, ends = (self._counts * each // self._total for each in (first, stop))
        return order[begins[block] : ends[block]], int((ends - begins).sum())


def _mean_nodes(sampler: Sampler, numbers: range) -> float:
    return float(np.mean([len(each) for each in sampler.sample_each(numbers)]))


def _num_steps(config: SamplingConfig, num_nodes: int, mean_nodes: float) -> int:
    """Return the steps that draw as many nodes as there are, unless the configuration says more."""
    per_step = max(mean_nodes, 1.0) * config.subgraphs
    return config.steps or int(np.ceil(num_nodes / per_step))


def _can_draw(graph: SampledGraph, config: SamplingConfig) -> bool:
    """Return whether a part has what the sampler draws."""
    walked = graph.walked
    return config.sampler != "edge" or int(walked.indptr[walked.num_roots]) > 0


def _bounds(total: int, sizes: Offsets) -> Offsets:
    """Return (len(sizes) + 1,) int64 from 0: `total` dealt out in proportion to sizes."""
    ends: Offsets = np.concatenate([[0], np.cumsum(sizes)])
    return total * ends // max(int(ends[-1]), 1)


def _count(source: SubgraphSource, numbers: range, config: SamplingConfig) -> Coefficients:
    return count_coverage(source, numbers, threads=config.threads, depth=config.ahead)


def _add_up(grid: ProcessGrid, counted: Coefficients, num_counted: int) -> Coefficients:
    """Return the counts of all ranks, once on every host."""
    for each in (counted.nodes, counted.entries):
        allreduce_sum(grid.layer, each)
    nodes, entries = (
        np.array_split(each, grid.num_blocks)[grid.block]
        for each in (counted.nodes, counted.entries)
    )
    return Coefficients(
        num_counted,
        share_on_hosts(grid, "sampling.counts.nodes", nodes),
        share_on_hosts(grid, "sampling.counts.entries", entries),
    )


def _rows(nodes: LocalIndices) -> Tensor:
    return torch.from_numpy(nodes).long()
