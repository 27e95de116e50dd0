"""Adjacencies as callers hold them, viewed as the pattern of CSR arrays."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from hpcgnn.partition import _volpart
from hpcgnn.partition.pattern import CSRGraph

__all__ = ["as_integers", "as_pattern"]


def as_pattern(
    adjacency: Any = None, xadj: ArrayLike | None = None, adjncy: ArrayLike | None = None
) -> CSRGraph:
    """Return the checked pattern of a `CSRGraph`, SciPy or torch matrix, or of two CSR arrays.

    Contiguous int64 offsets and int32 or int64 columns are not copied. Raises ValueError naming
    the first fault, TypeError for an adjacency of another kind.
    """
    offsets, columns = _arrays(adjacency, xadj, adjncy)
    indptr = as_integers("the offsets", offsets, np.int64)
    wide = np.asarray(columns).dtype.itemsize > np.dtype(np.int32).itemsize
    indices = as_integers("the columns", columns, np.int64 if wide else np.int32)
    _volpart.check(indptr, indices)
    return CSRGraph(indptr, indices, indptr.size - 1)


def _arrays(adjacency: Any, xadj: ArrayLike | None, adjncy: ArrayLike | None) -> tuple[Any, Any]:
    if adjacency is None:
        if xadj is None or adjncy is None:
            raise ValueError("either adjacency is needed, or xadj and adjncy")
        return xadj, adjncy
    if xadj is not None or adjncy is not None:
        raise ValueError("adjacency excludes xadj and adjncy")
    if isinstance(adjacency, CSRGraph):
        return adjacency.indptr, adjacency.indices
    if isinstance(adjacency, tuple):
        offsets, columns = adjacency
        return offsets, columns
    if sparse.issparse(adjacency):
        _check_square(adjacency.shape)
        rows = adjacency.tocsr()
        return rows.indptr, rows.indices
    if hasattr(adjacency, "crow_indices"):
        _check_square(tuple(adjacency.shape))
        return adjacency.crow_indices().numpy(), adjacency.col_indices().numpy()
    raise TypeError(
        f"adjacency is a {type(adjacency).__name__}: a CSRGraph, a SciPy sparse matrix, a torch "
        "CSR tensor or a tuple (offsets, columns) is needed"
    )


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"adjacency has shape {shape}: it must be square")


def as_integers(what: str, values: ArrayLike, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Return `values` as a contiguous vector of `dtype`; raise ValueError where one does not fit.

    Raises ValueError for anything but a vector of integers.
    """
    found = np.asarray(values)
    if found.size == 0 and found.ndim == 1:
        return np.empty(0, dtype)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ValueError(f"{what}: {found.dtype}{found.shape} is not a vector of integers")
    limits = np.iinfo(dtype)
    if not np.can_cast(found.dtype, dtype) and (
        int(found.max()) > limits.max or int(found.min()) < limits.min
    ):
        raise ValueError(f"{what}: a value does not fit into {np.dtype(dtype)}")
    return np.ascontiguousarray(found, dtype)
