"""Memory that the ranks of one host share (MPI shared windows)."""

from mpi4py import MPI

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm.collective import CollectiveInputError
from hpcgnn.typing import Array

__all__ = ["HostMemory"]


class HostMemory:
    """Named arrays that all ranks of `comm` see; owned by the grid, which closes it.

    Not collective.

    Parameters
    ----------
    comm
        The ranks of one host.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self._windows: dict[str, MPI.Win] = {}
        self._sizes: dict[str, int] = {}

    def get(self, name: str, shape: tuple[int, int], dtype: DTypeLike) -> Array:
        """Return the shared array called `name`, of equal `shape` and `dtype` on all ranks.

        Collective over the host.

        Asking again with more bytes makes a new one; call `synchronise` between what one rank
        writes and what another reads.

        Raises
        ------
        CollectiveInputError
            When the MPI library cannot share memory between these ranks.
        """
        kind = np.dtype(dtype)
        needed = shape[0] * shape[1] * kind.itemsize
        if self._sizes.get(name, -1) < needed:
            self._release(name)
            self._windows[name] = self._allocate(needed)
            self._sizes[name] = needed
        memory, _ = self._windows[name].Shared_query(0)
        array: Array = np.frombuffer(memory.cast("B"), np.uint8, needed).view(kind).reshape(shape)
        return array

    def synchronise(self, name: str) -> None:
        """Wait for all ranks of the host, and make what they wrote visible.

        Collective over the host.
        """
        self._windows[name].Sync()
        self.comm.Barrier()
        self._windows[name].Sync()

    def close(self) -> None:
        """Free the windows.

        Collective over the host.
        """
        for name in list(self._windows):
            self._release(name)

    def _allocate(self, num_bytes: int) -> MPI.Win:
        size = max(num_bytes, 1) if self.comm.rank == 0 else 0
        try:
            window = MPI.Win.Allocate_shared(size, 1, comm=self.comm)
        except MPI.Exception as error:
            raise CollectiveInputError(
                "this MPI library cannot share memory between the ranks of a host "
                f"({error.Get_error_string()}); use exchange.method=joint or aware"
            ) from error
        # The unified model of every shared-memory MPI; one epoch for the life of the window.
        window.Lock_all(MPI.MODE_NOCHECK)
        return window

    def _release(self, name: str) -> None:
        window = self._windows.pop(name, None)
        if window is not None:
            window.Unlock_all()
            window.Free()
            del self._sizes[name]
