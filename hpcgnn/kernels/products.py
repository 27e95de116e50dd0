"""Products of CSR and dense matrices."""

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, WireFormat, execution
from hpcgnn.kernels.operands import SparseMatrix
from hpcgnn.typing import Array


def spmm(
    matrix: SparseMatrix,
    x: Array,
    out: Array,
    *,
    accumulate: bool = False,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Multiply a CSR matrix with a dense one: ``out[rows[i]] (+)= sum values[e] * x[indices[e]]``.

    The sum runs over the non-zeros ``e`` in ``[indptr[i], indptr[i + 1])``, in order. The columns
    of `x` may be cut into tiles that fit a core's private cache (feature partitioning:
    graph-sampling paper, Algorithm 7). With Q tiles, ``k w s`` bytes of `x` (s bytes an element)
    and ``8 nnz Q`` bytes of pattern and values pass between memory and cache: at most twice the
    minimum while ``8 nnz Q <= k w s``. One tile is such a 2-approximation if `x` fits the cache and
    the average degree ``nnz / k`` is at most ``w s / 8``.

    Parameters
    ----------
    matrix
        Its columns are not checked here. `mean` divides each sum and `row_factors` multiply it; a
        row without non-zeros is zero.
    x
        ``(k, w)`` float32, float64, or 16-bit floats as uint16 (see `half`).
    out
        ``(*, w)`` of the dtype of `x`; or one of the two is float32 and the other a 16-bit type.
        Must not overlap `x`. Sums of 16-bit floats are kept in float32 and rounded once. Rows that
        the matrix does not store keep their values; without ``matrix.rows`` `out` has m rows.
    accumulate
        Add to `out` instead of overwriting it.
    """
    csr, kind = (matrix.indptr, matrix.indices, matrix.coded, matrix.values), half or ""
    factors = matrix.row_factors, matrix.column_factors
    threads, isa = execution(**run)
    _kernels.spmm(*csr, *factors, x, out, matrix.rows, accumulate, matrix.mean, threads, kind, isa)


def spmm_transpose(
    matrix: SparseMatrix,
    x: Array,
    out: Array,
    *,
    accumulate: bool = False,
    half: WireFormat | None = None,
    **run: Unpack[Run],
) -> None:
    """Multiply with the transpose: ``out[indices[e]] (+)= values[e] * x[rows[i]]``.

    The adjoint of `spmm` with the same arguments, without a transposed pattern. It writes where
    `spmm` reads, so it takes about twice as long: faster than `transpose_csr` and `spmm` together,
    slower than `spmm` with a stored transpose.

    The matrix's columns are rows of `out`, and are checked. `x` is ``(*, w)`` float32, float64, or
    16-bit floats as uint16 (see `half`). `out` is ``(k, w)``, float64 if `x` is, else float32, and
    must not overlap `x`. At most one thread per 64 bytes of a row of `out` is used.
    """
    csr, kind = (matrix.indptr, matrix.indices, matrix.values), half or ""
    threads, isa = execution(**run)
    _kernels.spmm_transpose(*csr, x, out, matrix.rows, accumulate, matrix.mean, threads, kind, isa)
