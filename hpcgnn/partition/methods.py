"""Partitioners without an objective: contiguous blocks and random parts, balanced by work."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from hpcgnn.partition.parts import Partition
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.typing import LocalIndices, Offsets

__all__ = ["Partitioner", "block", "random"]

Partitioner: TypeAlias = Callable[[CSRGraph, int], Partition]
"""Maps (graph, number of parts) to a partition of the graph's nodes."""


def block() -> Partitioner:
    """Return a partitioner that cuts the nodes, in their order, into parts of equal work."""

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        return Partition(cut_evenly(graph.row_weights(), num_parts), num_parts)

    return partition


def random(seed: int = 0) -> Partitioner:
    """Return a partitioner that shuffles the nodes and cuts them into parts of equal work."""

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        order = np.random.default_rng(seed).permutation(graph.num_nodes)
        part = np.empty(graph.num_nodes, np.int32)
        part[order] = cut_evenly(graph.row_weights()[order], num_parts)
        return Partition(part, num_parts)

    return partition


def cut_evenly(weights: Offsets, num_parts: int) -> LocalIndices:
    """Return the part of each item when a sequence is cut into parts of nearly equal weight.

    Every cut aims at an equal share of what is left, so that one heavy item does not starve the
    parts after it. No part is empty while there are items enough; with fewer items than parts
    the last parts are empty.
    """
    num_items = weights.size
    before = np.zeros(num_items + 1, np.int64)
    np.cumsum(weights, out=before[1:])
    ends = np.full(num_parts, num_items, np.int64)
    start = 0
    for part in range(num_parts - 1):
        left = num_parts - part
        target = before[start] + (before[-1] - before[start]) / left
        cut = int(np.searchsorted(before, target))
        if cut > 0 and target - before[cut - 1] < before[min(cut, num_items)] - target:
            cut -= 1
        cut = min(max(cut, start + 1), max(num_items - left + 1, start + 1), num_items)
        ends[part] = start = cut
    return np.repeat(np.arange(num_parts, dtype=np.int32), np.diff(ends, prepend=0))
