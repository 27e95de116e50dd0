"""Sampled subgraphs: what minibatch training of graph networks works on.

A `SubgraphSource` induces the subgraphs of a `Sampler`'s nodes, with the coefficients that make
their sums estimates of the whole graph's. All of it is numpy and native code, on one rank, and a
function of seed and number.
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
