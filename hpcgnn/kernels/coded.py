"""Columns of a matrix in fewer than 4 bytes each."""

import numpy as np

from hpcgnn.kernels import _kernels
from hpcgnn.kernels._kernels import CodedColumns
from hpcgnn.typing import LocalIndices, Offsets


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
