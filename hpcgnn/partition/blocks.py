"""Cutting rows into consecutive blocks of bounded size, and picking rows out of CSR arrays."""

from collections.abc import Iterator

import numpy as np

from hpcgnn.typing import GlobalIndices, LocalIndices, Offsets

BLOCK_BYTES = 1 << 26
"""Bytes that one streamed block may hold."""


def row_blocks(indptr: Offsets, max_entries: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive row blocks.

    A block holds at most `max_entries` non-zeros and as many rows, but at least one row.
    """
    num_rows = indptr.size - 1
    start = 0
    while start < num_rows:
        last = int(np.searchsorted(indptr, indptr[start] + max_entries, side="right")) - 1
        stop = min(max(last, start + 1), start + max_entries, num_rows)
        yield start, stop
        start = stop


def even_blocks(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive blocks of about `BLOCK_BYTES` bytes, at least one row."""
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def row_positions(indptr: Offsets, rows: GlobalIndices | LocalIndices) -> GlobalIndices:
    """Return the positions of the non-zeros of `rows`, one row after the other, int64."""
    lengths = indptr[rows + 1] - indptr[rows]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.repeat(indptr[rows] - (ends - lengths), lengths) + np.arange(total)
