from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError


def divisors(size: int) -> list[int]:
    return [c for c in range(1, size + 1) if size % c == 0]


def test_layers_and_replicas(comm: MPI.Intracomm) -> None:
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            assert (grid.layer.rank, grid.layer.size) == (grid.block, comm.size // replication)
            assert (grid.replicas.rank, grid.replicas.size) == (grid.replica, replication)
            assert grid.block * replication + grid.replica == grid.rank


def test_every_block_column_has_one_replica(comm: MPI.Intracomm) -> None:
    for replication in divisors(comm.size):
        with ProcessGrid(comm, replication) as grid:
            mine = [grid.handles(peer) for peer in range(grid.num_blocks)]
            counts = np.sum(grid.replicas.allgather(mine), axis=0)
            np.testing.assert_array_equal(counts, 1)


def test_replication_must_divide(comm: MPI.Intracomm) -> None:
    with pytest.raises(InputError, match="does not divide"):
        ProcessGrid(comm, comm.size + 1)
