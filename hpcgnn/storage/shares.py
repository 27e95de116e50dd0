"""Datasets that several processes write at the same time, each some consecutive rows.

HDF5 alone lets one process write. That one creates each dataset at its full size, so that every
chunk has its place in the file, and tells the others the places. A process has HDF5 make the bytes
of its chunks in a file in memory, checksums included, and writes them at their places. The rows
before its first border of chunks are its `head`: the process in whose rows their chunk begins
writes them.
"""

import math
import mmap
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import OutputFile
from hpcgnn.storage.checksums import shift
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.format import chunk_shape
from hpcgnn.typing import Array, Offsets

PAGED = {"alignment_threshold": 1, "alignment_interval": mmap.PAGESIZE}
"""How HDF5 gives places: no two chunks, nor a chunk and metadata, have bytes in one page, which
clients of NFS may write whole."""


@dataclass(frozen=True)
class RowSpan:
    """Rows `start` to `stop` - 1 of `total`."""

    start: int
    stop: int
    total: int


class ColumnShare(Column):
    """The rows `span` of a dataset; `place` comes before the first row that is appended.

    `file` is the HDF5 file, on the one process that has it open; `output` where this process
    writes.
    """

    def __init__(
        self,
        file: h5py.File | None,
        output: OutputFile,
        span: RowSpan,
        described: tuple[str, np.dtype[Any], tuple[int, ...]],
    ) -> None:
        super().__init__(file, *described)
        self.span, self._output = span, output
        self.rows = span.start
        self._limit: tuple[int | None, ...] = (None, *self.row_shape)
        if span.total < self._chunk[0]:
            shape = (span.total, *self.row_shape)
            self._chunk = chunk_shape(shape, self.dtype.itemsize)
            self._limit = shape if span.total else self._limit
        self.head_chunk = span.start // self._chunk[0] * self._chunk[0]
        """The first row of the chunk that this process's first row is in."""
        self._next = -(-span.start // self._chunk[0]) * self._chunk[0]
        self._head: list[Array] = []
        self._places: Offsets = np.empty(0, np.int64)
        self._in_memory: h5py.File | None = None

    def create(self) -> Offsets:
        """Create the dataset; return the places (chunks,) int64 of its chunks in the file."""
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        total, rest = self.span.total, (0,) * len(self.row_shape)
        self._dataset = self._file.create_dataset(
            self.path,
            shape=(total, *self.row_shape),
            maxshape=self._limit,
            chunks=self._chunk,
            dtype=self.dtype,
            fletcher32=True,
            dcpl=plist,
        )
        offsets = np.empty(-(-total // self._chunk[0]), np.int64)

        def note(chunk: Any) -> None:
            offsets[chunk.chunk_offset[0] // self._chunk[0]] = chunk.byte_offset

        if hasattr(self._dataset.id, "chunk_iter"):
            self._dataset.id.chunk_iter(note)
        else:
            # HDF5 before 1.10.10 and 1.12.3: each of these looks through all chunks.
            for row in range(0, total, self._chunk[0]):
                note(self._dataset.id.get_chunk_info_by_coord((row, *rest)))
        return offsets

    def place(self, offsets: Offsets) -> None:
        """Take what `create` has returned."""
        self._places = offsets

    def _gather(self, rows: Array) -> None:
        if self.rows > self.span.stop:
            raise InputError(f"{self.path}: has more rows than were announced")
        before = max(0, min(len(rows), self._next - (self.rows - len(rows))))
        if before:
            self._head.append(rows[:before].copy())
        if before < len(rows):
            super()._gather(rows[before:])

    def _write(self, rows: Array) -> None:
        if self._in_memory is None:
            # HDF5 takes two files of one name for the same.
            name = f"chunk {id(self)}"
            self._in_memory = h5py.File(name, "w", driver="core", backing_store=False)
            self._in_memory.create_dataset(
                "rows", shape=self._chunk, chunks=self._chunk, dtype=self.dtype, fletcher32=True
            )
        dataset = self._in_memory["rows"]
        for low in range(0, len(rows), self._chunk[0]):
            piece = rows[low : low + self._chunk[0]]
            if len(piece) < self._chunk[0]:
                dataset[len(piece) :] = 0
            dataset[: len(piece)] = piece
            dataset.flush()
            _, content = dataset.id.read_direct_chunk((0,) * len(self._chunk))
            self._output.write_at(int(self._places[self._next // self._chunk[0]]), content)
            self._next += self._chunk[0]

    def head(self) -> Array:
        """Return the rows that another process writes; raises `InputError` for missing ones."""
        if self.rows != self.span.stop:
            missing = self.span.stop - self.rows
            raise InputError(f"{self.path}: {missing} rows of a process are missing")
        none = np.empty((0, *self.row_shape), self.dtype)
        head, self._head = np.concatenate([none, *self._head]), []
        return head

    def complete(self, rows: Array) -> None:
        """Write what is left, with the `rows` behind this process's own that are in its chunks."""
        super()._gather(rows)
        if self._pending_rows:
            self._write(np.concatenate(self._pending))
        self._pending, self._pending_rows = [], 0
        self.release()

    def release(self) -> None:
        """Let go of the memory that chunks are made in."""
        if self._in_memory is not None:
            self._in_memory.close()
            self._in_memory = None

    def share_of_crc(self) -> int:
        """Return what this process's rows add to the checksum of all rows, by exclusive or."""
        behind = (self.span.total - self.span.stop) * math.prod(self.row_shape, start=1)
        return shift(self.crc, behind * self.dtype.itemsize)

    def join(self, crc: int) -> None:
        """Stand for the whole dataset from now on, which has this checksum."""
        self.rows, self.crc = self.span.total, crc
