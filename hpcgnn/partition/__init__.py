"""Partition a graph's nodes into parts of equal work, and permute its store accordingly.

A `Partitioner` maps (graph, number of parts) to a `Partition`; `random`, `block`, `metis` and
`volume_balanced` make partitioners, and `part_graph` partitions any CSR matrix by volume. `measure`
counts the rows that the parts exchange in one forward aggregation, exactly as training sends them;
`exchange_volume` counts those of every exchange.
"""

from hpcgnn.partition.metis import metis
from hpcgnn.partition.metrics import EXCHANGES, Exchange, exchange_volume, measure
from hpcgnn.partition.parts import Partition, Partitioner, block, random
from hpcgnn.partition.pattern import CSRGraph, read_pattern
from hpcgnn.partition.volume_balanced import part_graph, volume_balanced
