"""The inputs of sampled training steps: subgraphs, or batches with sampled neighbours."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.comm import ProcessGrid, allreduce_sum, raise_on_all, share_on_hosts
from hpcgnn.config.sampling import SamplingConfig
from hpcgnn.errors import InputError
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
from hpcgnn.train.sampled.views import SampledViews
from hpcgnn.train.sources.source import BatchExamples, BatchShare, StepData, SubgraphExamples
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

Result = TypeVar("Result")

_COUNTED = 1 << 62
"""Seed of the subgraphs that are counted before training; no model has this seed."""


@collective
def make_sampler(
    walked: Topology, config: SamplingConfig, shared: ProcessGrid | None = None
) -> Sampler:
    """Return the subgraph sampler of a configuration, with the seed of counted subgraphs.

    If all ranks draw from this graph, pass them as `shared`: the call is then collective, and
    tables are held once per host.
    """
    name, budget = config.sampler, config.budget
    common: dict[str, Any] = {"topology": walked, "seed": _COUNTED, "multiple": config.clip}
    if name == "walk":
        roots = max(budget // (config.walk_length + 1), 1)
        return RandomWalkSampler(**common, roots=roots, length=config.walk_length)
    if name == "edge":
        table = _table(shared, edge_weights(walked))
        return EdgeSampler(**common, draws=max(budget // 2, 1), table=table)
    if name == "node":
        return NodeSampler(**common, draws=budget, table=_table(shared, node_weights(walked)))
    return FrontierSampler(
        **common,
        walkers=config.walkers,
        budget=budget,
        enlargement=config.enlargement,
        entered=name == "multidimensional",
    )


def no_nodes(walked: Topology) -> Sampler:
    """Return a sampler of empty subgraphs, for a part that has nothing to draw."""
    return RandomWalkSampler(topology=walked, seed=_COUNTED, roots=0, length=0)


def _table(shared: ProcessGrid | None, weights: FloatArray) -> AliasTable:
    table = AliasTable.build(weights)
    if shared is None:
        return table
    return AliasTable(
        _once(shared, "sampling.table.thresholds", table.thresholds),
        _once(shared, "sampling.table.aliases", table.aliases),
    )


def _once(grid: ProcessGrid, name: str, whole: Array) -> Array:
    """Return an array, which every rank passes whole, in memory shared by the ranks of a host."""
    layer = grid.layer
    return share_on_hosts(grid, name, np.array_split(whole, layer.size)[layer.rank])


_NO_EDGES = (
    "sampling.sampler = 'edge', but the model aggregates over no edge; set another sampler, or for "
    "links links.disjoint = false"
)

_PROBED = 8
"""Subgraphs drawn to estimate the mean size."""


class StepInput(ABC):
    """Draws the inputs of an epoch's steps, as a function of seed and epoch."""

    views: SampledViews
    num_steps: int
    pool_bytes = 0
    """The most bytes that waited in a prefetch pool."""

    def at(self, seed: int, epoch: int) -> "StepInput":
        """Return the input of an epoch: here the same for all epochs."""
        return self

    def details(self) -> dict[str, int]:
        """Return this rank's sizes for the summary."""
        return {"pool_bytes_max": self.pool_bytes}

    def steps(self, seed: int, epoch: int) -> Iterator[Callable[[], StepData]]:
        """Yield, for each step, a function that prepares this rank's share of it."""
        return self.views.context.device.prepare_ahead(self.draw(seed, epoch), self.prepare)

    @abstractmethod
    def draw(self, seed: int, epoch: int) -> Iterator[Any]:
        """Yield this rank's share of each step, as it is drawn."""

    @abstractmethod
    def prepare(self, drawn: Any) -> StepData:
        """Return the data of a step on the model's device."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the summary's facts about an epoch."""

    def make_ahead(
        self, make: Callable[[Any], Result], items: Iterable[Any], least_depth: int = 1
    ) -> Iterator[Result]:
        """Yield the results of `make` on items, computed ahead by threads; see `Prefetch`."""
        config = self.views.context.config.sampling
        depth = max(config.ahead, least_depth)
        with Prefetch(make, items, threads=config.threads, depth=depth) as pool:
            for step in pool:
                self.pool_bytes = max(self.pool_bytes, pool.most_bytes)
                yield step


@dataclass(eq=False, kw_only=True)
class SubgraphInput(StepInput):
    """The subgraphs of each step; this rank draws those in `own_numbers`.

    Ranks that sample different graphs draw different random numbers: those of their lane. A
    subgraph has `mean_nodes` nodes, over all ranks; `num_counted` were counted for coefficients.
    """

    views: SampledViews
    examples: SubgraphExamples
    source: SubgraphSource
    own_numbers: range
    lane: int = 0
    num_lanes: int = 1
    mean_nodes: float
    num_counted: int
    num_steps: int

    @classmethod
    @collective
    def of_whole(cls, views: SampledViews, examples: SubgraphExamples) -> "SubgraphInput":
        """Prepare subgraphs of one graph that all ranks know, distributed over the ranks."""
        grid, graph, config = views.parts
        if config.sampler == "edge" and not int(graph.walked.indptr[graph.walked.num_roots]):
            raise_on_all(grid.world, InputError(_NO_EDGES))
        sampler = make_sampler(graph.walked, config, grid)
        source = SubgraphSource(sampler, edges=graph.edges)
        num_nodes = graph.edges.num_nodes
        mean_nodes = max(_mean_nodes(sampler, range(_PROBED)), 1.0)
        num_counted = int(np.ceil(config.coverage * num_nodes / mean_nodes))
        if num_counted > 0:
            numbers = range(grid.layer.rank, num_counted, grid.layer.size)
            counted = _count(source, numbers, config)
            source = replace(source, coefficients=_add_up(grid, counted, num_counted))
        bounds = _bounds(config.subgraphs, np.ones(grid.num_blocks, np.int64))
        return cls(
            views=views,
            examples=examples,
            source=source,
            own_numbers=range(bounds[grid.block], bounds[grid.block + 1]),
            mean_nodes=mean_nodes,
            num_counted=num_counted,
            num_steps=_num_steps(config, num_nodes, mean_nodes),
        )

    @classmethod
    @collective
    def of_part(cls, views: SampledViews, examples: SubgraphExamples) -> "SubgraphInput":
        """Prepare subgraphs of this rank's part; all ranks together use the budget once."""
        grid, graph, config = views.parts
        sizes = np.array(grid.layer.allgather(graph.edges.num_roots), np.int64)
        # A part that has nothing to draw gets no share of the budget, and empty subgraphs.
        walked = graph.walked
        can_draw = config.sampler != "edge" or int(walked.indptr[walked.num_roots]) > 0
        draws = grid.layer.allgather(can_draw * graph.edges.num_roots)
        budget, walkers = (
            int(np.diff(_bounds(total, np.array(draws, np.int64)))[grid.block])
            for total in (config.budget, config.walkers)
        )
        scaled = replace(config, budget=max(budget, 1), walkers=max(walkers, 1))
        sampler = make_sampler(walked, scaled) if budget > 0 else no_nodes(walked)
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
            examples=examples,
            source=source,
            own_numbers=range(config.subgraphs),
            lane=lane,
            num_lanes=num_lanes,
            mean_nodes=mean_nodes,
            num_counted=int(grid.layer.allreduce(num_counted)),
            num_steps=_num_steps(config, int(sizes.sum()), mean_nodes),
        )

    @override
    def draw(self, seed: int, epoch: int) -> Iterator[tuple[list[Subgraph], tuple[int, int]]]:
        config, own = self.views.context.config.sampling, np.array(self.own_numbers, np.int64)
        # Subgraphs are numbered over all epochs, so that a resumed run draws the next ones.
        firsts = (epoch * self.num_steps + np.arange(self.num_steps)) * config.subgraphs
        numbers = (firsts[:, None] + own).reshape(-1) * self.num_lanes + self.lane
        source = replace(self.source, sampler=replace(self.source.sampler, seed=seed))
        subgraphs = self.make_ahead(source, numbers.tolist(), len(own))
        for _ in range(self.num_steps):
            yield [next(subgraphs) for _ in own], (seed, epoch)

    @override
    def describe(self) -> dict[str, Any]:
        return {
            "steps_per_epoch": self.num_steps,
            "mean_nodes": self.mean_nodes,
            "counted_subgraphs": self.num_counted,
        }

    @override
    def prepare(self, drawn: tuple[list[Subgraph], tuple[int, int]]) -> StepData:
        subgraphs, seeds = drawn
        (view, union), put = self.views.of_subgraphs(subgraphs), self.views.context.device.put
        rows, targets = self.examples.inside(subgraphs, union.nodes, seeds)
        weights_T = None
        if rows is not None and union.loss_weights is not None:
            weights = torch.from_numpy(union.loss_weights)
            weights = weights.to(getattr(torch, self.views.context.config.train.dtype))
            weights_T = put(weights[rows])
        return StepData(
            view,
            self.views.features(union.nodes, seeds),
            put(targets) if isinstance(targets, Tensor) else targets,
            rows=None if rows is None else put(rows),
            weights=weights_T,
        )


_DrawnBatch: TypeAlias = tuple[LayeredSample, Any, int, tuple[int, int]]


class BatchInput(StepInput):
    """Batches of examples with sampled neighbours of their nodes.

    With `parts`, ranks know different examples, and each draws a share of a batch in proportion to
    its number. Otherwise all ranks draw the same batch, and each takes one piece of it. If runs are
    to be reproducible, there are ``sampling.subgraphs`` pieces for any number of ranks, and each
    rank takes some of them.
    """

    @collective
    def __init__(self, views: SampledViews, examples: BatchExamples, *, parts: bool) -> None:
        self.views, self.examples, self._parts = views, examples, parts
        grid, self._graph, self._config = views.parts
        self._block, self._num_blocks = grid.block, grid.num_blocks
        counts = grid.layer.allgather(len(examples)) if parts else [len(examples)]
        self._counts = np.array(counts, np.int64)
        self._total = int(self._counts.sum())
        self._size = min(self._config.budget, self._total)
        fixed = views.context.config.train.reproducible
        self._num_pieces = self._config.subgraphs if fixed else grid.num_blocks
        self.num_steps = self._config.steps or -(-self._total // self._size)

    @override
    def describe(self) -> dict[str, Any]:
        return {
            "steps_per_epoch": self.num_steps,
            f"{self.examples.unit}_per_step": self._size,
        }

    @override
    def draw(self, seed: int, epoch: int) -> Iterator[_DrawnBatch]:
        # Yield this rank's sample of each batch, its examples, the batch's size and the seeds.
        # An epoch takes the examples in a new order, repeated if it has more steps than needed.
        order = np.random.default_rng([seed, epoch]).permutation(len(self.examples))
        sampler = FanOutSampler(self._graph.edges, seed, self._config.fan_outs)
        # Made here, not in the threads, which must not communicate, even on a single rank.
        batches = [self._batch(order, step, (seed, epoch)) for step in range(self.num_steps)]
        lane, lanes = (self._block, self._num_blocks) if self._parts else (0, 1)

        def make(step: int) -> LayeredSample:
            number = (epoch * self.num_steps + step) * lanes + lane
            pieces = [sampler.sample(number, nodes) for nodes in batches[step][0]]
            return LayeredSample.side_by_side(pieces)

        samples = self.make_ahead(make, range(self.num_steps))
        for (_, items, size), sample in zip(batches, samples, strict=True):
            yield sample, items, size, (seed, epoch)

    @override
    def prepare(self, drawn: _DrawnBatch) -> StepData:
        sample, items, size, seeds = drawn
        view, inputs = self.views.of_layers(sample)
        features, targets = self.views.features(inputs, seeds), self.examples.targets(items)
        if isinstance(targets, Tensor):
            targets = self.views.context.device.put(targets)
        # With labels as inputs, only nodes with hidden labels are predicted: the size is not known.
        known = size if self._graph.label_inputs is None else None
        return StepData(view, features, targets, known)

    def _batch(
        self, order: GlobalIndices, step: int, seeds: tuple[int, int]
    ) -> tuple[Sequence[LocalIndices], Any, int]:
        """Return this rank's nodes of a batch by piece, their examples, and the batch's size."""
        first = step * self._size % self._total
        stop = min(first + self._size, self._total)
        if not self._parts:
            numbers, size = order[first:stop], stop - first
            bounds = _bounds(self._num_pieces, np.ones(self._num_blocks, np.int64))
            pieces = np.array_split(np.arange(size), self._num_pieces)
            own_pieces = pieces[bounds[self._block] : bounds[self._block + 1]] or [np.arange(0)]
            shares = (BatchShare(numbers, positions, seeds) for positions in own_pieces)
            drawn = list(map(self.examples.batch, shares))
            return [nodes for nodes, _ in drawn], [items for _, items in drawn], size
        # Cut every rank's order in proportion, so that all end an epoch in the same step.
        begins, ends = (self._counts * position // self._total for position in (first, stop))
        numbers = order[begins[self._block] : ends[self._block]]
        share = BatchShare(numbers, np.arange(len(numbers)), seeds)
        nodes, items = self.examples.batch(share)
        return [nodes], [items], int((ends - begins).sum())


def _mean_nodes(sampler: Sampler, numbers: range) -> float:
    return float(np.mean([len(nodes) for nodes in sampler.sample_each(numbers)]))


def _num_steps(config: SamplingConfig, num_nodes: int, mean_nodes: float) -> int:
    """Return the configured number of steps, or enough to draw as many nodes as there are."""
    per_step = max(mean_nodes, 1.0) * config.subgraphs
    return config.steps or int(np.ceil(num_nodes / per_step))


def _bounds(total: int, sizes: Offsets) -> Offsets:
    """Return bounds (len(sizes) + 1,) int64 that split `total` in proportion to sizes."""
    ends: Offsets = np.concatenate([[0], np.cumsum(sizes)])
    return total * ends // max(int(ends[-1]), 1)


def _count(source: SubgraphSource, numbers: range, config: SamplingConfig) -> Coefficients:
    return count_coverage(source, numbers, threads=config.threads, depth=config.ahead)


def _add_up(grid: ProcessGrid, counted: Coefficients, num_counted: int) -> Coefficients:
    """Return the summed counts of all ranks, held once per host."""
    for counts in (counted.nodes, counted.entries):
        allreduce_sum(grid.layer, counts)
    return Coefficients(
        num_counted,
        _once(grid, "sampling.counts.nodes", counted.nodes),
        _once(grid, "sampling.counts.entries", counted.entries),
    )
