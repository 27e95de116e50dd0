"""Memory that the ranks of one host share (MPI shared windows)."""

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.errors import CollectiveInputError
from hpcgnn.spmd import collective
from hpcgnn.typing import Array


class SharedWindow:
    """Named arrays that all ranks of `comm`, those of one host, see; the grid closes it.

    With `zeroed` what other ranks would write is zero: `comm` represents a host that does not
    exist. All calls are collective over the host.
    """

    def __init__(self, comm: Communicator, *, zeroed: bool = False) -> None:
        self.comm = comm
        self._shapes: dict[str, object] | None = {} if zeroed else None
        self._windows: dict[str, MPI.Win] = {}
        self._sizes: dict[str, int] = {}

    @collective
    def get(self, name: str, shape: tuple[int, int], dtype: DTypeLike) -> Array:
        """Return the shared array called `name`, of equal `shape` and `dtype` on all ranks.

        Asking again with more bytes makes a new one; call `synchronise` between what one rank
        writes and what another reads. Raises `CollectiveInputError` where the MPI library cannot
        share memory between these ranks.
        """
        kind = np.dtype(dtype)
        num_bytes = shape[0] * shape[1] * kind.itemsize
        if self._sizes.get(name, -1) < num_bytes:
            self._release(name)
            self._windows[name] = self._allocate(num_bytes)
            self._sizes[name] = num_bytes
        memory, _ = self._windows[name].Shared_query(0)
        array: Array = (
            np.frombuffer(memory.cast("B"), np.uint8, num_bytes).view(kind).reshape(shape)
        )
        if self._shapes is not None and self._shapes.get(name) != (shape, kind):
            # Rows of another dtype or width may be no numbers here.
            array[...] = 0
            self._shapes[name] = shape, kind
        return array

    @collective
    def synchronise(self, name: str) -> None:
        """Wait for all ranks of the host, and make what they wrote visible."""
        self._windows[name].Sync()
        self.comm.Barrier()
        self._windows[name].Sync()

    @collective
    def gather(self, name: str, share: Array) -> tuple[Array, Array]:
        """Return the lists of all ranks of the host, one after another, in memory that they share.

        They hold until the ranks ask for lists of this name again. `share` (n,) is of this rank, of
        one dtype on all ranks. Returns the lists (all n,) and (ranks + 1,) int64: where the list of
        each rank begins.
        """
        ends = np.cumsum([0, *self.comm.allgather(len(share))], dtype=np.int64)
        # Nobody may still read the lists before these.
        self.comm.Barrier()
        whole = self.get(name, (int(ends[-1]), 1), share.dtype)[:, 0]
        whole[ends[self.comm.rank] : ends[self.comm.rank + 1]] = share
        self.synchronise(name)
        return whole, ends

    @collective
    def forget(self, *names: str) -> None:
        """Free some arrays, if they are there."""
        for name in names:
            self._release(name)

    @collective
    def close(self) -> None:
        """Free the windows."""
        self.forget(*self._windows)

    def _allocate(self, num_bytes: int) -> "MPI.Win":
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
