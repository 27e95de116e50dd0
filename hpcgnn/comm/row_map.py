"""Ownership of rows: contiguous ranges of global rows, one for each block row of the grid.

Also helpers for large arrays of row numbers: distinct values, renumbering, lookup and spans.
"""

from dataclasses import dataclass

import numpy as np

from hpcgnn.kernels import distinct_numbers, renumber
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Mask, Offsets


@dataclass(frozen=True, eq=False)
class RowMap:
    """Rows ``starts[b]`` to ``starts[b + 1] - 1`` belong to block row b; this rank has `block`.

    `starts` (num_blocks + 1,) int64 rise from 0 to the number of rows; consecutive equal starts
    make an empty block.
    """

    starts: Offsets
    block: int

    def __post_init__(self) -> None:
        if self.starts.dtype != np.int64 or self.starts.ndim != 1 or len(self.starts) < 2:
            raise ValueError(f"starts must be int64 of length >= 2, not {self.starts!r}")
        if self.starts[0] != 0 or np.any(np.diff(self.starts) < 0):
            raise ValueError(f"starts must rise from 0, not {self.starts}")
        if self.num_local > np.iinfo(np.int32).max:
            raise ValueError(f"a block of {self.num_local} rows has no int32 local indices")

    @property
    def num_blocks(self) -> int:
        """Number of block rows."""
        return len(self.starts) - 1

    @property
    def num_rows(self) -> int:
        """Number of global rows."""
        return int(self.starts[-1])

    @property
    def start(self) -> int:
        """First global row of this block."""
        return int(self.starts[self.block])

    @property
    def stop(self) -> int:
        """One past the last global row of this block."""
        return int(self.starts[self.block + 1])

    @property
    def num_local(self) -> int:
        """Number of rows of this block."""
        return self.stop - self.start

    def size_of(self, block: int) -> int:
        """Return the number of rows of `block`."""
        return int(self.starts[block + 1] - self.starts[block])

    def owner(self, rows: GlobalIndices) -> LocalIndices:
        """Return the block, int32, that owns each global row; empty blocks own nothing."""
        return (np.searchsorted(self.starts, rows, side="right") - 1).astype(np.int32)

    def is_local(self, rows: GlobalIndices) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask of the global rows that this block owns."""
        return (rows >= self.start) & (rows < self.stop)

    def to_local(self, rows: GlobalIndices) -> LocalIndices:
        """Return int32 local indices of global rows that this block owns."""
        return (rows - self.start).astype(np.int32)

    def to_global(self, rows: LocalIndices) -> GlobalIndices:
        """Return int64 global indices of local rows of this block."""
        return rows.astype(np.int64) + self.start


_SMALL_LIMIT = 1 << 27
_NUMBERS_PER_VALUE = (1024, 32)
"""Most bitmap numbers per value, for limits up to `_SMALL_LIMIT` and above. A bitmap takes a
quarter of a byte per number; with more numbers per value, sorting the values is better."""


def _takes_bitmap(num_values: int, limit: int) -> bool:
    return limit <= _NUMBERS_PER_VALUE[limit > _SMALL_LIMIT] * num_values


def distinct(values: Array, limit: int) -> Array:
    """Return the distinct `values`, ascending; they are (n,) int32 or int64 below `limit`."""
    if _takes_bitmap(len(values), limit):
        return distinct_numbers(values, limit)
    unique: Array = np.unique(values)
    return unique


def numbered(
    names: Array, numbers: LocalIndices, values: Array, out: LocalIndices | None = None
) -> LocalIndices:
    """Replace each value ``names[i]`` by ``numbers[i]``; names ascend and include all values.

    `names` (m,) are global numbers, `numbers` (m,) int32, `values` (n,) int32 or int64. `out` (n,)
    int32 receives the result and may be `values` itself.
    """
    result = np.empty(len(values), np.int32) if out is None else out
    if len(names) and _takes_bitmap(len(values), int(names[-1])):
        renumber(names, numbers, values, result)
    else:
        result[:] = numbers[np.searchsorted(names, values)]
    return result


def found_among(names: Array, values: Array) -> tuple[GlobalIndices, Mask]:
    """Return the position of each value among ascending `names`, and a mask of those found."""
    positions = np.searchsorted(names, values)
    present: Mask = positions < len(names)
    present[present] = names[positions[present]] == values[present]
    return positions, present


def spans(starts: Array, lengths: Array) -> GlobalIndices:
    """Concatenate the ranges ``starts[i]`` to ``starts[i] + lengths[i] - 1`` for all i."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)
