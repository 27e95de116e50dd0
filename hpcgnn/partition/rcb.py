"""Recursive coordinate bisection: parts of equal work from node positions, without edges.

A group of nodes is cut across the axis of its largest extent, at the point that divides its work in
the ratio of the halves' numbers of parts (Berger and Bokhari, 1987). Nodes are ordered by their
coordinate, and by their number if it is equal. Histograms of narrower and narrower ranges find the
point exactly, so that parts do not depend on the number of ranks.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from hpcgnn import watchdog
from hpcgnn.comm import RankGroup
from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.partition.parts import Partitioned
from hpcgnn.partition.pattern import choose_relations
from hpcgnn.partition.streaming import StreamedUnion
from hpcgnn.storage import GraphStore
from hpcgnn.storage.by_ranks import verify_by_ranks
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

NODES_PER_STEP = 1 << 18
"""Number of nodes that are processed at a time."""
BINS = 1 << 20
"""Number of bins in the histograms of all groups together."""
MOST_BITS = 16
"""A group has at most ``2 ** MOST_BITS`` bins."""

_SIGN = np.uint64(1 << 63)


def by_coordinates(ranks: RankGroup, store: GraphStore, options: argparse.Namespace) -> Partitioned:
    """Partition by the positions of nodes, on all ranks; `InputError` for a store without any."""
    with ranks.agree():
        if not store.box:
            raise InputError(
                f"{store.path}: its nodes have no positions to cut by; convert with --positions, "
                "or take --method volume"
            )
        relations = choose_relations(store, options.relations)
    if ranks.rank == 0:
        report("reading positions")
    verify_by_ranks(ranks, store)
    scratch = options.output.absolute().parent
    graph = StreamedUnion(store, relations, options.undirected, scratch, ranks)
    rows = graph.row_map
    began = time.perf_counter()
    work = np.maximum(graph.lengths(), 1)
    work = work.astype(np.min_scalar_type(int(work.max(initial=1))))
    with ranks.agree():
        positions = store.read_positions(rows.start, rows.stop)
    assert positions is not None
    part = PlacedNodes(ranks, positions, work).bisect(options.parts)
    del positions
    loads = np.zeros(options.parts, np.int64)
    np.add.at(loads, part, work)
    seconds = round(time.perf_counter() - began, 3)
    if ranks.rank == 0:
        report("counting what parts exchange")
    metrics = asdict(graph.measure(part, options.parts)) | {"seconds": seconds}
    return Partitioned(rows, part, ranks.sum(loads), metrics)


def ordered(values: FloatArray) -> NDArray[np.uint64]:
    """Map finite float64 to integers of the same order, with equal ones to equal integers."""
    # Adding 0 turns -0 into 0.
    bits = (values + 0.0).view(np.uint64)
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | _SIGN)


@dataclass(frozen=True, eq=False)
class PlacedNodes:
    """Nodes with positions and work, distributed over ranks in the order of their numbers.

    `positions` (num_local, D) float64 are finite; `work` (num_local,) are positive integers. Other
    memory is 4 bytes a node, and more only for nodes with equal coordinates.
    """

    ranks: RankGroup
    positions: FloatArray
    work: Array

    def bisect(self, num_parts: int) -> LocalIndices:
        """Return the part of each node, int32[num_local]; needs at least `num_parts` nodes."""
        part = np.zeros(len(self.work), np.int32)
        # For the group whose first part is i: its number of parts (0: none), its work, its nodes.
        sizes, totals = np.zeros(num_parts, np.int64), np.zeros((2, num_parts), np.int64)
        sizes[0] = num_parts
        totals[:, 0] = self.ranks.sum(np.array([self.work.sum(dtype=np.int64), len(self.work)]))
        while len(groups := np.flatnonzero(sizes > 1)):
            watchdog.beat()
            whole, all_parts = totals[:, groups], sizes[groups]
            level = _Level(self, part, groups, all_parts, whole)
            first, others = level.cut(), groups + level.halves
            totals[:, groups], totals[:, others] = first, whole - first
            sizes[groups], sizes[others] = level.halves, all_parts - level.halves
        return part


class _Level:
    """A level of the recursion: groups of nodes that are being cut in two.

    Group g has the nodes whose `part` is ``groups[g]``, ``sizes[g]`` parts, and the work and nodes
    `totals` (2, groups). Its cut is at a node whose `ordered` coordinate is from `_low` to `_high`;
    `_below` (2, groups) are the work and the number of nodes below `_low`.
    """

    def __init__(
        self, nodes: PlacedNodes, part: LocalIndices, groups: Offsets, sizes: Offsets, totals: Array
    ) -> None:
        self._nodes, self._part, self._sizes = nodes, part, sizes
        self.halves = sizes // 2
        self._number = np.full(int((groups + sizes).max()), -1, np.int64)
        self._number[groups] = np.arange(len(groups))
        self._share = totals[0] * self.halves
        self._goal = -(-self._share // sizes)
        # Each half must have at least as many nodes as parts.
        self._least, self._most = self.halves, totals[1] - (sizes - self.halves)
        self._below = np.zeros_like(totals)
        self._axis, self._low, self._high = self._extents()

    def cut(self) -> Array:
        """Move nodes to the second halves; return work and nodes (2, groups) of the first."""
        near = None
        while near is None or (self._low < self._high).any():
            self._narrow(near)
            near = self._settle(near)
        return self._divide(near)

    def _members(self, near: LocalIndices | None) -> Iterator[tuple[GlobalIndices, Offsets]]:
        """Yield nodes of the groups, and their groups; only those `near` the cuts unless None."""
        count = len(self._part) if near is None else len(near)
        for start in range(0, count, NODES_PER_STEP):
            stop = min(start + NODES_PER_STEP, count)
            nodes = np.arange(start, stop) if near is None else near[start:stop].astype(np.int64)
            number = self._number[self._part[nodes]]
            inside = number >= 0
            yield nodes[inside], number[inside]

    def _coordinates(self, nodes: GlobalIndices, number: Offsets) -> NDArray[np.uint64]:
        return ordered(self._nodes.positions[nodes, self._axis[number]])

    def _extents(self) -> tuple[Offsets, NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the axis of each group's largest extent, and its bounds on that axis."""
        axes, count = self._nodes.positions.shape[1], len(self._sizes)
        ends = np.full((2, axes, count), -np.inf)
        for nodes, number in self._members(None):
            for axis, values in enumerate(self._nodes.positions[nodes].T):
                np.maximum.at(ends[0, axis], number, values)
                np.maximum.at(ends[1, axis], number, -values)
        ends = self._nodes.ranks.max(ends)
        high, low = ends[0], -ends[1]
        # Halve first, as the difference of very large numbers overflows.
        longest = (high / 2 - low / 2).argmax(axis=0)
        every = np.arange(count)
        return longest, ordered(low[longest, every]), ordered(high[longest, every])

    def _narrow(self, near: LocalIndices | None) -> None:
        """Narrow the range of each group to the bin that contains its cut."""
        count, every = len(self._sizes), np.arange(len(self._sizes))
        bits = min(MOST_BITS, max(1, (BINS // count).bit_length() - 1))
        widths = (self._high - self._low).tolist()
        shifts = np.array([max(0, width.bit_length() - bits) for width in widths], np.uint64)
        sums = np.zeros((2, count << bits), np.int64)
        for nodes, number in self._members(near):
            steps = (self._coordinates(nodes, number) - self._low[number]) >> shifts[number]
            bins = (number << bits) + steps.astype(np.int64)
            np.add.at(sums[0], bins, self._nodes.work[nodes].astype(np.int64))
            np.add.at(sums[1], bins, 1)
        in_bins = self._nodes.ranks.sum(sums).reshape(2, count, -1)
        reached = np.cumsum(in_bins, axis=2) + self._below[:, :, None]
        chosen, least, most = (
            np.count_nonzero(reached[kind] < goal[:, None], axis=1)
            for kind, goal in ((0, self._goal), (1, self._least), (1, self._most))
        )
        chosen = np.clip(chosen, least, most)
        self._below = (reached - in_bins)[:, every, chosen]
        self._low += chosen.astype(np.uint64) << shifts
        width = np.minimum(self._high - self._low, (np.uint64(1) << shifts) - np.uint64(1))
        self._high = self._low + width

    def _settle(self, near: LocalIndices | None) -> LocalIndices:
        """Move nodes above their group's range to the second half; return those in the range."""
        within = [np.empty(0, np.int32)]
        for nodes, number in self._members(near):
            coordinates = self._coordinates(nodes, number)
            above = coordinates > self._high[number]
            self._part[nodes[above]] += self.halves[number[above]].astype(np.int32)
            stay = ~above & (coordinates >= self._low[number])
            within.append(nodes[stay].astype(np.int32))
        return np.concatenate(within)

    def _divide(self, near: LocalIndices) -> Array:
        """Cut the nodes at equal coordinates, in the order of their numbers, and move the rest.

        The cut is before or after the node that reaches the goal, where work is nearer the share.
        """
        ranks, count = self._nodes.ranks, len(self._sizes)
        near = near[np.argsort(self._number[self._part[near]], kind="stable")]
        number = self._number[self._part[near]]
        values = np.stack([self._nodes.work[near].astype(np.int64), np.ones(len(near), np.int64)])
        own = np.zeros((2, count), np.int64)
        for total, of_nodes in zip(own, values, strict=True):
            np.add.at(total, number, of_nodes)
        before = self._below + ranks.sum_before(own) - (np.cumsum(own, axis=1) - own)
        reached = np.cumsum(values, axis=1) + before[:, number]
        short = np.bincount(number[reached[0] < self._goal[number]], minlength=count)
        num_first = self._below[1] + ranks.sum(short.astype(np.int64)) + 1
        num_first = np.clip(num_first, self._least, self._most)
        last_node = np.zeros((2, count), np.int64)
        is_last = reached[1] == num_first[number]
        last_node[:, number[is_last]] = reached[0, is_last], values[0, is_last]
        up_to, work = ranks.sum(last_node)
        nearer = 2 * self._share < self._sizes * (2 * up_to - work)
        without = nearer & (num_first > self._least)
        num_first -= without
        moves = reached[1] > num_first[number]
        self._part[near[moves]] += self.halves[number[moves]].astype(np.int32)
        return np.stack([up_to - work * without, num_first])
