"""What the steps of sampled training work on: subgraphs, or batches with sampled neighbours."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_sum, share_on_hosts
from hpcgnn.sampling import (
    Coefficients,
    FanOutSampler,
    LayeredSample,
    SampleAhead,
    Sampler,
    Subgraph,
    SubgraphSource,
    count_coverage,
)
from hpcgnn.train.sampled_graph import SampledGraph
from hpcgnn.train.samplers import make_sampler, no_nodes
from hpcgnn.train.sampling_config import SamplingConfig
from hpcgnn.typing import LocalIndices, Offsets

__all__ = ["BatchInput", "SubgraphInput"]

_PROBED = 8
"""Subgraphs that tell how large the others are."""


@dataclass(eq=False, kw_only=True)
class SubgraphInput:
    """The subgraphs of each step.

    Parameters
    ----------
    source
        Makes them.
    config
        The configuration.
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

    source: SubgraphSource
    config: SamplingConfig
    mine: range
    lane: int = 0
    num_lanes: int = 1
    mean_nodes: float
    num_counted: int
    num_steps: int
    pool_bytes: int = field(default=0, init=False)
    """The most bytes that waited in a pool."""

    @classmethod
    def of_whole(
        cls, grid: ProcessGrid, graph: SampledGraph, config: SamplingConfig
    ) -> "SubgraphInput":
        """Prepare subgraphs of one graph that all ranks know, and share them among the ranks.

        Collective.
        """
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
            source=source,
            config=config,
            mine=range(bounds[grid.block], bounds[grid.block + 1]),
            mean_nodes=mean_nodes,
            num_counted=num_counted,
            num_steps=_num_steps(config, num_nodes, mean_nodes),
        )

    @classmethod
    def of_part(
        cls, grid: ProcessGrid, graph: SampledGraph, config: SamplingConfig
    ) -> "SubgraphInput":
        """Prepare subgraphs of this rank's part; those of all parts make one of the budget.

        Collective.
        """
        sizes = np.array(grid.layer.allgather(graph.edges.num_roots), np.int64)
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
            source=source,
            config=config,
            mine=range(config.subgraphs),
            lane=lane,
            num_lanes=num_lanes,
            mean_nodes=mean_nodes,
            num_counted=int(grid.layer.allreduce(num_counted)),
            num_steps=_num_steps(config, int(sizes.sum()), mean_nodes),
        )

    def steps(self, seed: int, epoch: int) -> Iterator[list[Subgraph]]:
        """Yield this rank's subgraphs of each step.

        Not collective.
        """
        config, mine = self.config, np.array(self.mine, np.int64)
        firsts = (epoch * self.num_steps + np.arange(self.num_steps)) * config.subgraphs
        numbers = (firsts[:, None] + mine).reshape(-1) * self.num_lanes + self.lane
        source = replace(self.source, sampler=replace(self.source.sampler, seed=seed))
        threads, ahead = config.threads, max(config.ahead, len(mine))
        with SampleAhead(source, numbers.tolist(), threads=threads, capacity=ahead) as pool:
            for _ in range(self.num_steps):
                yield [next(pool) for _ in mine]
                self.pool_bytes = max(self.pool_bytes, pool.most_bytes)


class BatchInput:
    """Batches of training nodes with sampled neighbours.

    Collective.

    Parameters
    ----------
    grid, graph, config
        The ranks, what is sampled, and how.
    parts
        Ranks know different training nodes: each draws a share of a batch in proportion to its
        own. Otherwise all draw the same batch, and each takes a piece of it.
    """

    def __init__(
        self, grid: ProcessGrid, graph: SampledGraph, config: SamplingConfig, *, parts: bool
    ) -> None:
        self._grid, self._graph, self._config, self._parts = grid, graph, config, parts
        self._trained = np.flatnonzero(graph.trained).astype(np.int32)
        counts = grid.layer.allgather(len(self._trained)) if parts else [len(self._trained)]
        self._counts = np.array(counts, np.int64)
        self._total = int(self._counts.sum())
        self.num_steps = config.steps or int(np.ceil(self._total / config.budget))
        self.pool_bytes = 0

    def steps(self, seed: int, epoch: int) -> Iterator[tuple[LayeredSample, int]]:
        """Yield this rank's share of each batch, and the size of the batch.

        Not collective. An epoch goes through the training nodes in a new order, again and again
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

        steps = range(self.num_steps)
        with SampleAhead(make, steps, threads=config.threads, capacity=config.ahead) as pool:
            for (_, size), sample in zip(batches, pool, strict=True):
                yield sample, size
                self.pool_bytes = max(self.pool_bytes, pool.most_bytes)

    def _batch(self, order: LocalIndices, step: int) -> tuple[LocalIndices, int]:
        """Return this rank's training nodes of a batch, and how many all ranks have."""
        size = min(self._config.budget, self._total)
        first = step * size % self._total
        stop, block = min(first + size, self._total), self._grid.block
        if not self._parts:
            piece = np.array_split(order[first:stop], self._grid.num_blocks)[block]
            return piece, stop - first
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
    return count_coverage(source, numbers, threads=config.threads, capacity=config.ahead)


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
