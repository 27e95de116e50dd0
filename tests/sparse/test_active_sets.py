from mpi4py import MPI

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap
from hpcgnn.sparse import active_sets, restrict
from hpcgnn.spmm import EXCHANGES, DistributedSpMM, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, gather_rows, ugly_matrix, uneven_starts


def expected_sets(dense: np.ndarray, targets: np.ndarray, depth: int, directions: str) -> list:
    pattern = dense != 0
    sets = [targets]
    for _ in range(depth):
        reached = sets[0].copy()
        if "in" in directions:
            reached |= pattern[sets[0]].any(axis=0)
        if "out" in directions:
            reached |= pattern[:, sets[0]].any(axis=1)
        sets.insert(0, reached)
    return sets


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), share=st.sampled_from([0.0, 0.1, 0.6, 1.0]))
@pytest.mark.parametrize("directions", [("in",), ("out",), ("in", "out")])
def test_sets_equal_breadth_first_search(
    comm: MPI.Intracomm, seed: int, share: float, directions: tuple[str, ...]
) -> None:
    matrix = ugly_matrix(61, seed)
    targets = np.random.default_rng(seed).random(61) < share
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(61, comm.size, seed), comm.rank)
        part = block_row(matrix, row_map)
        plan = CommPlan.from_ghosts(grid, row_map, part.ghosts)
        mine = slice(row_map.start, row_map.stop)
        sets = active_sets(part, plan, targets[mine], 3, directions)
    expected = expected_sets(matrix.toarray(), targets, 3, directions)
    for ours, theirs in zip(sets, expected, strict=True):
        np.testing.assert_array_equal(gather_rows(comm, ours), theirs)


@pytest.mark.pairs
@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("replication", [1, 2])
def test_restricted_product_gives_the_same_rows(
    comm: MPI.Intracomm, exchange: str, replication: int
) -> None:
    if comm.size % replication:
        pytest.skip("replication does not divide the ranks")
    matrix = ugly_matrix(83, 71)
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(2, 83, 5))
    rows, columns = rng.random(83) < 0.3, rng.random(83) < 0.7
    dense = matrix.toarray()
    trace = TraceRecorder.off()
    with ProcessGrid(comm, replication) as grid:
        row_map = RowMap(uneven_starts(83, grid.num_blocks, 3), grid.block)
        mine = slice(row_map.start, row_map.stop)
        whole = block_row(matrix, row_map)
        plan = CommPlan.from_ghosts(grid, row_map, whole.ghosts)
        part = restrict(whole, plan, rows[mine], columns[mine])
        mover = make_exchange(exchange, grid, part, trace)
        operator = DistributedSpMM(part, mover)
        assert operator.size.num_entries == np.count_nonzero(dense[rows][:, columns])
        forward = operator.apply(np.ascontiguousarray(x[mine][columns[mine]]))
        reverse = operator.apply_transpose(np.ascontiguousarray(y[mine][rows[mine]]))
        kept = np.where(rows[:, None] & columns[None], dense, 0)
        np.testing.assert_allclose(forward, (kept @ x)[mine][rows[mine]], rtol=1e-12, atol=1e-12)
        expected = (kept.T @ y)[mine][columns[mine]]
        np.testing.assert_allclose(reverse, expected, rtol=1e-12, atol=1e-12)


def test_active_rows_are_bit_equal_and_move_less(comm: MPI.Intracomm) -> None:
    matrix = ugly_matrix(120, 73)
    targets = np.random.default_rng(1).random(120) < 0.1
    trace = TraceRecorder.off()
    with ProcessGrid(comm) as grid:
        row_map = RowMap(uneven_starts(120, comm.size, 9), comm.rank)
        mine = slice(row_map.start, row_map.stop)
        whole = block_row(matrix, row_map)
        plan = CommPlan.from_ghosts(grid, row_map, whole.ghosts)
        inputs, outputs = active_sets(whole, plan, targets[mine], 1, ("in",))
        part = restrict(whole, plan, outputs, inputs)
        x = np.random.default_rng(2).normal(size=(120, 4))[mine]
        results = []
        for pattern, rows in ((whole, x), (part, x[inputs])):
            mover = make_exchange("aware", grid, pattern, trace)
            operator = DistributedSpMM(pattern, mover)
            results.append((operator.apply(np.ascontiguousarray(rows)), operator.size))
        (full, full_size), (active, active_size) = results
        np.testing.assert_array_equal(active, full[outputs])
        assert active_size.num_moved <= full_size.num_moved
        assert active_size.num_entries < full_size.num_entries
