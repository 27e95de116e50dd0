"""The grid of ranks, and whole arrays on every host; hosts are distinguished by name."""

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
import pytest
from numpy.typing import DTypeLike

from hpcgnn.comm import ProcessGrid, share_on_hosts
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


HOSTS: dict[str, Callable[[int], str]] = {
    "alone": lambda rank: f"host{rank}",
    "pairs": lambda rank: f"host{rank // 2}",
    "cyclic": lambda rank: f"host{rank % 2}",
    "uneven": lambda rank: f"host{min(rank, 1)}",
    "together": lambda _: "host",
}


@pytest.mark.pairs
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("empty", [0, 1, "all"])
def test_every_rank_sees_all_block_rows(
    comm: MPI.Intracomm, hosts: str, width: int | None, dtype: DTypeLike, empty: int | str
) -> None:
    counts = [0 if empty in (rank, "all") else 2 * rank + 1 for rank in range(comm.size)]
    shape = (sum(counts),) if width is None else (sum(counts), width)
    expected = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape).astype(dtype)
    start = sum(counts[: comm.rank])
    with ProcessGrid(comm, host=HOSTS[hosts](comm.rank)) as grid:
        mine = expected[start : start + counts[comm.rank]].copy()
        whole = share_on_hosts(grid, "rows", mine)
        np.testing.assert_array_equal(whole, expected)
        assert whole.dtype == expected.dtype
        comm.Barrier()


def test_replicas_share_alike(comm: MPI.Intracomm) -> None:
    replication = 2 if comm.size % 2 == 0 else 1
    with ProcessGrid(comm, replication, host=f"host{comm.rank // 2}") as grid:
        whole = share_on_hosts(grid, "rows", np.full(grid.block + 1, grid.block))
        blocks = np.arange(grid.num_blocks)
        np.testing.assert_array_equal(whole, np.repeat(blocks, blocks + 1))
        comm.Barrier()
