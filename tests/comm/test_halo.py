from collections.abc import Iterator

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CommPlan, ProcessGrid, RowMap, RowRequest, redistribute
from tests.support.matrices import gather_rows, uneven_starts

NUM_NODES = 53


@pytest.fixture
def grid(comm: MPI.Intracomm) -> Iterator[ProcessGrid]:
    with ProcessGrid(comm) as opened:
        yield opened


def make_plan(grid: ProcessGrid, seed: int) -> tuple[RowMap, np.ndarray, CommPlan]:
    comm = grid.layer
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, seed), comm.rank)
    rng = np.random.default_rng(100 * seed + comm.rank)
    wanted = np.unique(rng.integers(0, NUM_NODES, 20))
    ghosts = wanted[~row_map.is_local(wanted)] if comm.rank != 1 else np.zeros(0, np.int64)
    return row_map, ghosts, CommPlan.from_ghosts(grid, row_map, ghosts)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 5])
def test_forward_delivers_the_ghosts(grid: ProcessGrid, dtype: type, width: int) -> None:
    row_map, ghosts, plan = make_plan(grid, seed=11)
    x = np.random.default_rng(3).normal(size=(NUM_NODES, width)).astype(dtype)
    received = plan.forward(np.ascontiguousarray(x[row_map.start : row_map.stop]))
    np.testing.assert_array_equal(received, x[ghosts])


def test_reverse_is_the_adjoint(comm: MPI.Intracomm, grid: ProcessGrid) -> None:
    row_map, ghosts, plan = make_plan(grid, seed=23)
    rng = np.random.default_rng(comm.rank)
    x = rng.normal(size=(row_map.num_local, 4))
    y = rng.normal(size=(len(ghosts), 4))
    back = np.zeros_like(x)
    plan.reverse_add(y, back)
    left = comm.allreduce(float(np.vdot(plan.forward(x), y)))
    right = comm.allreduce(float(np.vdot(x, back)))
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12)


def test_reverse_adds_to_what_is_there(comm: MPI.Intracomm, grid: ProcessGrid) -> None:
    row_map, ghosts, plan = make_plan(grid, seed=5)
    out = np.full((row_map.num_local, 2), 10.0)
    plan.reverse_add(np.ones((len(ghosts), 2)), out)
    counts = np.bincount(gather_rows(comm, ghosts), minlength=NUM_NODES)
    expected = 10.0 + counts[row_map.start : row_map.stop, None] * np.ones(2)
    np.testing.assert_array_equal(out, expected)


def test_volume_counts_rows(comm: MPI.Intracomm, grid: ProcessGrid) -> None:
    row_map, ghosts, plan = make_plan(grid, seed=7)
    volume = plan.volume()
    expected = np.bincount(row_map.owner(ghosts), minlength=comm.size)
    np.testing.assert_array_equal(volume.received, expected)
    pairs = np.array(comm.allgather(volume.received)).T
    np.testing.assert_array_equal(volume.sent, pairs[comm.rank])
    assert volume.summary(comm) == {
        "total_rows": pairs.sum(),
        "max_send_rows": pairs.sum(axis=1).max(),
        "max_recv_rows": pairs.sum(axis=0).max(),
        "max_pair_rows": pairs.max(),
    }


@pytest.mark.parametrize("wrong", ["own", "order"])
def test_bad_ghosts(wrong: str) -> None:
    row_map = RowMap(np.array([0, 4], np.int64), 0)
    ghosts = np.array([1] if wrong == "own" else [3, 2], np.int64)
    with ProcessGrid(MPI.COMM_SELF) as alone, pytest.raises(ValueError, match="ghosts"):
        CommPlan.from_ghosts(alone, row_map, ghosts)


def test_a_request_brings_rows_and_adds_them_back(comm: MPI.Intracomm) -> None:
    row_map = RowMap(uneven_starts(NUM_NODES, comm.size, 2), comm.rank)
    mine = slice(row_map.start, row_map.stop)
    wanted = [
        np.flatnonzero(np.random.default_rng(rank).random(NUM_NODES) < 0.5)
        for rank in range(comm.size)
    ]
    request = RowRequest.make(comm, row_map, wanted[comm.rank])
    x = np.random.default_rng(9).integers(0, 99, (NUM_NODES, 2))
    rows = request.rows(x[mine])
    np.testing.assert_array_equal(rows, x[wanted[comm.rank]])
    is_local = row_map.is_local(wanted[comm.rank])
    assert request.num_from_others == np.count_nonzero(~is_local)
    times = np.bincount(np.concatenate(wanted), minlength=NUM_NODES)[:, None]
    np.testing.assert_array_equal(request.add_back(rows), (times * x)[mine])


def test_redistribute_keeps_order_and_pairs(comm: MPI.Intracomm) -> None:
    rng = np.random.default_rng(comm.rank)
    owners = rng.integers(0, comm.size, 17).astype(np.int32)
    keys = np.arange(17) + 100 * comm.rank
    rows = np.stack([keys, -keys], axis=1).astype(np.float32)
    got_keys, got_rows = redistribute(comm, owners, keys, rows)
    np.testing.assert_array_equal(got_rows, np.stack([got_keys, -got_keys], axis=1))
    everything = comm.allgather((owners, keys))
    expected = np.concatenate([k[o == comm.rank] for o, k in everything])
    np.testing.assert_array_equal(got_keys, expected)
