"""Partitions, and the partitioners without an objective: blocks and random parts."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.errors import InputError, instead_of
from hpcgnn.partition.pattern import CSRGraph
from hpcgnn.typing import GlobalIndices, LocalIndices, Offsets

METHODS = ("metis", "volume", "streaming", "rcb", "random", "block")
"""Names of partitioners on the command line."""

FROM_FILE = "file:"
"""Prefix, on the command line, of the name of a file with the part number of each node."""


def method(text: str) -> str:
    """Return the name of a method, for argparse."""
    if text in METHODS or (text.startswith(FROM_FILE) and text != FROM_FILE):
        return text
    remedy = instead_of(text, [*METHODS, f"{FROM_FILE}FILE"])
    raise argparse.ArgumentTypeError(f"{text!r}: {remedy}")


@dataclass(frozen=True)
class Partition:
    """A part number for every node: `part` int32[n] in [0, num_parts); a part may be empty.

    `winner` is the candidate that it was refined from, if the partitioner compares candidates.
    """

    part: LocalIndices
    num_parts: int
    winner: str | None = None

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return int(self.part.size)

    def validate(self) -> None:
        """Check shape, dtype and range; raise ValueError naming the first wrong node."""
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}: at least 1 is needed")
        if self.part.ndim != 1 or self.part.dtype != np.int32:
            raise ValueError(f"part is {self.part.dtype}{self.part.shape}: int32[n] is needed")
        wrong = np.flatnonzero((self.part < 0) | (self.part >= self.num_parts))
        if wrong.size:
            node = int(wrong[0])
            raise ValueError(f"node {node} is in part {self.part[node]} of {self.num_parts}")

    def sizes(self) -> Offsets:
        """Return the number of nodes of each part, int64[K]."""
        return np.bincount(self.part, minlength=self.num_parts).astype(np.int64)

    def permutation(self) -> GlobalIndices:
        """Return the old node at each new position, int64[n]; parts keep the old order inside."""
        return np.argsort(self.part, kind="stable").astype(np.int64, copy=False)

    def row_starts(self) -> Offsets:
        """Return the first new row of each part and n at the end, int64[K + 1]."""
        return np.concatenate([[0], np.cumsum(self.sizes())])


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A partition in which each rank holds the parts of a range of nodes.

    `row_map` gives the ranges; `part` (num_local,) int32 are the parts of this rank's nodes. `work`
    (K,) int64 are the non-zeros of all parts, `metrics` those of the whole partition.
    """

    row_map: RowMap
    part: LocalIndices
    work: Offsets
    metrics: dict[str, Any]


Partitioner: TypeAlias = Callable[[CSRGraph, int], Partition]
"""Maps (graph, number of parts) to a partition of the graph's nodes."""


def block() -> Partitioner:
    """Return a partitioner that divides the nodes, in their order, into parts of equal work."""

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        return Partition(cut_evenly(graph.row_weights(), num_parts), num_parts)

    return partition


def given(parts: LocalIndices) -> Partitioner:
    """Return a partitioner that gives every node its part in `parts`, int32[n].

    It raises `InputError` if a part is not below the number of parts, or if the number of nodes
    differs.
    """

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        if len(parts) != graph.num_nodes:
            raise InputError(f"{len(parts):,} part numbers for {graph.num_nodes:,} nodes")
        partition = Partition(parts, num_parts)
        try:
            partition.validate()
        except ValueError as error:
            raise InputError(f"{error}; give the number of parts as --parts") from None
        return partition

    return partition


def random(seed: int = 0) -> Partitioner:
    """Return a partitioner that shuffles the nodes and divides them into parts of equal work."""

    def partition(graph: CSRGraph, num_parts: int) -> Partition:
        order = np.random.default_rng(seed).permutation(graph.num_nodes)
        part = np.empty(graph.num_nodes, np.int32)
        part[order] = cut_evenly(graph.row_weights()[order], num_parts)
        return Partition(part, num_parts)

    return partition


def cut_evenly(weights: Offsets, num_parts: int) -> LocalIndices:
    """Divide a sequence into parts of nearly equal weight and return the part of each item.

    Every part gets an equal share of the remaining weight, so that one heavy item does not starve
    the parts after it. No part is empty if there are enough items; otherwise the last parts are.
    """
    num_items = weights.size
    before = np.concatenate([[0], np.cumsum(weights)])
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
