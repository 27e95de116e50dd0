"""Normalisation coefficients from subgraphs that are sampled before training."""

from collections.abc import Iterable

import numpy as np

from hpcgnn.sampling.pool import SampleAhead
from hpcgnn.sampling.subgraph import Coefficients, SubgraphSource

__all__ = ["count_coverage"]


def count_coverage(
    source: SubgraphSource, numbers: Iterable[int], *, threads: int = 0, capacity: int = 8
) -> Coefficients:
    """Count in how many sampled sets each node and each entry is.

    Not collective.

    Sums over ranks of counts of different numbers are the counts of all of them.

    Parameters
    ----------
    source
        As training will use it, without coefficients and with another seed.
    numbers
        The sets to count.
    threads, capacity
        As for `SampleAhead`.
    """
    topology = source.topology
    nodes = np.zeros(topology.num_nodes, np.int32)
    entries = np.zeros(topology.num_entries, np.int32)
    num_subgraphs = 0
    with SampleAhead(source, numbers, threads=threads, capacity=capacity) as subgraphs:
        for each in subgraphs:
            nodes[each.nodes] += 1
            entries[each.pattern.entries] += 1
            num_subgraphs += 1
    return Coefficients(num_subgraphs, nodes, entries)
