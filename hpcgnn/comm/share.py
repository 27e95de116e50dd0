"""Whole arrays, once on every host."""

import numpy as np

from hpcgnn.comm.grid import ProcessGrid
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.transfer import start_broadcast
from hpcgnn.spmd import collective
from hpcgnn.typing import Array


@collective
def share_on_hosts(grid: ProcessGrid, name: str, share: Array) -> Array:
    """Return the arrays of all block rows, one after the other, in memory that a host shares.

    Parameters
    ----------
    grid
        The ranks; owns the memory.
    name
        Fixed for the life of the array.
    share
        (rows, width) or (rows,) of this block row, of equal dtype and width everywhere.
    """
    rows = share[:, None] if share.ndim == 1 else share
    counts = grid.layer.allgather(len(rows))
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    if grid.layer.size == 1:
        return share
    memory = grid.shared_window()
    whole = memory.get(name, (int(starts[-1]), rows.shape[1]), rows.dtype)
    whole[starts[grid.block] : starts[grid.block + 1]] = rows
    if grid.hosts.max() > 0:
        memory.synchronise(name)
        _exchange(grid, whole, starts)
    memory.synchronise(name)
    return whole.reshape(-1) if share.ndim == 1 else whole


def _exchange(grid: ProcessGrid, whole: Array, starts: Array) -> None:
    """Bring every block row to the hosts that lack it, from the first rank of its host."""
    first = grid.layer.rank == grid.host_ranks[0]
    # Hosts are numbered by their first ranks, and so are the ranks of this communicator.
    leaders = grid.layer.Split(0 if first else MPI.UNDEFINED, key=grid.layer.rank)
    if leaders == MPI.COMM_NULL:
        return
    comm = MPI.Intracomm(leaders)
    for block, host in enumerate(grid.hosts.tolist()):
        rows = whole[starts[block] : starts[block + 1]].reshape(-1)
        start_broadcast(comm, rows, root=host).wait()
    comm.Free()
