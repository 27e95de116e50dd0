"""Checks and transposition of CSR matrices."""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import require_array
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices, Offsets

__all__ = ["transpose_csr", "transpose_values_symmetric", "validate_csr"]


def validate_csr(
    indptr: Offsets, indices: LocalIndices, num_columns: int, *, sorted_columns: bool = True
) -> None:
    """Check what the products take for granted: column indices in range (and in order).

    A product checks shapes, dtypes and `indptr` but not each index; run this once for every pattern
    whose origin is not known.

    Parameters
    ----------
    indptr
        ``(m + 1,)`` int64, from 0, non-decreasing.
    indices
        ``(nnz,)`` int32 columns.
    num_columns
        Every index must be in ``[0, num_columns)``.
    sorted_columns
        Also require ascending columns without repeats inside each row.

    Raises
    ------
    ValueError
        The pattern is broken; the message says where.
    """
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    _kernels.validate_csr(indptr, indices, num_columns, sorted_columns)


def transpose_csr(
    indptr: Offsets,
    indices: LocalIndices,
    values: FloatArray | None,
    num_columns: int,
    *,
    threads: int = 0,
) -> tuple[Offsets, LocalIndices, FloatArray | None, GlobalIndices]:
    """Transpose a CSR matrix of ``num_columns`` columns.

    Returns
    -------
    indptr
        ``(num_columns + 1,)`` int64.
    indices
        ``(nnz,)`` int32 row numbers of the original, ascending inside each row of the result.
    values
        ``values[source]``, or None.
    source
        ``(nnz,)`` int64 position in the original of each entry of the result.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        A broken pattern (see `validate_csr`; columns need not be sorted), or values of another
        length.
    """
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    if values is not None:
        require_array("values", values, 1, ("float32", "float64"))
        if values.size != indices.size:
            raise ValueError("values and indices must have the same length")
    out_indptr, out_indices, source = _kernels.transpose_csr(indptr, indices, num_columns, threads)
    if values is None:
        return out_indptr, out_indices, None, source
    out_values = np.empty_like(values)
    _kernels.permute_values(values, source, out_values, threads)
    return out_indptr, out_indices, out_values, source


def transpose_values_symmetric(
    indptr: Offsets, indices: LocalIndices, values: FloatArray
) -> FloatArray:
    """Return the values of the transpose of a matrix with a symmetric pattern.

    One pass over the matrix, without sorting and without a new pattern (graph-sampling paper,
    Algorithm 6): rows i come in order, so entry (i, j) is the next one of row j of the transpose.
    Runs on one thread, in O(nnz) time and O(m) memory.

    Parameters
    ----------
    indptr, indices
        ``(m + 1,)`` int64, ``(nnz,)`` int32 with ascending columns in each row.
    values
        ``(nnz,)`` float32 or float64.

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        A broken pattern, or one with a column that has more entries than its row.
    """
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("values", values, 1, ("float32", "float64"))
    out = np.empty_like(values)
    _kernels.transpose_values_symmetric(indptr, indices, values, out)
    return out
