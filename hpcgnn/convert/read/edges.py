"""Edges in .npz files, as sources and targets or a sparse matrix, with arrays of edge data."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.convert.nodes import multi_labels, single_labels, split_from_codes
from hpcgnn.convert.read.npy import ArrayFile, Npz
from hpcgnn.convert.source import CHUNK_EDGES, EdgeChunk, EdgeStream, check_array, locate_in
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeColumns, EdgeData, first_true
from hpcgnn.typing import Array, Offsets

_QUIET_BELOW_EDGES = 4_000_000
_MEMORY_BYTES = 1 << 30

Pairs = Callable[[], Iterator[tuple[Array, Array]]]


def edge_spans(count: int, edges: int = 1) -> Iterator[slice]:
    """Yield slices of `count` rows, each row with `edges` edges, of about `CHUNK_EDGES` edges."""
    step = max(1, CHUNK_EDGES // max(1, edges))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


@dataclass(frozen=True)
class EdgeArrays:
    """Edges in files: `pairs()` yields sources and targets, `CHUNK_EDGES` at a time.

    The other arrays have an entry for each edge. `relation_ids` [num_edges] index `relations`;
    without them all edges belong to the first. `num_nodes` is that of a matrix, else None.
    """

    path: Path
    where: str
    num_edges: int
    pairs: Pairs
    weights: ArrayFile | None = None
    relation_ids: ArrayFile | None = None
    relations: tuple[str, ...] = ("",)
    num_nodes: int | None = None
    features: ArrayFile | None = None
    split: ArrayFile | None = None
    labels: "EdgeLabelArray | None" = None

    @property
    def columns(self) -> EdgeColumns:
        """The edge data that these arrays hold."""
        width = 0 if self.features is None else (*self.features.shape, 1)[1]
        columns = EdgeColumns(self.weights is not None, self.split is not None, width)
        if self.labels is None:
            return columns
        none = self.labels.none
        return replace(columns, num_labels=none.shape[1], label_dtype=none.dtype.str)

    def chunks(self) -> EdgeStream:
        """Yield the edges in stored order."""
        weights, ids = self._blocks(self.weights), self._blocks(self.relation_ids)
        first = 0
        text, quiet = f"reading {self.path.name}", self.num_edges < _QUIET_BELOW_EDGES
        with Progress(text, self.num_edges, "edges", quiet=quiet) as progress:
            features, roles = self._blocks(self.features), self._blocks(self.split)
            labels = repeat(None) if self.labels is None else self.labels.blocks()
            streams = zip(self.pairs(), weights, ids, features, roles, labels, strict=False)
            for (src, dst), values, numbers, rows, split, classes in streams:
                locate = partial(locate_in, self.where, first)
                if rows is not None:
                    # In the dtype of the file: what the store rounds is told where it is cast.
                    rows = rows.reshape(len(rows), -1)
                if split is not None and self.split is not None:
                    split = split_from_codes(split, self.split.where)
                data = EdgeData(rows, split, labels=classes)
                yield EdgeChunk(src, dst, locate, values, self.relations[0], data, numbers)
                first += len(src)
                progress.advance(len(src))

    def _blocks(self, array: ArrayFile | None) -> Iterator[Array | None]:
        return repeat(None) if array is None else array.rows(CHUNK_EDGES, _MEMORY_BYTES)


@dataclass(frozen=True)
class EdgeLabelArray:
    """Labels of edges in an array: classes [E], 0 and 1 [E, C], or with `is_number` numbers.

    `names` are those of the classes or columns.
    """

    array: ArrayFile
    names: tuple[str, ...]
    is_number: bool

    @property
    def none(self) -> Array:
        """An array without rows, of the width and dtype that a store has."""
        if self.is_number:
            return np.empty((0, len(self.names)), np.float32)
        single = len(self.array.shape) == 1
        return np.empty((0, 1), np.int32) if single else np.empty((0, len(self.names)), np.uint8)

    def blocks(self) -> Iterator[Array]:
        """Yield the labels in stored order; raises `InputError` for an invalid one."""
        array, first = self.array, 0
        for block in array.rows(CHUNK_EDGES, _MEMORY_BYTES):
            if self.is_number:
                yield block.reshape(len(block), -1).astype(np.float64, copy=False)
            elif block.ndim == 1:
                yield single_labels(block, array.where, len(self.names), first, "edge")[:, None]
            else:
                yield multi_labels(block, array.where, "edge")
            first += len(block)


def vector_pairs(src: ArrayFile, dst: ArrayFile) -> Pairs:
    """Return the pairs of two integer vectors; raises `InputError`."""
    check_vector(src, "iu")
    check_vector(dst, "iu", src)
    total = src.shape[0]
    return lambda: zip(
        src.flat(0, total, CHUNK_EDGES), dst.flat(0, total, CHUNK_EDGES), strict=True
    )


def index_pairs(index: ArrayFile) -> Pairs:
    """Return the pairs of an array [2, E] of sources and targets; raises `InputError`."""
    if len(index.shape) != 2 or index.shape[0] != 2 or index.dtype.kind not in "iu":
        raise InputError(
            f"{index.where} has shape {index.shape} and dtype {index.dtype}; expected integers "
            "[2, E]: sources in row 0, targets in row 1"
        )
    total = index.shape[1]
    if index.fortran_order:
        return lambda: (
            (pairs[0::2], pairs[1::2]) for pairs in index.flat(0, 2 * total, 2 * CHUNK_EDGES)
        )
    return lambda: zip(
        index.flat(0, total, CHUNK_EDGES), index.flat(total, 2 * total, CHUNK_EDGES), strict=True
    )


def has_weights(data: ArrayFile) -> bool:
    """Tell whether any value is not 1, so that the values are weights and not just entries."""
    return any((block != 1).any() for block in data.flat(0, data.shape[0], CHUNK_EDGES))


def check_vector(array: ArrayFile, kinds: str, like: ArrayFile | None = None) -> None:
    """Raise `InputError` unless `array` is a vector of the dtype `kinds`, as long as `like`."""
    values = "text" if "U" in kinds else "numbers" if "f" in kinds else "whole numbers"
    check_array(array, array.where, "[m]", kinds, f"a vector of {values}")
    if like is not None and array.shape != like.shape:
        raise InputError(
            f"{array.where} has {array.shape[0]} values and {like.member} has {like.shape[0]}; "
            "they must be equally long"
        )


def square(shape: ArrayFile) -> int:
    """Return the number of nodes from the stored shape of an adjacency; raises `InputError`."""
    sides = shape.load().ravel().tolist()
    if len(sides) != 2 or sides[0] != sides[1]:
        raise InputError(
            f"{shape.where} is {sides}; an adjacency is square: save it with one row and one "
            "column a node"
        )
    return int(sides[0])


def compressed_edges(npz: Npz, prefix: str = "", *, major_is_src: bool) -> EdgeArrays:
    """Return the entries of the sparse matrix `indptr`, `indices` and `data` of an .npz file.

    With `major_is_src`, index j in slice i of the compressed axis is the edge i -> j; without it,
    j -> i. Only the offsets are kept in memory. `data` may be missing; values that are all 1 are no
    weights. Raises `InputError` if the arrays do not fit together.
    """
    indptr, indices = npz.need(f"{prefix}indptr"), npz.need(f"{prefix}indices")
    check_vector(indptr, "iu")
    check_vector(indices, "iu")
    offsets = indptr.load().astype(np.int64)
    _check_offsets(offsets, indptr, indices)
    names = ("data",) if prefix else ("data", "weights", "weight")
    data = npz.get(*(f"{prefix}{name}" for name in names))
    if data is not None:
        check_vector(data, "biuf", indices)
    num_nodes = len(offsets) - 1
    shape = npz.get(f"{prefix}shape")
    if shape is not None and square(shape) != num_nodes:
        raise InputError(
            f"{shape.where} implies {square(shape)} nodes and {indptr.member} {num_nodes}; "
            "save the matrix again"
        )

    def pairs() -> Iterator[tuple[Array, Array]]:
        first = 0
        for minor in indices.flat(0, indices.shape[0], CHUNK_EDGES):
            major = rows_of(offsets, first, first + len(minor))
            yield (major, minor) if major_is_src else (minor, major)
            first += len(minor)

    return EdgeArrays(
        npz.path,
        indices.where,
        indices.shape[0],
        pairs,
        weights=data if data is not None and has_weights(data) else None,
        num_nodes=num_nodes,
    )


def _check_offsets(offsets: Offsets, indptr: ArrayFile, indices: ArrayFile) -> None:
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != indices.shape[0]:
        raise InputError(
            f"{indptr.where} must run from 0 to {indices.shape[0]}, the length of "
            f"{indices.member}; save the matrix again"
        )
    row = first_true(offsets[1:] < offsets[:-1])
    if row is not None:
        raise InputError(f"{indptr.where} decreases after row {row}; save the matrix again")


def rows_of(indptr: Offsets, start: int, stop: int) -> Array:
    """Return the row of each entry from `start` to `stop` - 1 (at least one) of a CSR matrix."""
    first = int(np.searchsorted(indptr, start, side="right")) - 1
    last = int(np.searchsorted(indptr, stop, side="left"))
    bounds = np.clip(indptr[first : last + 1], start, stop)
    counts = bounds[1:] - bounds[:-1]
    return np.repeat(np.arange(first, last), counts)
