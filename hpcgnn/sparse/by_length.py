"""Products of few columns with rows in an order that processors foresee.

A processor does not foresee the end of a row whose length differs from that of the row before.
Where rows are short, that takes up to a third of a product of 16 columns on irregular graphs. A
copy of the matrix whose rows of equal length follow each other, within blocks that stay in cache,
takes less. Each row is summed as before, so results have equal bits.
"""

from dataclasses import replace

import numpy as np

from hpcgnn.kernels import SparseMatrix
from hpcgnn.sparse.pieces import row_pieces
from hpcgnn.typing import Offsets

NARROW = 16
"""Columns up to which row ends count: wider rows take longer than their ends."""

_REPEATED = 4
"""Products before the copy is made, which takes as long as several: subgraphs have fewer."""
_BLOCK = 1 << 10
_LONGEST_MEAN = 32
"""Entries a row: with more of them, ends are few."""
_LEAST_CHANGES = 0.25
"""Rows whose length differs from that of the row before, of all rows, from which a copy pays."""


class NarrowProducts:
    """Chooses the form of a matrix for its products of at most `NARROW` columns."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self._matrix, self._products = matrix, 0

    def operand(self) -> SparseMatrix:
        """Return the matrix for one more product."""
        self._products += 1
        if self._products == _REPEATED and pays_by_length(self._matrix.indptr):
            self._matrix = by_length(self._matrix)
        return self._matrix


def by_length(matrix: SparseMatrix) -> SparseMatrix:
    """Return the rows of a matrix in blocks of ascending length; their numbers are in `rows`."""
    lengths = np.diff(matrix.indptr)
    count = len(lengths)
    # Sorting 16 bits takes linear time; what fills the last block comes last.
    keys = np.full((-(-count // _BLOCK), _BLOCK), np.iinfo(np.uint16).max, np.uint16)
    keys.reshape(-1)[:count] = np.minimum(lengths, np.iinfo(np.uint16).max - 1)
    order = np.argsort(keys, axis=1, kind="stable")
    order += _BLOCK * np.arange(len(order))[:, None]
    order = order.reshape(-1)[:count]
    lengths, starts = lengths[order], matrix.indptr[:-1][order]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    assert matrix.indices is not None
    indices = np.empty_like(matrix.indices)
    values = None if matrix.values is None else np.empty_like(matrix.values)
    for rows in row_pieces(indptr):
        entries = slice(indptr[rows.start], indptr[rows.stop])
        moved = np.repeat(starts[rows] - indptr[rows], lengths[rows])
        moved += np.arange(entries.start, entries.stop)
        indices[entries] = matrix.indices[moved]
        if values is not None and matrix.values is not None:
            values[entries] = matrix.values[moved]
    numbers = order.astype(np.int32) if matrix.rows is None else matrix.rows[order]
    return replace(matrix, indptr=indptr, indices=indices, values=values, rows=numbers)


def pays_by_length(indptr: Offsets) -> bool:
    """Return whether rows are short, and so uneven that their ends are not foreseen."""
    count, lengths = len(indptr) - 1, np.diff(indptr)
    if indptr[-1] > _LONGEST_MEAN * count:
        return False
    return bool(np.count_nonzero(lengths[1:] != lengths[:-1]) > _LEAST_CHANGES * count)
