"""Process long arrays of entries piece by piece, so that temporary arrays stay small."""

from collections.abc import Iterator

import numpy as np

from hpcgnn.storage import first_of_each
from hpcgnn.typing import Array, Mask, Offsets

PIECE = 1 << 18
"""Entries to process at a time: 2 MiB of int64."""


def row_pieces(offsets: Offsets) -> Iterator[slice]:
    """Yield slices of rows with at most `PIECE` entries together, or of a single row.

    `offsets` (rows + 1,) int64 are the positions where the entries of each row begin.
    """
    start, rows = 0, len(offsets) - 1
    while start < rows:
        stop = int(np.searchsorted(offsets, offsets[start] + PIECE, side="right")) - 1
        stop = min(max(stop, start + 1), rows)
        yield slice(start, stop)
        start = stop


def pieces_of(length: int) -> Iterator[slice]:
    """Yield slices of at most `PIECE` items."""
    for start in range(0, length, PIECE):
        yield slice(start, min(start + PIECE, length))


def counts_before(offsets: Offsets, marked: Mask) -> Offsets:
    """Return (rows + 1,) int64, the number of marked entries before each row's first entry."""
    counts = np.zeros(len(offsets), np.int64)
    for rows in row_pieces(offsets):
        ends = offsets[rows.start : rows.stop + 1]
        before = np.concatenate([[0], np.cumsum(marked[ends[0] : ends[-1]])])
        counts[rows.start + 1 : rows.stop + 1] = counts[rows.start] + before[ends[1:] - ends[0]]
    return counts


def distinct(keys: Array) -> Array:
    """Return the increasing distinct values of an array, which is sorted in place."""
    # Several times faster than np.unique, which hashes first.
    keys.sort()
    return np.asarray(keys[first_of_each(keys)])
