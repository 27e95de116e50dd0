"""Append rows to an HDF5 dataset, and read ranges of its rows, with checksums."""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from hpcgnn import watchdog
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.storage.checksums import RowsRead, array_crc
from hpcgnn.storage.format import REMEDY, chunk_shape
from hpcgnn.typing import Array, MakeRows

PIECE_BYTES = 8 << 20
"""Bytes read at a time: reading a slab takes its own size and this much more memory."""

GROWING_ROWS = 1 << 62

STEPS_NDIM = 3
"""Dimensions of a dataset of steps, rows and columns."""


def text_type(text: str) -> np.dtype[Any]:
    """Return the fixed-length type for `text`: variable-length text has no checksum in HDF5."""
    return h5py.string_dtype("utf-8", max(1, len(text.encode())))


def damaged(path: Path, item: str, fault: str) -> StorageFormatError:
    """Return the one-line error for a fault in `item` (a dataset or an attribute)."""
    return StorageFormatError(f"{path}: {item}: {fault}; {REMEDY}")


@contextlib.contextmanager
def format_errors(path: Path, item: str) -> Iterator[None]:
    """Turn all exceptions of HDF5 and h5py for damaged files into `StorageFormatError`."""
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise damaged(path, item, f"cannot be read ({reason})") from None


class Column:
    """A dataset that grows by rows; it writes whole chunks and keeps the rest until `finish`.

    `row_shape` is the shape of one row. Small data become one chunk of their own size.
    """

    def __init__(
        self, file: h5py.File, path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()
    ) -> None:
        self.path, self.dtype, self.row_shape = path, dtype, row_shape
        self.rows = 0
        self.crc = 0
        self._file = file
        self._dataset: h5py.Dataset | None = None
        self._chunk = chunk_shape((GROWING_ROWS, *row_shape), dtype.itemsize)
        self._pending: list[Array] = []
        self._pending_rows = 0

    def append(self, rows: Array) -> None:
        """Append `rows` (m, *row_shape), which must already have the column's type."""
        assert rows.dtype == self.dtype
        assert rows.shape[1:] == self.row_shape
        self.crc = array_crc(rows, self.crc)
        self.rows += len(rows)
        self._gather(rows)

    def _gather(self, rows: Array) -> None:
        """Write the chunks that `rows` complete, and keep the rest."""
        if self._pending_rows + len(rows) < self._chunk[0]:
            # The caller may reuse its array.
            self._pending.append(rows.copy())
            self._pending_rows += len(rows)
            return
        missing = self._chunk[0] - self._pending_rows
        self._write(np.concatenate([*self._pending, rows[:missing]]))
        whole = missing + (len(rows) - missing) // self._chunk[0] * self._chunk[0]
        if whole > missing:
            self._write(rows[missing:whole])
        self._pending = [rows[whole:].copy()]
        self._pending_rows = len(rows) - whole

    @property
    def described(self) -> tuple[str, str, tuple[int, ...], int]:
        """Path, dtype, shape and checksum, which go into the fingerprint."""
        return self.path, self.dtype.str, (self.rows, *self.row_shape), self.crc

    def _write(self, rows: Array) -> None:
        if self._dataset is None:
            self._dataset = self._create((0, *self.row_shape), (None, *self.row_shape), self._chunk)
        old = self._dataset.shape[0]
        self._dataset.resize(old + len(rows), axis=0)
        self._dataset[old:] = rows

    def _create(
        self,
        shape: tuple[int, ...],
        limit: tuple[int | None, ...],
        chunk: tuple[int, ...],
        dcpl: Any = None,
    ) -> h5py.Dataset:
        return self._file.create_dataset(
            self.path,
            shape=shape,
            maxshape=limit,
            chunks=chunk,
            dtype=self.dtype,
            fletcher32=True,
            dcpl=dcpl,
        )

    def finish(self) -> None:
        """Write the remaining rows and record the checksum."""
        if self._dataset is None:
            shape = (self.rows, *self.row_shape)
            # HDF5 allows chunks in an empty dataset only if it can grow.
            limit = shape if self.rows else (None, *self.row_shape)
            self._dataset = self._create(shape, limit, chunk_shape(shape, self.dtype.itemsize))
            if self.rows:
                self._dataset[...] = np.concatenate(self._pending)
        elif self._pending_rows:
            self._write(np.concatenate(self._pending))
        self._pending = []
        self._dataset.attrs["crc32"] = np.uint32(self.crc)


MakeColumn: TypeAlias = Callable[[str, np.dtype[Any], tuple[int, ...]], Column]
"""Makes a dataset from its path, type and row shape."""


def slab_pieces(
    dataset: h5py.Dataset, start: int, stop: int, axis: int = 0
) -> Iterator[tuple[int, int]]:
    """Split rows `start` to `stop` - 1 into ranges to read at a time, ending at chunk borders.

    Rows run along `axis`, which is 1 for one step of a dataset of steps (T, n, F).
    """
    chunk = dataset.chunks[axis]
    row_bytes = max(1, dataset.dtype.itemsize * math.prod(map(int, dataset.shape[axis + 1 :])))
    step = max(1, PIECE_BYTES // (row_bytes * chunk)) * chunk
    while start < stop:
        end = min(stop, (start // step + 1) * step)
        yield start, end
        start = end


def read_slab(
    path: Path,
    dataset: h5py.Dataset,
    start: int,
    stop: int,
    dtype: Any = None,
    rows_read: RowsRead | None = None,
    empty: MakeRows = np.empty,
) -> Array:
    """Return rows `start` to `stop` - 1 of a dataset, converted to `dtype` piece by piece.

    Their checksum is added to `rows_read`. Raises `StorageFormatError` if the bytes do not match
    the checksum of their chunk, or have changed since an earlier read.
    """
    out = empty((stop - start, *dataset.shape[1:]), dtype or dataset.dtype)
    crc = 0
    with format_errors(path, dataset.name):
        for low, high in slab_pieces(dataset, start, stop):
            watchdog.beat()
            piece = dataset[low:high]
            out[low - start : high - start] = piece
            if rows_read is not None:
                crc = array_crc(piece, crc)
    if rows_read is not None and not rows_read.add(start, stop, crc):
        raise damaged(path, dataset.name, "changes while it is read")
    return out


def read_step(path: Path, dataset: h5py.Dataset, step: int, start: int, stop: int) -> Array:
    """Return rows `start` to `stop` - 1 of one step of a dataset (T, n, F), as `read_slab` does."""
    out = np.empty((stop - start, *dataset.shape[2:]), dataset.dtype)
    with format_errors(path, dataset.name):
        for low, high in slab_pieces(dataset, start, stop, 1):
            watchdog.beat()
            out[low - start : high - start] = dataset[step, low:high]
    return out


def read_pieces(path: Path, dataset: h5py.Dataset) -> Iterator[Array]:
    """Yield a whole dataset in order, some rows at a time; if it has steps, step by step."""
    if len(dataset.shape) < STEPS_NDIM:
        for low, high in slab_pieces(dataset, 0, dataset.shape[0]):
            yield read_slab(path, dataset, low, high)
        return
    for step in range(dataset.shape[0]):
        for low, high in slab_pieces(dataset, 0, dataset.shape[1], 1):
            yield read_step(path, dataset, step, low, high)


def read_text(path: Path, dataset: h5py.Dataset) -> tuple[str, ...]:
    """Return a whole dataset of fixed-length text."""
    raw = read_slab(path, dataset, 0, dataset.shape[0])
    with format_errors(path, dataset.name):
        return tuple(text.decode() for text in raw.tolist())
