"""Encode HDF5 chunks in memory, to write them into a file that another process has open."""

import math
import operator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from hpcgnn.typing import Array, Offsets


@dataclass(frozen=True)
class RowSpan:
    """Rows `start` to `stop` - 1 of `total`."""

    start: int
    stop: int
    total: int


class ChunkMaker:
    """Encodes chunks, checksums included, by letting HDF5 write them to a file in memory."""

    def __init__(self, chunk: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._chunk, self._dtype = chunk, dtype
        self._file: h5py.File | None = None

    def bytes_of(self, rows: Array) -> bytes:
        """Return the bytes of a chunk that begins with `rows` and is zero after them."""
        if self._file is None:
            # The name must be unique: HDF5 takes two files of one name for the same file.
            name = f"chunk {id(self)}"
            self._file = h5py.File(name, "w", driver="core", backing_store=False)
            self._file.create_dataset(
                "rows", shape=self._chunk, chunks=self._chunk, dtype=self._dtype, fletcher32=True
            )
        dataset = self._file["rows"]
        if len(rows) < self._chunk[0]:
            dataset[len(rows) :] = 0
        dataset[: len(rows)] = rows
        dataset.flush()
        return dataset.id.read_direct_chunk((0,) * len(self._chunk))[1]

    def release(self) -> None:
        """Free the memory."""
        if self._file is not None:
            self._file.close()
            self._file = None


def early() -> Any:
    """Return creation properties of datasets whose chunks are all allocated at creation."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    return plist


def places_in(dataset: h5py.Dataset) -> Offsets:
    """Return the file offsets (chunks,) int64 in bytes of a dataset's chunks, in order."""
    grid = [-(-size // chunk) for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    offsets = np.empty(math.prod(grid), np.int64)

    def note(chunk: Any) -> None:
        number = 0
        for first, size, count in zip(chunk.chunk_offset, dataset.chunks, grid, strict=True):
            number = number * count + first // size
        offsets[number] = chunk.byte_offset

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(note)
    else:
        # HDF5 before 1.10.10 and 1.12.3: slow, each call searches all chunks.
        for corner in np.ndindex(*grid):
            first = tuple(map(operator.mul, corner, dataset.chunks))
            note(dataset.id.get_chunk_info_by_coord(first))
    return offsets
