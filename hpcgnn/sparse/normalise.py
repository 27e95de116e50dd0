"""Scalings of a distributed matrix.

Degrees are weighted and counted in both directions separately, so nothing here assumes a symmetric
matrix.
"""

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import CommPlan
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.typing import FloatArray

__all__ = ["column_mean", "row_mean", "symmetric", "unscaled"]


def symmetric(matrix: DistCSR, plan: CommPlan, dtype: DTypeLike) -> DistCSR:
    """Return ``D_r^-1/2 A D_c^-1/2`` with the row and column sums of A (Kipf and Welling 2017).

    Neighborwise collective.

    On an undirected graph the two degrees agree. A row or column without entries stays zero.

    Parameters
    ----------
    matrix
        The adjacency, with self loops where the model wants them.
    plan
        Delivers the rows `matrix.ghosts`.
    dtype
        float32 or float64, of the result.
    """
    by_row = _inverse(np.sqrt(_row_sums(matrix)))
    by_column = _inverse(np.sqrt(_column_sums(matrix, plan)))
    ghost_columns = plan.forward(by_column[:, None])[:, 0]
    return _scaled(matrix, by_row, by_column, ghost_columns, dtype)


def row_mean(matrix: DistCSR, dtype: DTypeLike) -> DistCSR:
    """Return ``D_r^-1 A``: the (weighted) mean over what a row aggregates from.

    Not collective. With several relations each has its own mean.
    """
    ones = np.ones(matrix.row_map.num_local)
    by_row = _inverse(_row_sums(matrix))
    return _scaled(matrix, by_row, ones, np.ones(len(matrix.ghosts)), dtype)


def column_mean(matrix: DistCSR, plan: CommPlan, dtype: DTypeLike) -> DistCSR:
    """Return ``A D_c^-1``, whose transpose is the mean over the nodes that aggregate from a node.

    Neighborwise collective.
    """
    by_column = _inverse(_column_sums(matrix, plan))
    ghost_columns = plan.forward(by_column[:, None])[:, 0]
    return _scaled(matrix, np.ones(matrix.row_map.num_local), by_column, ghost_columns, dtype)


def unscaled(matrix: DistCSR, dtype: DTypeLike) -> DistCSR:
    """Return A with its weights in `dtype`; a matrix of ones keeps no values.

    Not collective.
    """
    parts = (matrix.diagonal, matrix.remote)
    values = [None if part.values is None else part.values.astype(dtype) for part in parts]
    return matrix.with_values(*values)


def _row_sums(matrix: DistCSR) -> FloatArray:
    sums = np.zeros(matrix.shape[0])
    for part in (matrix.diagonal, matrix.remote):
        sums += np.bincount(part.entry_rows(), part.values, minlength=len(sums))
    return sums


def _column_sums(matrix: DistCSR, plan: CommPlan) -> FloatArray:
    diagonal, remote = matrix.diagonal, matrix.remote
    sums = np.bincount(diagonal.indices, diagonal.values, minlength=matrix.row_map.num_local)
    ghosts = np.bincount(remote.indices, remote.values, minlength=len(matrix.ghosts))
    total = sums.astype(np.float64)[:, None]
    plan.reverse_add(ghosts.astype(np.float64)[:, None], total)
    return total[:, 0]


def _inverse(sums: FloatArray) -> FloatArray:
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums != 0)


def _scaled(
    matrix: DistCSR,
    by_row: FloatArray,
    by_column: FloatArray,
    by_ghost: FloatArray,
    dtype: DTypeLike,
) -> DistCSR:
    def scale(part: LocalCSR, columns: FloatArray) -> FloatArray:
        factors = by_row[part.entry_rows()] * columns[part.indices]
        return (factors if part.values is None else factors * part.values).astype(dtype)

    return matrix.with_values(scale(matrix.diagonal, by_column), scale(matrix.remote, by_ghost))
