"""Sums over the replicas of a block row."""

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid
from hpcgnn.spmm import Carrier, ReplicaShares, ReplicaSum
from hpcgnn.trace import TraceRecorder

NUM_ROWS, WIDTH = 23, 3


def masks_of(copies: int, seed: int) -> np.ndarray:
    """Return shares in which some rows belong to no replica and some to all."""
    masks = np.random.default_rng(seed).random((copies, NUM_ROWS)) < 0.4
    masks[:, 0], masks[:, 1] = False, True
    return masks


@pytest.mark.parametrize("seed", range(3))
def test_sums_only_what_someone_has(comm: MPI.Intracomm, seed: int) -> None:
    masks = masks_of(comm.size, seed)
    parts = np.random.default_rng(9).normal(size=(comm.size, NUM_ROWS, WIDTH))
    parts[~masks] = 0
    trace = TraceRecorder.open(None, comm.rank, {"ranks": comm.size})
    with ProcessGrid(comm, replication=comm.size) as grid:
        sums = ReplicaSum(grid, Carrier(grid), trace, ReplicaShares.of(masks))
        found = parts[grid.replica].copy()
        sums.add(found)
        np.testing.assert_allclose(found, parts.sum(axis=0), rtol=1e-12, atol=1e-12)
        for other in comm.allgather(found.tobytes()):
            assert other == found.tobytes()
        holders = masks.sum(axis=0)
        least = np.where(holders > 0, holders - 1 + comm.size - 1, 0)
        assert comm.allreduce(sums.num_sent) == least.sum()
    if comm.size > 1:
        traced = trace.traffic()["reduce.replicas"]
        assert traced["rows"] == sums.num_sent
        assert traced["bytes"] == sums.num_sent * WIDTH * 8


@pytest.mark.parametrize("copies", [1, 2, 3, 5])
def test_homes_have_something_and_take_turns(copies: int) -> None:
    masks = masks_of(copies, copies)
    shares = ReplicaShares.of(masks)
    for row, home in enumerate(shares.home):
        holders = np.flatnonzero(masks[:, row])
        if len(holders) == 1 and copies > 1:
            assert home not in (-1, *holders)
        else:
            assert home in holders if len(holders) else home == -1
    homes = np.bincount(ReplicaShares.of(np.ones_like(masks)).home, minlength=copies)
    assert homes.max() - homes.min() <= 1
    assert not shares.counts.diagonal(axis1=1, axis2=2).any()
