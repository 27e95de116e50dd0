"""Partitioning by passes over a store, for graphs larger than memory.

What is kept are numbers of nodes and parts, not edges: each pass reads the rows in order, and moves
a node at once to the part with the most of its neighbours, less where that part is nearly full, see
`partitioner/include/volpart/streaming.h`. Rows of a store are sources that a node reads, so
directed graphs are partitioned by these alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.console import report
from hpcgnn.partition import _volpart
from hpcgnn.partition.metrics import VolumeMetrics, imbalance_of
from hpcgnn.partition.pattern import Indices, union_blocks
from hpcgnn.storage import GraphStore
from hpcgnn.typing import Array, LocalIndices, Offsets

PASSES = 10
"""At most; more gain little."""
SETTLED = 0.002
"""Passes end when they move fewer of the nodes."""


@dataclass(frozen=True, eq=False)
class StreamedGraph:
    """The union of some relations of a store, which is read again in each pass."""

    store: GraphStore
    relations: tuple[str, ...]

    def blocks(self) -> Iterator[tuple[int, Offsets, Indices]]:
        """Yield all rows, some at a time: the first, offsets from 0, and columns."""
        return union_blocks(self.store, self.relations, 0, self.store.num_nodes)

    def partition(self, num_parts: int, imbalance: float) -> tuple[LocalIndices, Offsets]:
        """Return the part of each node, int32[n], and the work of each part, int64[parts].

        A part has at most `1 + imbalance` times the average work, unless every part is that full;
        the work of a node are its non-zeros, and 1 without any. Memory is O(n + parts).
        """
        total = sum(int(np.maximum(np.diff(indptr), 1).sum()) for _, indptr, _ in self.blocks())
        capacity = (1 + imbalance) * total / num_parts
        part = np.full(self.store.num_nodes, -1, np.int32)
        load = np.zeros(num_parts, np.int64)
        for number in range(1, PASSES + 1):
            moved = sum(
                _volpart.assign_rows(first, indptr, columns, part, load, capacity)
                for first, indptr, columns in self.blocks()
            )
            report(f"pass {number}: {moved:,} of {len(part):,} nodes moved")
            if moved <= SETTLED * len(part):
                break
        return part, load

    def measure(self, part: LocalIndices, num_parts: int) -> VolumeMetrics:
        """Return what `hpcgnn.partition.measure` does, in O(n) memory.

        The store is read once for every 64 parts.
        """
        send = np.zeros(num_parts, np.int64)
        receive, most = np.zeros(num_parts, np.int64), 0
        work, heaviest = np.zeros((2, num_parts), np.int64)
        edge_cut = 0
        for base in range(0, num_parts, _volpart.MARKED):
            readers = np.zeros(len(part), np.uint64)
            for first, indptr, columns in self.blocks():
                _volpart.mark_readers(first, indptr, columns, part, base, readers)
                if base == 0:
                    lengths = np.diff(indptr)
                    of_rows = part[first : first + len(lengths)]
                    np.add.at(work, of_rows, lengths)
                    np.maximum.at(heaviest, of_rows, lengths)
                    edge_cut += int((part[columns] != np.repeat(of_rows, lengths)).sum())
            counts = np.zeros(num_parts * _volpart.MARKED, np.int64)
            _volpart.count_readers(readers, part, base, counts)
            rows: Array = counts.reshape(num_parts, _volpart.MARKED)
            send += rows.sum(1)
            receive[base : base + _volpart.MARKED] = rows.sum(0)[: num_parts - base]
            most = max(most, int(rows.max()))
        return VolumeMetrics(
            edge_cut=edge_cut,
            total_rows=int(send.sum()),
            max_send_rows=int(send.max()),
            max_recv_rows=int(receive.max()),
            max_pair_rows=most,
            imbalance=imbalance_of(work, heaviest),
            parts=num_parts,
        )
