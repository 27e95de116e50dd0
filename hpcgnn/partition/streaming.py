"""Graphs larger than memory: partitioning by passes over a store, and the cost of given parts.

Only arrays of nodes and parts are in memory, not edges. Each pass reads the rows in order and moves
each node at once to the part with most of its neighbours, with a penalty for nearly full parts, see
`partitioner/include/volpart/streaming.h`. Rows of a store are the sources that a node reads. In a
directed graph a node's readers count as well, so the passes read a scratch file with edges sorted
in both directions. All ranks count work and costs, each by reading its rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcgnn.comm import ONE_PROCESS, RankGroup, RowMap
from hpcgnn.console import report
from hpcgnn.partition import _volpart
from hpcgnn.partition.metrics import VolumeMetrics, work_of
from hpcgnn.partition.pattern import Indices, union_blocks
from hpcgnn.storage import EdgeBuilder, GraphStore
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

PASSES = 10
"""Most passes; more gain little."""
SETTLED = 0.002
"""Passes end when one moves no more than this fraction of the nodes."""
SORTING_BYTES = 1 << 28
"""Bytes of memory for sorting the edges of both directions."""


@dataclass(frozen=True, eq=False)
class StreamedUnion:
    """The union of some relations of a store, which is read again in each pass.

    With `undirected` its transpose is added. If a transpose is needed that the store does not have,
    an unnamed file is written in the folder `scratch`; None: the system's folder. Each of the
    `ranks` reads its share of the rows.
    """

    store: GraphStore
    relations: tuple[str, ...]
    undirected: bool = False
    scratch: Path | None = None
    ranks: RankGroup = ONE_PROCESS

    @cached_property
    def row_map(self) -> RowMap:
        """The rows that each rank reads."""
        return RowMap(self.ranks.starts(self.store.num_nodes), self.ranks.rank)

    def blocks(self) -> Iterator[tuple[int, Offsets, Indices]]:
        """Yield this rank's rows in blocks: the first row, offsets from 0, and columns."""
        return self._neighbours() if self.undirected else self._stored()

    def _stored(self) -> Iterator[tuple[int, Offsets, Indices]]:
        rows = self.row_map
        return union_blocks(self.store, self.relations, rows.start, rows.stop)

    @cached_property
    def _both_ways(self) -> EdgeBuilder:
        ranks, num_nodes = self.ranks, self.store.num_nodes
        with ranks.agree():
            builder = EdgeBuilder(num_nodes, memory_bytes=SORTING_BYTES, scratch=self.scratch)
        for columns, rows in ranks.rounds(self._edges(), lambda: (np.empty(0, np.int64),) * 2):
            for sources, targets in ((columns, rows), (rows, columns)):
                owners = ranks.owners(self.row_map, targets)
                own_sources, own_targets = ranks.exchange(owners, sources, targets)
                with ranks.agree():
                    builder.add(own_sources, own_targets)
        return builder

    def _edges(self) -> Iterator[tuple[GlobalIndices, GlobalIndices]]:
        """Yield columns and rows of this rank's stored non-zeros."""
        for first, indptr, columns in self._stored():
            rows = np.repeat(np.arange(len(indptr) - 1) + first, np.diff(indptr))
            yield columns.astype(np.int64, copy=False), rows

    def _neighbours(self) -> Iterator[tuple[int, Offsets, Indices]]:
        """Yield the sources and the readers of this rank's nodes, in the form of `blocks`."""
        if self.store.undirected:
            yield from self._stored()
            return
        first = self.row_map.start
        for rows in self._both_ways.rows(first, self.row_map.stop):
            yield first, rows.indptr, rows.indices
            first += rows.num_rows

    def lengths(self) -> Offsets:
        """Return the number of non-zeros of each of this rank's rows, int64[num_local]."""
        if len(self.relations) == 1 and (self.store.undirected or not self.undirected):
            # No need to read the edges.
            rows = self.row_map
            return np.diff(self.store.read_indptr(rows.start, rows.stop, self.relations[0]))
        lengths = [np.diff(indptr) for _, indptr, _ in self.blocks()]
        return np.concatenate([np.empty(0, np.int64), *lengths])

    def partition(self, num_parts: int, imbalance: float) -> tuple[LocalIndices, Offsets]:
        """Return the part of each node, int32[n], and the work of each part; on one process.

        A part has at most ``1 + imbalance`` times the average work, unless all parts are that full.
        The work of a node is its number of non-zeros, at least 1. Memory is O(n + parts).
        """
        work = np.maximum(self.lengths(), 1)
        capacity = (1 + imbalance) * int(work.sum()) / num_parts
        part = np.full(self.store.num_nodes, -1, np.int32)
        load = np.zeros(num_parts, np.int64)
        for number in range(1, PASSES + 1):
            moved = sum(
                _volpart.assign_rows(first, indptr, columns, work, part, load, capacity)
                for first, indptr, columns in self._neighbours()
            )
            report(f"pass {number}: {moved:,} of {len(part):,} nodes moved")
            if moved <= SETTLED * len(part):
                break
        return part, load

    def measure(self, part: LocalIndices, num_parts: int) -> VolumeMetrics:
        """Return the metrics of `hpcgnn.partition.measure` for own nodes' parts int32[num_local].

        Memory is O(num_local); the store is read once for every 64 parts.
        """
        ranks, first = self.ranks, self.row_map.start
        moved = np.zeros((2, num_parts), np.int64)
        edge_cut, most = np.zeros(1, np.int64), 0
        no_reads = np.empty(0, np.int64), np.empty(0, np.int32)
        for base in range(0, num_parts, _volpart.MARKED):
            readers = np.zeros(len(part), np.uint64)
            for columns, reader in ranks.rounds(self._reads(part, base), lambda: no_reads):
                owners = ranks.owners(self.row_map, columns)
                read, reader = ranks.exchange(owners, columns, reader)
                read -= first
                _volpart.mark_readers(read, reader, base, readers)
                edge_cut += np.count_nonzero(part[read] != reader)
            counts = np.zeros(num_parts * _volpart.MARKED, np.int64)
            _volpart.count_readers(readers, part, base, counts)
            rows: Array = ranks.sum(counts).reshape(num_parts, _volpart.MARKED)
            moved[0] += rows.sum(1)
            moved[1, base : base + _volpart.MARKED] = rows.sum(0)[: num_parts - base]
            most = max(most, int(rows.max()))
        work, heaviest = work_of(self.lengths(), part, num_parts)
        cut = int(ranks.sum(edge_cut)[0])
        return VolumeMetrics.of(cut, moved, most, ranks.sum(work), ranks.max(heaviest))

    def _reads(self, part: LocalIndices, base: int) -> Iterator[tuple[GlobalIndices, LocalIndices]]:
        """Yield the nodes that the 64 parts from `base` on read, and the part that reads each."""
        for first, indptr, columns in self.blocks():
            low = first - self.row_map.start
            lengths = np.diff(indptr)
            reader = np.repeat(part[low : low + len(lengths)], lengths)
            marked = (reader >= base) & (reader < base + _volpart.MARKED)
            yield columns[marked].astype(np.int64), reader[marked]
