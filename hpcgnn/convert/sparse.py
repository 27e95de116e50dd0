"""Compressed sparse matrices of .npz files as edges, with only the row offsets in memory."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from hpcgnn.convert.coordinates import (
    check_vector,
    edge_progress,
    has_weights,
    locate_in,
)
from hpcgnn.convert.npy import ArrayFile, Npz
from hpcgnn.convert.source import CHUNK_EDGES, EdgeChunk, EdgeStream
from hpcgnn.errors import InputError
from hpcgnn.typing import Array, Offsets

__all__ = ["CompressedMatrix", "rows_of"]


@dataclass(frozen=True)
class CompressedMatrix:
    """A square matrix: offsets in memory, indices and values in the file.

    `major_is_src` says which end of an edge the compressed axis is: with it, index j in slice i is
    the edge i -> j; without it, j -> i.
    """

    indptr: Offsets
    indices: ArrayFile
    data: ArrayFile | None
    major_is_src: bool

    @classmethod
    def read(cls, npz: Npz, prefix: str = "", *, major_is_src: bool) -> "CompressedMatrix":
        """Read `indptr`, `indices` and `data` of an .npz file and check them against each other.

        `data` may be missing; values that are all 1 are no weights. Raises `InputError`.
        """
        indptr, indices = npz.need(f"{prefix}indptr"), npz.need(f"{prefix}indices")
        check_vector(indptr, "iu")
        check_vector(indices, "iu")
        offsets = indptr.load().astype(np.int64)
        _check_offsets(offsets, indptr, indices)
        weights = ("data",) if prefix else ("data", "weights", "weight")
        data = npz.get(*(f"{prefix}{name}" for name in weights))
        if data is not None:
            check_vector(data, "biuf", indices)
        shape = npz.get(f"{prefix}shape")
        if shape is not None and shape.load().tolist() != [len(offsets) - 1] * 2:
            raise InputError(
                f"{shape.where} is {shape.load().tolist()} where the adjacency of "
                f"{len(offsets) - 1} nodes is square; save it with one row and one column a node"
            )
        weighted = data is not None and has_weights(data)
        return cls(offsets, indices, data if weighted else None, major_is_src)

    @property
    def num_nodes(self) -> int:
        """Number of rows."""
        return len(self.indptr) - 1

    def chunks(self) -> EdgeStream:
        """Yield the entries as edges, row by row."""
        total = self.indices.shape[0]
        minors = self.indices.flat(0, total, CHUNK_EDGES)
        values = None if self.data is None else self.data.flat(0, total, CHUNK_EDGES)
        with edge_progress(self.indices.path, total) as progress:
            for first in range(0, total, CHUNK_EDGES):
                minor = next(minors)
                major = rows_of(self.indptr, first, first + len(minor))
                src, dst = (major, minor) if self.major_is_src else (minor, major)
                weights = None if values is None else next(values)
                yield EdgeChunk(src, dst, partial(locate_in, self.indices.where, first), weights)
                progress.advance(len(minor))


def _check_offsets(offsets: Offsets, indptr: ArrayFile, indices: ArrayFile) -> None:
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != indices.shape[0]:
        raise InputError(
            f"{indptr.where} must run from 0 to the {indices.shape[0]} entries of "
            f"{indices.member}; save the matrix again"
        )
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        row = int(np.argmax(falls))
        raise InputError(f"{indptr.where} decreases after row {row}; save the matrix again")


def rows_of(indptr: Offsets, start: int, stop: int) -> Array:
    """Return the row of each of the entries `start` to `stop` (not empty) of a CSR matrix."""
    first = int(np.searchsorted(indptr, start, side="right")) - 1
    last = int(np.searchsorted(indptr, stop, side="left"))
    bounds = np.clip(indptr[first : last + 1], start, stop)
    counts = bounds[1:] - bounds[:-1]
    return np.repeat(np.arange(first, last), counts)
