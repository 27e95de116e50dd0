"""How many threads a rank may use, so that the ranks of a host do not fight for its cores."""

import os
import platform

import torch

from hpcgnn.comm import ProcessGrid

__all__ = ["set_threads"]


def set_threads(grid: ProcessGrid, requested: int) -> int:
    """Set and return the number of threads of torch and of our kernels.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    requested
        Threads a rank; 0 takes OMP_NUM_THREADS where it is set, and otherwise divides the cores
        that this process may use among the ranks of its host.
    """
    # Host names, not MPI's shared-memory split: some MPI builds report every rank as alone.
    hosts = grid.world.allgather(platform.node())
    if requested == 0 and os.environ.get("OMP_NUM_THREADS", "").isdigit():
        requested = int(os.environ["OMP_NUM_THREADS"])
    if requested == 0:
        cores = len(os.sched_getaffinity(0))
        requested = max(1, cores // hosts.count(platform.node()))
    # Our kernels and torch both follow OpenMP's setting, which torch changes for the process.
    torch.set_num_threads(requested)
    return requested
