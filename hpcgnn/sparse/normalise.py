"""Scale a distributed matrix by weighted degrees.

Degrees of rows and columns are computed separately, so the matrix need not be symmetric; a
symmetric one stays so if both are scaled alike.
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
    undirected graph; (1, 0) averages over the nodes that a row aggregates from, within each
    relation; the transpose of (0, 1) averages over the nodes that aggregate from a node. A row or
    column without entries stays zero.

    `matrix` already has the self loops that the model needs. A matrix of ones gets factors of rows
    and columns instead of values. `plan` delivers the rows `matrix.ghosts`, for b > 0.
    """
    by_row, by_column = scale_factors(matrix, powers, plan)
    by_ghost = None
    if by_column is not None:
        assert plan is not None
        by_ghost = plan.forward(by_column[:, None])[:, 0]
    parts = (matrix.diagonal, by_column), (matrix.remote, by_ghost)
    turned = None
    if all(part.values is None for part, _ in parts):
        if matrix.symmetric and by_column is None and by_row is not None and plan is not None:
            turned = by_row.astype(dtype), plan.forward(by_row[:, None])[:, 0].astype(dtype)
        numbers = (by_row, by_column, by_ghost)
        scaled = matrix.with_factors(*(None if f is None else f.astype(dtype) for f in numbers))
    else:
        scaled = matrix.with_values(
            *(_scaled(part, by_row, columns, dtype) for part, columns in parts)
        )
    symmetric = matrix.symmetric and powers[0] == powers[1]
    return replace(scaled, symmetric=symmetric, turned_factors=turned)


@neighborwise_collective
def scale_factors(
    matrix: DistCSR, powers: tuple[float, float], plan: CommPlan | None = None
) -> tuple[FloatArray | None, FloatArray | None]:
    """Return the factors of rows and of own columns in `scale`, float64; None for ones."""
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
        # Added one by one, so that the division into pieces does not change the rounding.
        np.add.at(sums, part.indices[entries], 1.0 if part.values is None else part.values[entries])
    return sums


def _inverse(sums: FloatArray) -> FloatArray:
    return np.divide(1.0, sums, out=np.zeros_like(sums), where=sums != 0)


def _scaled(
    part: LocalCSR, by_row: FloatArray | None, by_column: FloatArray | None, dtype: DTypeLike
) -> FloatArray:
    """Return the scaled values of a part."""
    scaled = np.empty(part.nnz, dtype)
    for rows, entries in part.pieces():
        values: FloatArray = np.ones(1) if part.values is None else part.values[entries]
        if by_row is not None and by_column is not None:
            values = by_row[part.entry_rows(rows)] * by_column[part.indices[entries]] * values
        elif by_row is not None:
            values = by_row[part.entry_rows(rows)] * values
        elif by_column is not None:
            values = by_column[part.indices[entries]] * values
        scaled[entries] = values
    return scaled
