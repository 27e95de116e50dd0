"""Sums and maxima over ranks of arrays of any size.

MPI counts end at 2^31, and a reduction takes no one-row datatype, so long arrays go in pieces.
"""

from collections.abc import Iterator, Sequence

from mpi4py import MPI

import numpy as np

from hpcgnn.comm.transfer import Transfer
from hpcgnn.typing import Array

__all__ = ["allreduce_max", "allreduce_sum", "start_broadcast", "start_reduce", "sum_over_ranks"]

_MAX_COUNT = 2**30


def allreduce_sum(comm: MPI.Comm, values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its sum over the ranks of `comm`.

    Collective.
    """
    if comm.size > 1:
        for (piece,) in _pieces(values):
            comm.Allreduce(MPI.IN_PLACE, piece, op=MPI.SUM)


def allreduce_max(comm: MPI.Comm, values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its maximum over the ranks of `comm`.

    Collective.
    """
    if comm.size > 1:
        for (piece,) in _pieces(values):
            comm.Allreduce(MPI.IN_PLACE, piece, op=MPI.MAX)


def start_reduce(comm: MPI.Intracomm, values: Array, total: Array, root: int) -> Transfer:
    """Start to sum `values` over the ranks into `total` on `root`; other ranks' `total` is unused.

    Collective.
    """
    if comm.rank == root:
        return Transfer(
            [
                comm.Ireduce(piece, result, op=MPI.SUM, root=root)
                for piece, result in _pieces(values, total)
            ]
        )
    return Transfer(
        [comm.Ireduce(piece, None, op=MPI.SUM, root=root) for (piece,) in _pieces(values)]
    )


def start_broadcast(comm: MPI.Intracomm, values: Array, root: int) -> Transfer:
    """Start to copy `values` (C-contiguous, any shape) from `root` to all ranks.

    Collective.
    """
    return Transfer([comm.Ibcast(piece, root=root) for (piece,) in _pieces(values)])


def _pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, len(flat[0]), _MAX_COUNT):
        yield tuple(array[start : start + _MAX_COUNT] for array in flat)


def sum_over_ranks(comm: MPI.Comm, numbers: Sequence[float]) -> list[float]:
    """Return the sums of a few numbers over the ranks of `comm`, in float64.

    Collective.
    """
    sums = np.array(numbers, np.float64)
    comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
    return [float(value) for value in sums]
