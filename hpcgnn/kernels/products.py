"""Products of CSR and dense matrices."""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import DENSE, WireFormat, half_name, require_array
from hpcgnn.typing import Array, FloatArray, LocalIndices, Offsets


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
    half: WireFormat | None = None,
    isa: str = "auto",
) -> None:
    """Multiply a CSR matrix with a dense one: ``out[rows[i]] (+)= sum values[e] * x[indices[e]]``.

    The sum runs over the non-zeros ``e`` in ``[indptr[i], indptr[i + 1])``, in order. The columns
    may be cut into tiles that suit the core's private cache (feature partitioning: graph-sampling
    paper, Algorithm 7). With Q tiles that fit it, ``k w s`` bytes of `x` (s bytes an element) and
    ``8 nnz Q`` bytes of pattern and values pass between memory and cache: at most twice the least
    possible while ``8 nnz Q <= k w s``. One tile is such a 2-approximation when `x` fits the cache
    and the average degree ``nnz / k`` is at most ``w s / 8``.

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
    """
    _check(indptr, indices, values, x, out, rows)
    matrix, kind = (indptr, indices, values), half_name(half, x, out)
    _kernels.spmm(*matrix, x, out, rows, accumulate, mean, threads, kind, isa)


def spmm_transpose(
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
    half: WireFormat | None = None,
    isa: str = "auto",
) -> None:
    """Multiply with the transpose: ``out[indices[e]] (+)= values[e] * x[rows[i]]``.

    The adjoint of `spmm` with the same arguments, without a transposed pattern. It writes where
    `spmm` reads, so it takes about twice as long: faster than `transpose_csr` and `spmm` together,
    slower than `spmm` with a transpose that is kept.

    Parameters
    ----------
    indptr, indices, values
        As in `spmm`; `indices` are rows of `out`, and are checked.
    x
        ``(*, w)`` float32, float64, or 16-bit floats as uint16 (see `half`); must not overlap
        `out`.
    out
        ``(k, w)`` float64 when `x` is, else float32.
    rows
        ``(m,)`` int32, the row of `x` of each row of the matrix; None = row i.
    mean
        Count each non-zero of row i with 1 / its number of non-zeros.
    threads
        At most one per 64 bytes of a row of `out` is used.
    """
    _check(indptr, indices, values, x, out, rows)
    matrix, kind = (indptr, indices, values), half_name(half, x, out)
    _kernels.spmm_transpose(*matrix, x, out, rows, accumulate, mean, threads, kind, isa)


def _check(
    indptr: Offsets,
    indices: LocalIndices,
    values: FloatArray | None,
    x: Array,
    out: Array,
    rows: LocalIndices | None,
) -> None:
    require_array("indptr", indptr, 1, ("int64",))
    require_array("indices", indices, 1, ("int32",))
    require_array("x", x, 2, DENSE)
    require_array("out", out, 2, DENSE, writable=True)
    if values is not None:
        require_array("values", values, 1, ("float64",) if x.dtype == np.float64 else ("float32",))
    if rows is not None:
        require_array("rows", rows, 1, ("int32",))
