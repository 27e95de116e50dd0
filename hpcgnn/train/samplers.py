"""The sampler that a configuration names."""

import numpy as np

from hpcgnn.comm import ProcessGrid, share_on_hosts
from hpcgnn.sampling import (
    AliasTable,
    EdgeSampler,
    FrontierSampler,
    NodeSampler,
    RandomWalkSampler,
    Sampler,
    Topology,
    edge_weights,
    node_weights,
)
from hpcgnn.train.sampling_config import SamplingConfig
from hpcgnn.typing import FloatArray

__all__ = ["make_sampler", "no_nodes"]

_COUNTED = 1 << 62
"""Seed of the subgraphs that are counted before training: no seed of a model."""


def make_sampler(
    walked: Topology, config: SamplingConfig, shared: ProcessGrid | None = None
) -> Sampler:
    """Return the sampler of a configuration, of subgraphs, with the seed of counted ones.

    Collective when the graph is shared.

    Parameters
    ----------
    walked
        The graph.
    config
        The configuration.
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
            topology=walked, seed=_COUNTED, multiple=clip, edges=max(budget // 2, 1), table=table
        )
    if name == "node":
        table = _table(shared, node_weights(walked))
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


def no_nodes(walked: Topology) -> Sampler:
    """Return a sampler of empty sets, for a part that has nothing to draw.

    Not collective.
    """
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
