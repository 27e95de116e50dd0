"""Rows and counts beyond 2^31 and 2^32: numbers are invented, arrays stay small."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CommPlan, ProcessGrid, Request, RowMap, RowRequest, redistribute_lists
from hpcgnn.comm.redistribute import narrow_counts
from hpcgnn.errors import CollectiveInputError
from hpcgnn.sparse import DistCSR

MOST_LOCAL = 2**31 - 1


def full_blocks(comm: MPI.Intracomm) -> tuple[RowMap, np.ndarray]:
    """Return the largest row map of these ranks, with ghosts at both ends of all other blocks."""
    row_map = RowMap(MOST_LOCAL * np.arange(comm.size + 1), comm.rank)
    edges = np.concatenate([row_map.starts[:-1], row_map.starts[:-1] + 5, row_map.starts[1:] - 1])
    edges.sort()
    return row_map, edges[~row_map.is_local(edges)]


def test_row_map() -> None:
    row_map = RowMap(MOST_LOCAL * np.arange(6), 4)
    assert row_map.num_rows == 5 * MOST_LOCAL > 2**33
    rows = np.array([0, 2**31, 2**32, 2**33, row_map.num_rows - 1])
    np.testing.assert_array_equal(row_map.owner(rows), [0, 1, 2, 4, 4])
    last = rows[-1:]
    np.testing.assert_array_equal(row_map.to_local(last), [MOST_LOCAL - 1])
    np.testing.assert_array_equal(row_map.to_global(row_map.to_local(last)), last)
    with pytest.raises(ValueError, match="no int32 local indices"):
        RowMap(np.array([0, 2**31], np.int64), 0)


def test_plan(comm: MPI.Intracomm) -> None:
    row_map, ghosts = full_blocks(comm)
    with ProcessGrid(comm) as grid:
        plan = CommPlan.from_ghosts(grid, row_map, ghosts)
        arrived = np.empty((len(ghosts), 1), np.int64)
        plan.start_forward(row_map.to_global(plan.send_rows)[:, None], arrived).wait()
        np.testing.assert_array_equal(arrived[:, 0], ghosts)
        back = np.empty((plan.num_sent, 1), np.int64)
        plan.start_reverse(arrived, back).wait()
        np.testing.assert_array_equal(back[:, 0], row_map.to_global(plan.send_rows))


def test_request(comm: MPI.Intracomm) -> None:
    row_map, ghosts = full_blocks(comm)
    request = RowRequest.make(comm, row_map, ghosts)
    # It has the length of a block, but one element in memory.
    ranks = np.broadcast_to(np.int64(comm.rank), row_map.num_local)
    np.testing.assert_array_equal(request.rows(ranks), row_map.owner(ghosts))


def test_matrix(comm: MPI.Intracomm) -> None:
    """The columns of a matrix with few rows, numbered beyond 2^32."""
    starts = np.concatenate([[0], 4 + MOST_LOCAL * np.arange(comm.size)])
    row_map = RowMap(starts, 0)
    columns = np.unique(np.concatenate([[1], starts[1:-1], starts[2:] - 1]))
    indptr = np.array([0, len(columns), len(columns), len(columns), len(columns)])
    matrix = DistCSR.from_rows(row_map, indptr, columns)
    np.testing.assert_array_equal(matrix.ghosts, columns[columns >= 4])
    assert (matrix.diagonal.nnz, matrix.remote.nnz) == (1, len(columns) - 1)


def test_lists_of_too_many_entries_are_refused(comm: MPI.Intracomm) -> None:
    entries = np.broadcast_to(np.uint8(0), 2**31)
    owners = np.full(1, comm.size - 1, np.int32)
    with pytest.raises(CollectiveInputError, match="start more ranks"):
        redistribute_lists(comm, owners, np.array([0, 2**31]), entries)


def test_counts_of_unequal_shares(comm: MPI.Intracomm) -> None:
    most = np.full(comm.size, (2**31 - 1) // comm.size)
    sent, received = narrow_counts(comm, most, most)
    assert sent.dtype == received.dtype == np.int32
    np.testing.assert_array_equal(sent, most)
    # Each count has 32 bits, but their sum has more; one rank alone has as many.
    over = most + 2 * (comm.rank == comm.size - 1) + (comm.size == 1)
    for some in ((over + 1, most), (most, over + 1)):
        if comm.rank < comm.size - 1:
            some = (most, most)
        with pytest.raises(CollectiveInputError, match=rf"rank {comm.size - 1} would send or rec"):
            narrow_counts(comm, *some)


def test_plans_of_too_many_rows_are_refused(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        pytest.skip("one count below 2**31 is fine")
    # Requests are not read before all ranks know that there are too many.
    counts = np.full(comm.size, 2**31 - 1, np.int32)
    with ProcessGrid(comm) as grid, pytest.raises(CollectiveInputError, match="start more ranks"):
        CommPlan.from_request(grid, Request(np.empty(0, np.int64), counts))
