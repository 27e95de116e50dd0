"""Partitioning by passes over a store, for graphs larger than memory.

What is kept are numbers of nodes and parts, not edges: each pass reads the rows in order, and moves
a node at once to the part with the most of its neighbours, less where that part is nearly full, see
`partitioner/include/volpart/streaming.h`. Rows of a store are the sources that a node reads. Of a
directed graph its readers count as well: edges of both directions are sorted in a scratch file,
which the passes read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcgnn.console import report
from hpcgnn.partition import _volpart
from hpcgnn.partition.metrics import VolumeMetrics, imbalance_of
from hpcgnn.partition.pattern import Indices, union_blocks
from hpcgnn.storage import EdgeBuilder, GraphStore
from hpcgnn.typing import Array, LocalIndices, Offsets

PASSES = 10
"""At most; more gain little."""
SETTLED = 0.002
"""Passes end when they move fewer of the nodes."""
SORTING_BYTES = 1 << 28
"""Memory that edges of both directions are sorted in."""


@dataclass(frozen=True, eq=False)
class StreamedGraph:
    """The union of some relations of a store, which is read again in each pass.

    With `undirected`, and its transpose. The folder `scratch` gets an unnamed file where a
    transpose is needed that the store does not have; None is the system's.
    """

    store: GraphStore
    relations: tuple[str, ...]
    undirected: bool = False
    scratch: Path | None = None

    def blocks(self) -> Iterator[tuple[int, Offsets, Indices]]:
        """Yield all rows, some at a time: the first, offsets from 0, and columns."""
        return self._neighbours() if self.undirected else self._stored()

    def _stored(self) -> Iterator[tuple[int, Offsets, Indices]]:
        return union_blocks(self.store, self.relations, 0, self.store.num_nodes)

    @cached_property
    def _both_ways(self) -> EdgeBuilder:
        num_nodes = self.store.num_nodes
        builder = EdgeBuilder(
            num_nodes, undirected=True, memory_bytes=SORTING_BYTES, scratch=self.scratch
        )
        for first, indptr, columns in self._stored():
            builder.add(columns, np.repeat(np.arange(len(indptr) - 1) + first, np.diff(indptr)))
        return builder

    def _neighbours(self) -> Iterator[tuple[int, Offsets, Indices]]:
        """Yield the sources and readers of all nodes, as `blocks` does the sources."""
        if self.store.undirected:
            yield from self._stored()
            return
        first = 0
        for rows in self._both_ways.rows(0, self.store.num_nodes):
            yield first, rows.indptr, rows.indices
            first += rows.num_rows

    def partition(self, num_parts: int, imbalance: float) -> tuple[LocalIndices, Offsets]:
        """Return the part of each node, int32[n], and the work of each part, int64[parts].

        A part has at most `1 + imbalance` times the average work, unless every part is that full;
        the work of a node are its non-zeros, and 1 without any. Memory is O(n + parts).
        """
        lengths = [np.diff(indptr) for _, indptr, _ in self.blocks()]
        work = np.maximum(np.concatenate([np.empty(0, np.int64), *lengths]), 1)
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
