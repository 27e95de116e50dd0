"""Checks, transposition, parts of CSR matrices, and their columns in fewer bytes."""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels._kernels import CodedColumns
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


def validate_csr(
    indptr: Offsets, indices: LocalIndices, num_columns: int, *, sorted_columns: bool = True
) -> None:
    """Check what the products take for granted: column indices in range (and in order).

    A product checks shapes, dtypes and `indptr` but not each index; run this once for every pattern
    whose origin is not known. `indptr` is ``(m + 1,)`` int64, from 0, non-decreasing, `indices`
    ``(nnz,)`` int32, in ``[0, num_columns)``; with `sorted_columns` they must ascend without
    repeats inside each row.

    Raises `ValueError` that says where the pattern is broken.
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
    ascending inside each row of the result; ``(nnz,)`` values, or None; and, where wanted,
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
    """Keep some entries of a CSR matrix, in order, with columns numbered anew.

    Runs on one thread, in two passes over the pattern. `columns` ``(k,)`` int32 are the new number
    of each column, negative drops the column's entries; `rows` ``(m,)`` and `entries` ``(nnz,)``
    are masks of what is kept, None = all. `values` may be int32 too. Returns ``(m,)`` int64 kept
    entries of each row, and their indices and values.
    """
    if not isinstance(values, np.ndarray) or values.dtype != np.int32:
        return _kernels.select_csr(indptr, indices, values, columns, rows, entries)
    # Values are moved alone, bit by bit.
    bits = values.view(np.float32)
    *pattern, kept = _kernels.select_csr(indptr, indices, bits, columns, rows, entries)
    assert kept is not None
    return (*pattern, kept.view(np.int32))


def transpose_values_symmetric(
    indptr: Offsets, indices: LocalIndices, values: FloatArray
) -> FloatArray:
    """Return the values of the transpose of a matrix with a symmetric pattern.

    One pass over the matrix, without sorting and without a new pattern (graph-sampling paper,
    Algorithm 6): rows i come in order, so entry (i, j) is the next one of row j of the transpose.
    Runs on one thread, in O(nnz) time and O(m) memory. Columns ascend in each row.

    Raises `ValueError` for a broken pattern, or one with a column that has more entries than its
    row.
    """
    out = np.empty_like(values)
    _kernels.transpose_values_symmetric(indptr, indices, values, out)
    return out


def distinct_numbers(values: Array, limit: int) -> Array:
    """Return `values`, int32 or int64 in ``[0, limit)``, increasing and each once.

    Needs `limit` / 4 bytes. Raises `ValueError` for a value that is out of range.
    """
    distinct = _kernels.distinct32 if values.dtype == np.int32 else _kernels.distinct64
    return distinct(np.ascontiguousarray(values), limit)


def renumber(names: Array, numbers: LocalIndices, values: Array, out: LocalIndices) -> None:
    """Write ``numbers[i]`` to `out` (n,) for each of the `values` (n,) that is ``names[i]``.

    `names` (m,) increase; names and values are int32 or int64, and `out` may be the values. Needs a
    quarter of a byte for each number up to the last name. Raises `ValueError` for a value that is
    no name.
    """
    look_up = _kernels.renumber32 if values.dtype == np.int32 else _kernels.renumber64
    look_up(np.ascontiguousarray(names, values.dtype), numbers, np.ascontiguousarray(values), out)


def code_columns(indptr: Offsets, indices: LocalIndices, *, threads: int = 0) -> CodedColumns:
    """Return the columns of a CSR matrix as gaps in as few bits as 16 neighbours need.

    `indptr` is ``(m + 1,)`` int64, from 0, non-decreasing; `indices` ``(nnz,)`` int32 in any order,
    which is kept: sorted rows take the fewest bytes. `spmm` decodes them a block at a time, with
    equal results.
    """
    return _kernels.code_columns(indptr, indices, threads)


def decode_columns(coded: CodedColumns, indptr: Offsets, *, isa: str = "auto") -> LocalIndices:
    """Return the ``(nnz,)`` int32 columns that were coded with these offsets."""
    indices = np.empty(len(coded), np.int32)
    _kernels.decode_columns(coded, indptr, indices, isa)
    return indices
