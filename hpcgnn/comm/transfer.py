"""Communication under way, and sums and maxima over ranks of arrays of any size.

MPI counts end at 2^31, and a reduction takes no one-row datatype, so long arrays go in pieces.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.typing import Array


class Transfer:
    """Messages that were started; `wait` ends them. Their buffers must not be touched before that.

    Parameters
    ----------
    requests
        What to wait for.
    row
        The datatype that the messages use, freed at the end.
    """

    def __init__(
        self, requests: Sequence["MPI.Request"] = (), row: "MPI.Datatype | None" = None
    ) -> None:
        self._requests, self._row = list(requests), row

    @neighborwise_collective
    def wait(self) -> None:
        """Return when this rank has all that was sent to it; waiting again returns at once."""
        MPI.Request.Waitall(self._requests)
        if self._row is not None:
            self._row.Free()
            self._row = None


_MAX_COUNT = 2**30


@collective
def allreduce_sum(comm: "MPI.Comm", values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its sum over the ranks of `comm`."""
    _combine(comm, values, MPI.SUM)


@collective
def allreduce_max(comm: "MPI.Comm", values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its maximum over the ranks of `comm`."""
    _combine(comm, values, MPI.MAX)


@collective
def allreduce_xor(comm: "MPI.Comm", values: Array) -> None:
    """Replace `values` (C-contiguous, any shape) by its exclusive or over the ranks of `comm`."""
    _combine(comm, values, MPI.BXOR)


@collective
def exclusive_sum(comm: Communicator, values: Array) -> Array:
    """Return, like `values` (C-contiguous, any shape), its sum over the ranks before this one."""
    before = np.zeros_like(values)
    for piece, result in _pieces(values, before):
        comm.Exscan(piece, result, op=MPI.SUM)
    if comm.rank == 0:
        # MPI leaves the first rank's undefined.
        before[...] = 0
    return before


@collective
def start_reduce(comm: Communicator, values: Array, total: Array, root: int) -> Transfer:
    """Start to sum `values` over ranks into `total` on `root`; other ranks' `total` is unused."""
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


@collective
def start_broadcast(comm: Communicator, values: Array, root: int) -> Transfer:
    """Start to copy `values` (C-contiguous, any shape) from `root` to all ranks."""
    return Transfer([comm.Ibcast(piece, root=root) for (piece,) in _pieces(values)])


def _combine(comm: "MPI.Comm", values: Array, op: "MPI.Op") -> None:
    if comm.size > 1:
        for (piece,) in _pieces(values):
            comm.Allreduce(MPI.IN_PLACE, piece, op=op)


def _pieces(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, len(flat[0]), _MAX_COUNT):
        yield tuple(array[start : start + _MAX_COUNT] for array in flat)


@collective
def sum_over_ranks(comm: "MPI.Comm", numbers: Sequence[float]) -> list[float]:
    """Return the sums of a few numbers over the ranks of `comm`, in float64."""
    sums = np.array(numbers, np.float64)
    comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
    return [float(value) for value in sums]
