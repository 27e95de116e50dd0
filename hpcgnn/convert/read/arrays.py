"""Graphs from arrays of edges and features: a single graph, or many joined into one."""

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.console import report
from hpcgnn.convert.nodes import labelled
from hpcgnn.convert.read.edges import edge_spans
from hpcgnn.convert.read.npy import ArrayFile, Npz, open_npy
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    Features,
    FeatureStream,
    GraphSource,
    NodeArrays,
    TypeRange,
    check_array,
    locate_in,
)
from hpcgnn.errors import InputError, one_line
from hpcgnn.storage import EdgeColumns, EdgeData
from hpcgnn.typing import Array, GlobalIndices

_BLOCK_VALUES = 1 << 20


def array_features(array: ArrayFile, options: ConvertOptions) -> Features:
    """Return this rank's rows of a matrix of numbers [n, f]; raises `InputError`."""
    check_array(array, array.where, "[n, f]", expected="features, numbers")
    own_rows, step = options.ranks.range_of(array.shape[0]), _rows_of_block(array.shape[1])
    return Features(
        array.shape[1],
        array.dtype,
        partial(array.rows, step, options.memory_bytes, own_rows),
        partial("{}, row {}".format, array.where),
        own_rows.start,
    )


def _rows_of_block(columns: int) -> int:
    return max(1, _BLOCK_VALUES // max(1, columns))


@dataclass
class Narrowing:
    """Converts numbers to the `dtype` of a store, and reports the first integer that it rounds.

    Messages describe a number by `name` with its column; NaN is allowed if values may be `missing`.
    """

    dtype: np.dtype[Any]
    name: str = "the feature in column {}"
    remedy: str = "--dtype float64 keeps such numbers"
    missing: bool = False
    reported: bool = False

    def rows(self, block: Array, locate: Callable[[int], str]) -> Array:
        """Return the rows in the dtype; raises `InputError` for a number that is not finite."""
        with np.errstate(over="ignore"):
            rows = block.astype(self.dtype, copy=False)
        wrong = ~np.isfinite(rows) & ~(np.isnan(rows) & self.missing)
        if wrong.any():
            row, column = self._first(wrong)
            raise InputError(
                f"{locate(row)}: {self.name.format(column + 1)} is {rows[row, column]} as "
                f"{self.dtype}; replace it by a finite number"
            )
        if not self.reported and not np.can_cast(block.dtype, self.dtype):
            rounded = (np.abs(rows) >= 2 / np.finfo(self.dtype).eps) & (rows.astype(float) != block)
            if rounded.any():
                self.reported, (row, column) = True, self._first(rounded)
                exact, kept = (float(matrix[row, column]) for matrix in (block, rows))
                report(
                    f"{locate(row)}: {self.name.format(column + 1)} is rounded from {exact:.17g} "
                    f"to {kept:.17g} as {self.dtype}, and others may be; {self.remedy}"
                )
        return rows

    @staticmethod
    def _first(mask: Array) -> tuple[int, int]:
        row, column = np.unravel_index(np.argmax(mask), mask.shape)
        return int(row), int(column)


def checked_matrix(
    where: str, *, data: Array, indices: Array, indptr: Array, shape: Sequence[int]
) -> Any:
    """Return a SciPy CSR matrix; raises `InputError` if its parts do not fit together."""
    kinds = (data.dtype.kind in "biuf", indices.dtype.kind in "iu", indptr.dtype.kind in "iu")
    try:
        if not all(kinds) or len(shape) != 2 or not all(type(side) is int for side in shape):
            raise ValueError("values must be numbers, indices and both sides whole numbers")
        matrix = import_module("scipy.sparse").csr_matrix(
            (data, indices, indptr), shape=tuple(shape)
        )
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise InputError(
            f"{where} is no valid CSR matrix ({one_line(error)}); save it again"
        ) from error
    return matrix


@dataclass(frozen=True, slots=True)
class RelationEdges:
    """Sources, targets, weights and features [E, F] of the edges of one relation."""

    src: Array
    dst: Array
    weights: Array | None = None
    features: Array | None = None


def array_source(
    path: Path,
    edges: Mapping[str, RelationEdges],
    num_nodes: int,
    nodes: NodeArrays,
    ends: Mapping[str, tuple[TypeRange, TypeRange]] | None = None,
    *,
    inputs: tuple[Path, ...] = (),
    ignored: tuple[str, ...] = (),
) -> GraphSource:
    """Return a graph of arrays, called `path` in messages.

    If ids are within node types, `ends` are the source and target type of each relation. Raises
    `InputError` for arrays that do not fit together.
    """
    for relation, arrays in edges.items():
        _check_edges(f"{path}: edges {relation}".rstrip(), arrays)
    return GraphSource(
        path=path,
        edges=partial(_stream, str(path), edges, ends or {}),
        inputs=inputs,
        relations=tuple(edges),
        num_nodes=num_nodes,
        columns={
            name: EdgeColumns.of(EdgeData(arrays.features), weighted=arrays.weights is not None)
            for name, arrays in edges.items()
        },
        nodes=nodes,
        ignored=ignored,
    )


def file_shape(path: Path) -> tuple[int, ...]:
    """Return the shape of the features in an .npy file or a SciPy .npz file."""
    if path.suffix.lower() == ".npy":
        return open_npy(path).shape
    return tuple(Npz(path).need("shape").load().ravel().tolist())


def file_features(path: Path, options: ConvertOptions) -> Features:
    """Return this rank's rows of a matrix in an .npy file, or of a SciPy CSR matrix in an .npz."""
    if path.suffix.lower() == ".npy":
        return array_features(options.ranks.from_first(lambda: open_npy(path)), options)
    with options.ranks.agree():
        npz = Npz(path)
        if npz.word("format") != "csr":
            raise InputError(f"{path}: is no CSR matrix; save matrix.tocsr() with scipy.sparse")
        parts = {part: npz.need(part).load() for part in ("data", "indices", "indptr")}
        matrix = checked_matrix(str(path), **parts, shape=file_shape(path))
        return matrix_features(matrix, str(path), options.ranks.range_of(matrix.shape[0]))


def matrix_features(
    matrix: Any, where: str, own_rows: range | None = None, names: tuple[str, ...] = ()
) -> Features:
    """Return the features of a matrix of numbers [n, f], an array or SciPy CSR; `InputError`.

    They are the rows `own_rows` of a rank, or all; `names` are those of the columns.
    """
    is_sparse = hasattr(matrix, "toarray")
    if is_sparse:
        matrix = matrix.tocsr(copy=True)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
    else:
        check_array(matrix, where, "[n, f]")
    num_rows, columns = matrix.shape
    count = matrix.nnz if is_sparse else np.count_nonzero(matrix)
    own = range(num_rows) if own_rows is None else own_rows

    def blocks() -> FeatureStream:
        step = _rows_of_block(columns)
        for first in range(own.start, own.stop, step):
            block = matrix[first : min(first + step, own.stop)]
            yield block.toarray() if is_sparse else block

    return Features(
        columns,
        matrix.dtype,
        blocks,
        partial("{}, row {}".format, where),
        own.start,
        matrix=matrix if is_sparse else None,
        density=count / max(1, num_rows * columns),
        names=names,
    )


def _check_edges(where: str, edges: RelationEdges) -> None:
    weights, features = edges.weights, edges.features
    arrays = (edges.src, edges.dst, weights, None if features is None else features[:, 0])
    shapes = [array.shape for array in arrays if array is not None]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise InputError(f"{where}: arrays have the shapes {shapes}; give equally long vectors")
    if weights is not None and weights.dtype.kind not in "biuf":
        raise InputError(f"{where}: weights have dtype {weights.dtype}; give numbers")


def _stream(
    origin: str, edges: Mapping[str, RelationEdges], ends: Mapping[str, tuple[TypeRange, TypeRange]]
) -> EdgeStream:
    for relation, arrays in edges.items():
        where = f"{origin}: edges {relation}".rstrip()
        for part in edge_spans(len(arrays.src)):
            values = None if arrays.weights is None else arrays.weights[part]
            locate = partial(locate_in, where, part.start)
            data = EdgeData(arrays.features).take(part)
            chunk = EdgeChunk(arrays.src[part], arrays.dst[part], locate, values, relation, data)
            yield chunk.between(*ends[relation]) if ends else chunk


def many_graphs(
    path: Path,
    graph: GlobalIndices,
    edges: RelationEdges,
    features: Array | None,
    values: Array | None,
    *,
    inputs: tuple[Path, ...] = (),
    ignored: tuple[str, ...] = (),
) -> GraphSource:
    """Return many graphs as one; raises `InputError` for faulty values.

    `graph` (n,) is the number of each node's graph, `features` are (n, f). `values` (g,) or (g, w)
    are classes, 0 and 1 for several labels, or numbers to predict. Integers are taken as classes;
    numbers to predict go to a file beside the store.
    """
    nodes, targets = NodeArrays(graph=graph), None
    if features is not None:
        nodes = replace(nodes, features=matrix_features(features, f"{path}: features"))
    if values is not None and _are_classes(values):
        labels = labelled(values, f"{path}: labels of graphs")
        nodes = replace(nodes, labels=replace(labels, values=labels.values[graph]))
    elif values is not None:
        targets = np.asarray(values, np.float64).reshape(len(values), -1)
    source = array_source(path, {"": edges}, len(graph), nodes, inputs=inputs, ignored=ignored)
    return replace(source, targets=targets)


def _are_classes(values: Array) -> bool:
    if values.dtype.kind != "f":
        return True
    numbers = values[~np.isnan(values)]
    are_whole = bool((numbers == np.floor(numbers)).all() and (numbers >= -1).all())
    # Several columns of 0 and 1 are several labels; other columns are numbers to predict.
    return are_whole and (
        values.ndim == 1 or values.shape[1] == 1 or bool(np.isin(numbers, (0, 1)).all())
    )


def side_by_side(parts: Sequence[RelationEdges], sizes: Sequence[int], where: str) -> RelationEdges:
    """Join the edges of graphs with `sizes` nodes, numbering nodes graph after graph."""
    starts = np.cumsum([0, *sizes])
    for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
        ends = np.concatenate([part.src, part.dst])
        if len(ends) and not 0 <= ends.min() <= ends.max() < size:
            raise InputError(f"{where}[{number}]: an edge has a node outside 0..{size - 1}")
    weights = [part.weights for part in parts if part.weights is not None]
    features = [part.features for part in parts if part.features is not None]
    for column, arrays in (("weights", weights), ("features", features)):
        if arrays and len(arrays) < len(parts):
            raise InputError(f"{where}: the edges of only some graphs have {column}; give all")
    return RelationEdges(
        np.concatenate([part.src + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate([part.dst + start for part, start in zip(parts, starts, strict=False)]),
        np.concatenate(weights) if weights else None,
        np.concatenate(features) if features else None,
    )


def scratch_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros in an unnamed file in TMPDIR; raises `InputError` if it has no room for them."""
    num_bytes = dtype.itemsize * math.prod(shape)
    try:
        with tempfile.TemporaryFile(prefix="hpcgnn-values-") as file:
            # Writing to a mapped page without room on the disk would kill the process.
            os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
            return np.memmap(file, dtype, "r+", shape=shape)
    except OSError as error:
        raise InputError(
            f"{tempfile.gettempdir()}: has no room for {num_bytes:,} bytes of scratch data "
            f"({error.strerror}); name another directory (TMPDIR)"
        ) from None
