"""Validate, transpose, select and renumber CSR matrices, and compress their column indices."""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels._kernels import CodedColumns
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


def validate_csr(
    indptr: Offsets, indices: LocalIndices, num_columns: int, *, sorted_columns: bool = True
) -> None:
    """Check what the products assume: column indices in range (and in order).

    A product checks shapes, dtypes and `indptr` but not each index; run this once for every pattern
    of unknown origin. `indptr` is ``(m + 1,)`` int64, starts at 0 and must not decrease; `indices`
    are ``(nnz,)`` int32 in ``[0, num_columns)``; with `sorted_columns` they must ascend without
    repeats inside each row.

    Raises `ValueError` with the position of the first error.
    """
    _kernels.validate_csr(indptr, indices, num_columns, sorted_columns)


def transpose_csr(
    indptr: Offsets,
    indices: LocalIndices,
    values: FloatArray | None,
    num_columns: int,
    *,
    with_source: bool = False,
    threads: int = 0,
) -> tuple[Offsets, LocalIndices, FloatArray | None, GlobalIndices | None]:
    """Transpose a CSR matrix of ``num_columns`` columns.

    Return offsets ``(num_columns + 1,)`` int64; ``(nnz,)`` int32 row numbers of the original,
    ascending inside each row of the result; ``(nnz,)`` values, or None; and, if `with_source`,
    ``(nnz,)`` int64 positions of the entries in the original.
    """
    return _kernels.transpose_csr(indptr, indices, values, num_columns, with_source, threads)


def select_csr(
    indptr: Offsets,
    indices: LocalIndices,
    values: FloatArray | None,
    columns: LocalIndices,
    *,
    rows: Mask | None = None,
    entries: Mask | None = None,
) -> tuple[Offsets, LocalIndices, FloatArray | None]:
    """Keep some entries of a CSR matrix, in order, and renumber the columns.

    Runs on one thread, in two passes over the pattern. `columns` ``(k,)`` int32 gives the new
    number of each column; a negative one drops the column's entries. `rows` ``(m,)`` and `entries`
    ``(nnz,)`` are masks of what is kept, None = all. `values` may be int32 too. Returns the number
    of kept entries of each row as ``(m,)`` int64, and their indices and values.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.int32:
        return _kernels.select_csr(indptr, indices, values, columns, rows, entries)
    # The kernel copies values bit by bit, without arithmetic.
    bits = values.view(np.float32)
    *pattern, kept = _kernels.select_csr(indptr, indices, bits, columns, rows, entries)
    assert kept is not None
    return (*pattern, kept.view(np.int32))


def transpose_values_symmetric(
    indptr: Offsets, indices: LocalIndices, values: FloatArray
) -> FloatArray:
    """Return the values of the transpose of a matrix with a symmetric pattern.

    One pass over the matrix, without sorting and without a new pattern (graph-sampling paper,
    Algorithm 6): rows i are visited in order, so entry (i, j) is the next one in row j of the
    transpose. Columns must ascend in each row. Runs on one thread, in O(nnz) time and O(m) memory.

    Raises `ValueError` for a broken pattern, or if column i has more entries than row i.
    """
    out = np.empty_like(values)
    _kernels.transpose_values_symmetric(indptr, indices, values, out)
    return out


def distinct_numbers(values: Array, limit: int) -> Array:
    """Return the distinct `values` (int32 or int64 in ``[0, limit)``) in ascending order.

    Needs `limit` / 4 bytes. Raises `ValueError` for a value that is out of range.
    """
    distinct = _kernels.distinct32 if values.dtype == np.int32 else _kernels.distinct64
    return distinct(np.ascontiguousarray(values), limit)


def renumber(names: Array, numbers: LocalIndices, values: Array, out: LocalIndices) -> None:
    """Replace each of `values` (n,) that equals ``names[i]`` by ``numbers[i]``, written to `out`.

    `names` (m,) ascend; names and values are int32 or int64, and `out` (n,) may be the values.
    Needs a quarter of a byte for each number up to the last name. Raises `ValueError` for a value
    that is not among the names.
    """
    look_up = _kernels.renumber32 if values.dtype == np.int32 else _kernels.renumber64
    look_up(np.ascontiguousarray(names, values.dtype), numbers, np.ascontiguousarray(values), out)


def code_columns(indptr: Offsets, indices: LocalIndices, *, threads: int = 0) -> CodedColumns:
    """Compress the columns of a CSR matrix: gaps, in blocks of 16 with the fewest bits that fit.

    `indptr` is ``(m + 1,)`` int64, from 0, non-decreasing; `indices` ``(nnz,)`` int32 may have any
    order, which is kept, but sorted rows take the fewest bytes. `spmm` decodes one block at a time,
    with equal results.
    """
    return _kernels.code_columns(indptr, indices, threads)


def decode_columns(coded: CodedColumns, indptr: Offsets, *, isa: str = "auto") -> LocalIndices:
    """Return the ``(nnz,)`` int32 columns that were coded with these offsets."""
    indices = np.empty(len(coded), np.int32)
    _kernels.decode_columns(coded, indptr, indices, isa)
    return indices
