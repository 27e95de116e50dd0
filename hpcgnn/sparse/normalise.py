"""Scalings of a distributed matrix.

Degrees are weighted and counted in both directions separately, so nothing here assumes a symmetric
matrix, and one that is symmetric stays so where both directions are scaled alike.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import CommPlan
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.spmd import neighborwise_collective
from hpcgnn.typing import FloatArray


@neighborwise_collective
def scale(
    matrix: DistCSR,
    powers: tuple[float, float],
    dtype: DTypeLike,
    plan: CommPlan | None = None,
) -> DistCSR:
    """Return ``D_r^-a A D_c^-b`` with the row sums D_r and the column sums D_c of A.

    (1/2, 1/2) is the symmetric scaling of Kipf and Welling (2017), whose two degrees agree on an
    undirected graph; (1, 0) means over what a row aggregates from, by relation where there are
    several; the transpose of (0, 1) means over the nodes that aggregate from a node. A row or
    column without entries stays zero.

    `matrix` has self loops where the model wants them. With the `powers` (0, 0) a matrix of ones
    keeps no values. `plan` delivers the rows `matrix.ghosts`, for b > 0.
    """
    by_row, by_column = scale_factors(matrix, powers, plan)
    matrix = replace(matrix, symmetric=matrix.symmetric and powers[0] == powers[1])
    if by_row is None and by_column is None:
        parts = (matrix.diagonal, matrix.remote)
        values = [None if part.values is None else part.values.astype(dtype) for part in parts]
        return matrix.with_values(*values)
    by_ghost: FloatArray = np.ones(len(matrix.ghosts))
    if by_row is None:
        by_row = np.ones(matrix.shape[0])
    if by_column is None:
        by_column = np.ones(matrix.row_map.num_local)
    else:
        assert plan is not None
        by_ghost = plan.forward(by_column[:, None])[:, 0]
    return _scaled(matrix, by_row, by_column, by_ghost, dtype)


@neighborwise_collective
def scale_factors(
    matrix: DistCSR, powers: tuple[float, float], plan: CommPlan | None = None
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return what `scale` multiplies rows and own columns with, float64; None for ones."""
    for_row, for_column = powers
    by_row = by_column = None
    if for_row > 0:
        by_row = _inverse(_row_sums(matrix) ** for_row)
    if for_column > 0:
        assert plan is not None
        by_column = _inverse(_column_sums(matrix, plan) ** for_column)
    return by_row, by_column


def _row_sums(matrix: DistCSR) -> FloatArray:
    sums = np.zeros(matrix.shape[0])
    for part in (matrix.diagonal, matrix.remote):
        for rows, entries in part.pieces():
            values = None if part.values is None else part.values[entries]
            sums += np.bincount(part.entry_rows(rows), values, minlength=len(sums))
    return sums


def _column_sums(matrix: DistCSR, plan: CommPlan) -> FloatArray:
    total = _sums_of_columns(matrix.diagonal, matrix.row_map.num_local)[:, None]
    plan.reverse_add(_sums_of_columns(matrix.remote, len(matrix.ghosts))[:, None], total)
    return total[:, 0]


def _sums_of_columns(part: LocalCSR, num_columns: int) -> FloatArray:
    sums = np.zeros(num_columns)
    for _, entries in part.pieces():
        # One entry after another, so that pieces change no rounding.
        np.add.at(sums, part.indices[entries], 1.0 if part.values is None else part.values[entries])
    return sums


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
        scaled = np.empty(part.nnz, dtype)
        for rows, entries in part.pieces():
            factors = by_row[part.entry_rows(rows)] * columns[part.indices[entries]]
            scaled[entries] = factors if part.values is None else factors * part.values[entries]
        return scaled

    return matrix.with_values(scale(matrix.diagonal, by_column), scale(matrix.remote, by_ghost))
