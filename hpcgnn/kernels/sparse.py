"""Products with CSR matrices, and their transposition."""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import DENSE, Half, half_name, require_array
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

__all__ = ["spmm", "transpose_csr", "validate_csr"]


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


def spmm(
    indptr: Offsets,
    indices: LocalIndices,
    values: FloatArray | None,
    x: Array,
    out: Array,
    *,
    rows: LocalIndices | None = None,
    accumulate: bool = False,
    mean: bool = False,
    threads: int = 0,
    half: Half | None = None,
    isa: str = "auto",
) -> None:
    """Multiply a CSR matrix with a dense one: ``out[rows[i]] (+)= sum values[e] * x[indices[e]]``.

    The sum runs over the non-zeros ``e`` in ``[indptr[i], indptr[i + 1])``, in order.

    Parameters
    ----------
    indptr
        ``(m + 1,)`` int64 offsets.
    indices
        ``(nnz,)`` int32 rows of `x`; not checked here, see `validate_csr`.
    values
        ``(nnz,)`` weights, float64 when `x` is, else float32; None = all ones.
    x
        ``(k, w)`` float32, float64, or 16-bit floats as uint16 (see `half`).
    out
        ``(*, w)``, the dtype of `x`; or float32 beside a 16-bit type, as `x` or as `out`. Must not
        overlap `x`. Sums of 16-bit floats are kept in float32 and rounded once.
    rows
        ``(m,)`` int32, the row of `out` that each row adds to, without repeats; None = row i, and
        `out` then has m rows. Other rows of `out` are left alone.
    accumulate
        Add to `out` instead of overwriting it.
    mean
        Divide each sum by the row's number of non-zeros; a row without any gives zero.
    threads
        OpenMP threads, 0 = default. The result is the same for any number.
    half
        What uint16 operands hold.
    isa
        Instruction set, one of `available_isas`, or "auto".

    Raises
    ------
    TypeError
        Wrong dtype, or an array that is not C-contiguous.
    ValueError
        Shapes that do not match, offsets that decrease, or `rows` out of range.
    """
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("x", x, 2, DENSE)
    require_array("out", out, 2, DENSE, writable=True)
    if values is not None:
        require_array("values", values, 1, ("float64",) if x.dtype == np.float64 else ("float32",))
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
    _kernels.spmm(
        indptr,
        indices,
        values,
        x,
        out,
        rows,
        accumulate,
        mean,
        threads,
        half_name(half, x, out),
        isa,
    )


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
    return out_indptr, out_indices, None if values is None else values[source], source
