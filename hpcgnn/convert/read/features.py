"""Matrices of features, dense in a file or sparse in memory, as streams of dense rows."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from hpcgnn.convert.read.npy import ArrayFile
from hpcgnn.convert.source import ConvertOptions, Features, FeatureStream, check_array
from hpcgnn.errors import InputError
from hpcgnn.typing import Array


def array_features(array: ArrayFile, options: ConvertOptions) -> Features:
    """Return the rows of a matrix of numbers [n, f] that a rank keeps; raises `InputError`."""
    check_array(array, array.where, "[n, f]", due="features, numbers")
    own = options.ranks.range_of(array.shape[0])

    def blocks(rows: int) -> FeatureStream:
        return array.rows(rows, options.memory_bytes, own)

    return Features.of_matrix(array.shape, array.dtype, blocks, array.where, own)


def finite_rows(block: Array, dtype: np.dtype[Any], locate: Callable[[int], str]) -> Array:
    """Return rows as `dtype`; raises `InputError` for what is not finite, at the place of a row."""
    with np.errstate(over="ignore"):
        rows = block.astype(dtype, copy=False)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = (int(i) for i in np.unravel_index(np.argmin(finite), rows.shape))
        raise InputError(
            f"{locate(row)}: the feature in column {column + 1} is {rows[row, column]} as {dtype}; "
            "replace it by a finite number"
        )
    return rows


def checked_matrix(
    where: str, *, data: Array, indices: Array, indptr: Array, shape: Sequence[int]
) -> Any:
    """Return a CSR matrix of SciPy whose parts fit together; raises `InputError` if they do not."""
    kinds = (data.dtype.kind in "biuf", indices.dtype.kind in "iu", indptr.dtype.kind in "iu")
    try:
        if not all(kinds) or len(shape) != 2 or not all(type(side) is int for side in shape):
            raise ValueError("values must be numbers, indices and two sides whole numbers")
        matrix = import_module("scipy.sparse").csr_matrix(
            (data, indices, indptr), shape=tuple(shape)
        )
        matrix.check_format(full_check=True)
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{where} is no valid CSR matrix ({reason}); save it again") from error
    return matrix


def dense_features(matrix: Any, where: str) -> Features:
    """Return the rows of a CSR matrix of SciPy: a store holds dense features."""

    def blocks(rows: int) -> FeatureStream:
        for first in range(0, matrix.shape[0], rows):
            yield matrix[first : first + rows].toarray()

    return Features.of_matrix(matrix.shape, matrix.dtype, blocks, where)
