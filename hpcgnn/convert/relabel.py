"""Arbitrary node ids as positions 0, 1, ... in their sorted order.

Everything here sorts: for millions of ids that is many times faster than hashing or searching them
in the order of the edges, which misses the cache at every step.
"""

from collections.abc import Iterable

import numpy as np

from hpcgnn.convert.source import EdgeChunk
from hpcgnn.typing import Array, GlobalIndices

__all__ = ["IdMerger", "compact", "distinct_ids"]

_PENDING_IDS = 1 << 23


class IdMerger:
    """Collect the distinct ids of many arrays; they take eight bytes each."""

    def __init__(self) -> None:
        self._merged: GlobalIndices = np.zeros(0, np.int64)
        self._pending: list[GlobalIndices] = []
        self._count = 0

    def add(self, chunk: EdgeChunk) -> None:
        """Take the ids of a chunk of edges."""
        ids = _distinct(np.concatenate([chunk.src, chunk.dst]))
        self._pending.append(ids)
        self._count += len(ids)
        if self._count > max(_PENDING_IDS, len(self._merged)):
            self.ids()

    def ids(self) -> GlobalIndices:
        """Return the distinct ids so far, sorted."""
        self._merged = _distinct(np.concatenate([self._merged, *self._pending]))
        self._pending, self._count = [], 0
        return self._merged


def distinct_ids(chunks: Iterable[EdgeChunk]) -> GlobalIndices:
    """Return all ids of edges, sorted."""
    merger = IdMerger()
    for chunk in chunks:
        merger.add(chunk)
    return merger.ids()


def compact(chunk: EdgeChunk, ids: GlobalIndices | None) -> EdgeChunk:
    """Return the chunk with each id replaced by its position in the sorted `ids`, if given."""
    if ids is None:
        return chunk
    src, dst = _positions(ids, chunk.src), _positions(ids, chunk.dst)
    return EdgeChunk(src, dst, chunk.locate, chunk.weights, chunk.relation)


def _distinct(values: Array) -> GlobalIndices:
    ordered = np.sort(values)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def _positions(ids: GlobalIndices, values: Array) -> GlobalIndices:
    order = np.argsort(values)
    positions = np.empty(len(values), np.int64)
    positions[order] = np.searchsorted(ids, values[order])
    return positions
