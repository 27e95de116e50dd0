"""What the steps of sampled training work on: subgraphs, or batches with sampled neighbours."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_sum, share_on_hosts
from hpcgnn.sampling import (
    AliasTable,
    Coefficients,
    EdgeSampler,
    FanOutSampler,
    FrontierSampler,
    LayeredSample,
    NodeSampler,
    RandomWalkSampler,
    SampleAhead,
    Sampler,
    Subgraph,
    SubgraphSource,
    Topology,
    count_coverage,
    edge_weights,
    node_weights,
)
from hpcgnn.train.sampled_graph import SampledGraph
from hpcgnn.train.sampling_config import SamplingConfig
from hpcgnn.typing import FloatArray, LocalIndices

__all__ = ["BatchInput", "SubgraphInput"]

_COUNTED = 1 << 62
"""Seed of the subgraphs that are counted before training: no seed of a model."""

_PROBED = 8
"""Subgraphs that tell how large the others are."""


class SubgraphInput:
    """The subgraphs of each step, shared among the ranks.

    Collective.

    Parameters
    ----------
    grid, graph, config
        The ranks, the whole graph, the configuration.
    """

    def __init__(self, grid: ProcessGrid, graph: SampledGraph, config: SamplingConfig) -> None:
        self._grid, self._config = grid, config
        sampler = _make_sampler(grid, graph.walked, config)
        self._source = SubgraphSource(sampler, edges=graph.edges)
        sizes = [len(sampler.sample(number)) for number in range(_PROBED)]
        self.mean_nodes = max(float(np.mean(sizes)), 1.0)
        num_nodes = graph.edges.num_nodes
        self.num_counted = int(np.ceil(config.coverage * num_nodes / self.mean_nodes))
        if self.num_counted > 0:
            self._source = replace(self._source, coefficients=self._count())
        per_step = self.mean_nodes * config.subgraphs
        self.num_steps = config.steps or int(np.ceil(num_nodes / per_step))
        self.pool_bytes = 0

    def steps(self, seed: int, epoch: int) -> Iterator[list[Subgraph]]:
        """Yield this rank's subgraphs of each step; the k-th of a step is the same on any ranks.

        Not collective.
        """
        config, grid = self._config, self._grid
        mine = np.array_split(np.arange(config.subgraphs), grid.num_blocks)[grid.block]
        firsts = (epoch * self.num_steps + np.arange(self.num_steps)) * config.subgraphs
        numbers = (firsts[:, None] + mine).reshape(-1).tolist()
        source = replace(self._source, sampler=replace(self._source.sampler, seed=seed))
        ahead = max(config.ahead, len(mine))
        with SampleAhead(source, numbers, threads=config.threads, capacity=ahead) as pool:
            for _ in range(self.num_steps):
                yield [next(pool) for _ in mine]
                self.pool_bytes = max(self.pool_bytes, pool.most_bytes)

    def _count(self) -> Coefficients:
        """Return the coefficients, counted by all ranks, once on every host."""
        grid, config = self._grid, self._config
        numbers = range(grid.block, self.num_counted, grid.num_blocks)
        counted = count_coverage(
            self._source, numbers, threads=config.threads, capacity=config.ahead
        )
        for each in (counted.nodes, counted.entries):
            allreduce_sum(grid.layer, each)
        mine = [
            np.array_split(each, grid.num_blocks)[grid.block]
            for each in (counted.nodes, counted.entries)
        ]
        nodes = share_on_hosts(grid, "sampling.counts.nodes", mine[0])
        entries = share_on_hosts(grid, "sampling.counts.entries", mine[1])
        return Coefficients(self.num_counted, nodes, entries)


class BatchInput:
    """Batches of training nodes with sampled neighbours, shared among the ranks.

    Not collective.

    Parameters
    ----------
    grid, graph, config
        The ranks, the whole graph, the configuration.
    """

    def __init__(self, grid: ProcessGrid, graph: SampledGraph, config: SamplingConfig) -> None:
        self._grid, self._graph, self._config = grid, graph, config
        self._trained = np.flatnonzero(graph.trained).astype(np.int32)
        self.num_steps = config.steps or int(np.ceil(len(self._trained) / config.budget))
        self.pool_bytes = 0

    def steps(self, seed: int, epoch: int) -> Iterator[tuple[LayeredSample, int]]:
        """Yield this rank's share of each batch, and the size of the batch.

        Not collective. An epoch goes through the training nodes in a new order, again and again
        when it has more steps than that takes.
        """
        config = self._config
        order = np.random.default_rng([seed, epoch]).permutation(self._trained)
        sampler = FanOutSampler(self._graph.edges, seed, config.fan_outs)
        batches = [self._batch(order, step) for step in range(self.num_steps)]

        def make(step: int) -> LayeredSample:
            share = np.array_split(batches[step], self._grid.num_blocks)[self._grid.block]
            return sampler.sample(epoch * self.num_steps + step, np.sort(share))

        steps = range(self.num_steps)
        with SampleAhead(make, steps, threads=config.threads, capacity=config.ahead) as pool:
            for batch, sample in zip(batches, pool, strict=True):
                yield sample, len(batch)
                self.pool_bytes = max(self.pool_bytes, pool.most_bytes)

    def _batch(self, order: LocalIndices, step: int) -> LocalIndices:
        size = min(self._config.budget, len(order))
        first = step * size % len(order)
        return order[first : first + size]


def _make_sampler(grid: ProcessGrid, walked: Topology, config: SamplingConfig) -> Sampler:
    name, budget, clip = config.sampler, config.budget, config.clip
    if name == "walk":
        roots = max(budget // (config.walk_length + 1), 1)
        return RandomWalkSampler(
            topology=walked, seed=_COUNTED, multiple=clip, roots=roots, length=config.walk_length
        )
    if name == "edge":
        table = _share_table(grid, edge_weights(walked))
        return EdgeSampler(
            topology=walked, seed=_COUNTED, multiple=clip, edges=max(budget // 2, 1), table=table
        )
    if name == "node":
        table = _share_table(grid, node_weights(walked))
        return NodeSampler(topology=walked, seed=_COUNTED, multiple=clip, nodes=budget, table=table)
    return FrontierSampler(
        topology=walked,
        seed=_COUNTED,
        multiple=clip,
        walkers=config.walkers,
        budget=budget,
        enlargement=config.enlargement,
        entered=name == "multidimensional",
    )


def _share_table(grid: ProcessGrid, weights: FloatArray) -> AliasTable:
    """Return the alias table of `weights`, once on every host."""
    table = AliasTable.build(weights)
    arrays = (table.thresholds, table.aliases)
    mine = [np.array_split(each, grid.num_blocks)[grid.block] for each in arrays]
    thresholds = share_on_hosts(grid, "sampling.table.thresholds", mine[0])
    return AliasTable(thresholds, share_on_hosts(grid, "sampling.table.aliases", mine[1]))
