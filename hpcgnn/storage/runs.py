"""Sorted runs of edges: what external sorting keeps, in memory or in files.

An edge is one uint64 key, row << 32 | column: sorting keys sorts edges by row, then by column.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.errors import InputError
from hpcgnn.typing import Array, FloatArray

__all__ = ["MAX_ID", "Keys", "Run", "SpilledRun", "key_columns", "key_rows", "make_keys"]

COLUMN_BITS = 32
MAX_ID = (1 << COLUMN_BITS) - 1

Keys = NDArray[np.uint64]


def make_keys(rows: Array, columns: Array) -> Keys:
    """Return the keys of edges; ids are integers in 0..MAX_ID."""
    keys = rows.astype(np.uint64)
    keys <<= np.uint64(COLUMN_BITS)
    keys |= columns.astype(np.uint64)
    return keys


def key_rows(keys: Keys) -> NDArray[np.int64]:
    """Return the rows of keys."""
    return (keys >> np.uint64(COLUMN_BITS)).astype(np.int64)


def key_columns(keys: Keys) -> NDArray[np.int64]:
    """Return the columns of keys."""
    return (keys & np.uint64(MAX_ID)).astype(np.int64)


class Run:
    """Sorted keys and, if weighted, their weights; equal keys stand in the order of adding."""

    def __init__(self, keys: Keys, weights: FloatArray | None) -> None:
        self.keys, self.weights = keys, weights

    def sample_rows(self, stride: int) -> NDArray[np.int64]:
        """Return the row of every `stride`-th key."""
        return key_rows(self.keys[::stride])

    def positions(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of the first key of each of `rows`, which may reach MAX_ID + 1."""
        keys = self.keys
        wanted = make_keys(np.minimum(rows, MAX_ID), np.zeros_like(rows))
        return np.where(rows > MAX_ID, len(keys), np.searchsorted(keys, wanted))

    def piece(self, low: int, high: int) -> tuple[Keys, FloatArray | None]:
        """Return the keys and weights at positions `low` to `high` - 1."""
        return self.keys[low:high], None if self.weights is None else self.weights[low:high]


class SpilledRun(Run):
    """A run in two files of raw numbers, of which only the pieces asked for are in memory."""

    def __init__(self, run: Run, directory: Path, number: int) -> None:
        """Write `run` to `directory`; raises `InputError` where the disk is full."""
        self._keys_path = directory / f"{number}.keys"
        self._weights_path = directory / f"{number}.weights" if run.weights is not None else None
        try:
            # ndarray.tofile would not notice a disk that fills up at its last block.
            self._keys_path.write_bytes(run.keys.data)
            if self._weights_path is not None and run.weights is not None:
                self._weights_path.write_bytes(run.weights.data)
        except OSError as error:
            raise InputError(
                f"{directory}: edges cannot be put aside there ({error.strerror or error}); name a "
                "larger scratch directory (TMPDIR) or allow more memory"
            ) from None

    @property
    def keys(self) -> Keys:  # type: ignore[override]
        """The keys, mapped from the file for as long as the caller holds them."""
        return np.memmap(self._keys_path, np.uint64, mode="r")

    def piece(self, low: int, high: int) -> tuple[Keys, FloatArray | None]:
        """Return the keys and weights at positions `low` to `high` - 1, read from the files."""
        keys = np.fromfile(self._keys_path, np.uint64, high - low, offset=8 * low)
        if self._weights_path is None:
            return keys, None
        return keys, np.fromfile(self._weights_path, np.float32, high - low, offset=4 * low)
