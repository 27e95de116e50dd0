"""Recursive coordinate bisection: parts of equal work from where nodes are, without their edges.

A group of nodes is cut across the axis on which it extends farthest, at the place that divides its
work as its numbers of parts are divided (Berger and Bokhari, 1987). Nodes are in the order of their
coordinate, and of their number where it is equal; the place is found exactly, by histograms of
narrower and narrower ranges, so that parts do not depend on the number of ranks.
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
from hpcgnn.partition.streaming import StreamedGraph
from hpcgnn.storage import GraphStore
from hpcgnn.storage.by_ranks import verify_by_ranks
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

NODES_PER_STEP = 1 << 18
"""Nodes that are looked at together."""
BINS = 1 << 20
"""Of the histograms of all groups together."""
MOST_BITS = 16
"""Of the number of bins of one group."""

_SIGN = np.uint64(1 << 63)


def by_coordinates(ranks: RankGroup, store: GraphStore, options: argparse.Namespace) -> Partitioned:
    """Partition by the positions of nodes, on all ranks; `InputError` for a store without."""
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
    graph = StreamedGraph(store, relations, options.undirected, scratch, ranks)
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
    """Return numbers that are in the order of finite float64, and equal where those are."""
    # Adding 0 makes -0 the 0 that it equals.
    bits = (values + 0.0).view(np.uint64)
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | _SIGN)


@dataclass(frozen=True, eq=False)
class PlacedNodes:
    """Nodes with positions and work, divided among ranks in the order of their numbers.

    `positions` (num_local, D) float64 are finite, `work` (num_local,) are integers from 1 on.
    Memory beside both is 4 bytes a node, and more only for nodes that stand at equal coordinates.
    """

    ranks: RankGroup
    positions: FloatArray
    work: Array

    def bisect(self, num_parts: int) -> LocalIndices:
        """Return the part of each node, int32[num_local]; there are at least `num_parts` nodes."""
        part = np.zeros(len(self.work), np.int32)
        # How many parts the group has that begins at a part, or 0; its work, and its nodes.
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
    """Groups of nodes that are cut in two, as far as it is known where.

    Group g has the nodes whose `part` is ``groups[g]``, so many parts as `sizes` tells, and the
    work and nodes `totals` (2, groups). It is cut at a node whose number of `ordered` is between
    its `low` and its `high`; `below` (2, groups) are work and nodes of what is less than that.
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
        # Neither half has fewer nodes than parts.
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
        """Yield nodes of the groups, and their groups; `near` are those to look at, None: all."""
        count = len(self._part) if near is None else len(near)
        for start in range(0, count, NODES_PER_STEP):
            stop = min(start + NODES_PER_STEP, count)
            nodes = np.arange(start, stop) if near is None else near[start:stop].astype(np.int64)
            number = self._number[self._part[nodes]]
            inside = number >= 0
            yield nodes[inside], number[inside]

    def _places(self, nodes: GlobalIndices, number: Offsets) -> NDArray[np.uint64]:
        return ordered(self._nodes.positions[nodes, self._axis[number]])

    def _extents(self) -> tuple[Offsets, NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the axis on which each group extends farthest, and where it begins and ends."""
        axes, count = self._nodes.positions.shape[1], len(self._sizes)
        ends = np.full((2, axes, count), -np.inf)
        for nodes, number in self._members(None):
            for axis, values in enumerate(self._nodes.positions[nodes].T):
                np.maximum.at(ends[0, axis], number, values)
                np.maximum.at(ends[1, axis], number, -values)
        ends = self._nodes.ranks.max(ends)
        high, low = ends[0], -ends[1]
        # Halves of numbers near the largest have a difference.
        longest = (high / 2 - low / 2).argmax(axis=0)
        every = np.arange(count)
        return longest, ordered(low[longest, every]), ordered(high[longest, every])

    def _narrow(self, near: LocalIndices | None) -> None:
        """Narrow the range of each group to a bin of it."""
        count, every = len(self._sizes), np.arange(len(self._sizes))
        bits = min(MOST_BITS, max(1, (BINS // count).bit_length() - 1))
        widths = (self._high - self._low).tolist()
        shifts = np.array([max(0, width.bit_length() - bits) for width in widths], np.uint64)
        sums = np.zeros((2, count << bits), np.int64)
        for nodes, number in self._members(near):
            steps = (self._places(nodes, number) - self._low[number]) >> shifts[number]
            bins = (number << bits) + steps.astype(np.int64)
            np.add.at(sums[0], bins, self._nodes.work[nodes].astype(np.int64))
            np.add.at(sums[1], bins, 1)
        found = self._nodes.ranks.sum(sums).reshape(2, count, -1)
        reached = np.cumsum(found, axis=2) + self._below[:, :, None]
        chosen, least, most = (
            np.count_nonzero(reached[kind] < goal[:, None], axis=1)
            for kind, goal in ((0, self._goal), (1, self._least), (1, self._most))
        )
        chosen = np.clip(chosen, least, most)
        self._below = (reached - found)[:, every, chosen]
        self._low += chosen.astype(np.uint64) << shifts
        width = np.minimum(self._high - self._low, (np.uint64(1) << shifts) - np.uint64(1))
        self._high = self._low + width

    def _settle(self, near: LocalIndices | None) -> LocalIndices:
        """Move the nodes behind the range of their group; return those within, in their order."""
        within = [np.empty(0, np.int32)]
        for nodes, number in self._members(near):
            places = self._places(nodes, number)
            behind = places > self._high[number]
            self._part[nodes[behind]] += self.halves[number[behind]].astype(np.int32)
            stay = ~behind & (places >= self._low[number])
            within.append(nodes[stay].astype(np.int32))
        return np.concatenate(within)

    def _divide(self, near: LocalIndices) -> Array:
        """Move those behind the cut of nodes at equal places, which are in their order.

        The cut is on the side of the node reaching the goal where work is nearer to its share.
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
        place = self._below[1] + ranks.sum(short.astype(np.int64)) + 1
        place = np.clip(place, self._least, self._most)
        found = np.zeros((2, count), np.int64)
        here = reached[1] == place[number]
        found[:, number[here]] = reached[0, here], values[0, here]
        up_to, work = ranks.sum(found)
        nearer = 2 * self._share < self._sizes * (2 * up_to - work)
        without = nearer & (place > self._least)
        place -= without
        behind = reached[1] > place[number]
        self._part[near[behind]] += self.halves[number[behind]].astype(np.int32)
        return np.stack([up_to - work * without, place])
