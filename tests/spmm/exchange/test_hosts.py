"""The hierarchical exchange over several hosts, which are distinguished by name."""

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import ProcessGrid, RowMap
from hpcgnn.spmm import RESIDENT, DistributedSpMM, Schedule, make_exchange
from hpcgnn.trace import TraceRecorder
from tests.support.matrices import block_row, ugly_matrix, uneven_starts

HOSTS: dict[str, Callable[[int], str]] = {
    "alone": lambda rank: f"host{rank}",
    "pairs": lambda rank: f"host{rank // 2}",
    "cyclic": lambda rank: f"host{rank % 2}",
    "uneven": lambda rank: f"host{min(rank, 1)}",
    "together": lambda rank: f"host{rank * 0}",
}


METHODS = ("hierarchical", "hierarchical_joint")


@pytest.mark.pairs
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("wire", ["native", "bfloat16"])
@pytest.mark.parametrize("depth", [None, 0, 1, 4])
@pytest.mark.parametrize("method", METHODS)
def test_products_and_rows_between_hosts(
    comm: MPI.Intracomm, hosts: str, wire: str, depth: int | None, method: str
) -> None:
    matrix = ugly_matrix(90, 61)
    host_of = HOSTS[hosts]
    with ProcessGrid(comm, host=host_of(comm.rank)) as grid:
        row_map = RowMap(uneven_starts(90, comm.size, 5), comm.rank)
        part = block_row(matrix, row_map, np.float32)
        trace = TraceRecorder.off()
        schedule = RESIDENT if depth is None else Schedule(sequential=True, prefetch=depth)
        mover = make_exchange(method, grid, part, trace, wire, schedule)
        operator = DistributedSpMM(part, mover)
        mine = slice(row_map.start, row_map.stop)
        # Twice, with another width: shared memory is reused and replaced.
        for width in (3, 8, 3):
            x = np.random.default_rng(width).normal(size=(90, width)).astype(np.float32)
            for apply, dense in ((operator.apply, matrix), (operator.apply_transpose, matrix.T)):
                result = apply(np.ascontiguousarray(x[mine]))
                expected = (dense @ x.astype(np.float64))[mine]
                rounding = 2.0**-8 if wire == "bfloat16" else 1e-6
                bound = rounding * (abs(dense) @ np.abs(x))[mine] + 1e-5
                assert (np.abs(result - expected) <= bound).all()
        volume, names = operator.volume(), np.array([host_of(rank) for rank in range(comm.size)])
        total, fetched = (
            volume.summary(comm)["total_rows"],
            rows_between_hosts(matrix, row_map, host_of),
        )
        if method == "hierarchical":
            assert total == fetched
        else:
            # A row or a sum that several ranks of a host would move directly moves once.
            direct = make_exchange("joint", grid, part, trace).volume().sent
            between = comm.allreduce(int(direct[names != names[comm.rank]].sum()))
            assert total <= between
        pairs = comm.allreduce([(names[comm.rank], names[i]) for i in volume.sent.nonzero()[0]])
        assert all(one != other for one, other in pairs)
        if depth is None:
            # A pair of hosts exchanges one message in each direction, for any number of ranks.
            assert len(pairs) == len(set(pairs))


def rows_between_hosts(matrix, row_map: RowMap, host_of: Callable[[int], str]) -> int:
    """Count the pairs of a node and a host that reads but does not own it."""
    host = np.array([host_of(rank) for rank in range(row_map.num_blocks)])
    of_node = host[row_map.owner(np.arange(row_map.num_rows, dtype=np.int64))]
    rows, columns = matrix.nonzero()
    crossing = of_node[rows] != of_node[columns]
    return len({(of_node[i], j) for i, j in zip(rows[crossing], columns[crossing], strict=True)})
