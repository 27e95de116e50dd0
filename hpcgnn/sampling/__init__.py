"""Sampled subgraphs for minibatch training of graph networks.

A `SubgraphSource` induces the subgraphs of a `Sampler`'s nodes, with the coefficients that turn
their sums into estimates for the whole graph. Everything is numpy and native code on one rank, and
depends only on a seed and the number of the sample.
"""

from hpcgnn.sampling.fan_out import FanOutLayer, FanOutSampler, LayeredSample
from hpcgnn.sampling.prefetch import Prefetch
from hpcgnn.sampling.samplers import (
    AliasTable,
    EdgeSampler,
    FrontierSampler,
    NodeSampler,
    RandomWalkSampler,
    Sampler,
    edge_table,
    edge_weights,
    node_table,
    node_weights,
)
from hpcgnn.sampling.subgraph import (
    Coefficients,
    SampledPattern,
    Subgraph,
    SubgraphSource,
    count_coverage,
    induce,
)
from hpcgnn.sampling.topology import Topology
