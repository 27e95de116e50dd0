from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.sparse import DistCSR, scale
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

NUM_NODES = 41


def inverse(sums: np.ndarray) -> np.ndarray:
    return np.array([1 / each if each else 0.0 for each in np.asarray(sums).ravel()])


def dense_rows(part: DistCSR) -> np.ndarray:
    rows = np.zeros((part.row_map.num_local, NUM_NODES))
    own = part.diagonal
    rows[own.entry_rows(), own.indices + part.row_map.start] = own.entries()
    rows[part.remote.entry_rows(), part.ghosts[part.remote.indices]] = part.remote.entries()
    return rows


POWERS = {"symmetric": (0.5, 0.5), "row_mean": (1.0, 0.0), "column_mean": (0.0, 1.0)}


@pytest.mark.parametrize("kind", POWERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_against_dense(comm: MPI.Intracomm, kind: str, weighted: bool) -> None:
    matrix = ugly_matrix(NUM_NODES, 31, weighted=weighted)
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 2), comm.rank)
    part = block_row(matrix, row_map)
    if not weighted:
        part = part.with_values(None, None)
    with ProcessGrid(comm) as grid:
        plan = CommPlan.from_ghosts(grid, part.row_map, part.ghosts)
        scaled = scale(part, POWERS[kind], np.float64, plan)
    assert (scaled.diagonal.values is None) == (not weighted)
    by_row, by_column = inverse(matrix.sum(axis=1)), inverse(matrix.sum(axis=0))
    expected = {
        "symmetric": sp.diags(np.sqrt(by_row)) @ matrix @ sp.diags(np.sqrt(by_column)),
        "row_mean": sp.diags(by_row) @ matrix,
        "column_mean": matrix @ sp.diags(by_column),
    }[kind]
    wanted = expected.toarray()[row_map.start : row_map.stop]
    np.testing.assert_allclose(dense_rows(scaled), wanted, rtol=1e-13, atol=1e-15)
