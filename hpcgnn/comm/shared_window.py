"""Memory shared by the ranks of a host (MPI shared-memory windows)."""

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.errors import CollectiveInputError
from hpcgnn.spmd import collective
from hpcgnn.typing import Array


class SharedWindow:
    """Named arrays shared by all ranks of `comm`, which are on one host; the grid closes it.

    With `zeroed` the parts that other ranks would write are zero, since `comm` stands for a host
    that does not exist. All calls are collective over the host.
    """

    def __init__(self, comm: Communicator, *, zeroed: bool = False) -> None:
        self.comm = comm
        self._shapes: dict[str, object] | None = {} if zeroed else None
        self._windows: dict[str, MPI.Win] = {}
        self._sizes: dict[str, int] = {}

    @collective
    def get(self, name: str, shape: tuple[int, int], dtype: DTypeLike) -> Array:
        """Return the shared array `name`, of equal `shape` and `dtype` on all ranks.

        Requesting more bytes than before makes a new array. Call `synchronise` between a rank's
        writing and another's reading. Raises `CollectiveInputError` if the MPI library cannot share
        memory between these ranks.
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
            # Old bytes may not be finite numbers in another dtype or width.
            array[...] = 0
            self._shapes[name] = shape, kind
        return array

    @collective
    def synchronise(self, name: str) -> None:
        """Wait for all ranks of the host and make their writes visible."""
        self._windows[name].Sync()
        self.comm.Barrier()
        self._windows[name].Sync()

    @collective
    def gather(self, name: str, share: Array) -> tuple[Array, Array]:
        """Concatenate the lists of all ranks of the host in shared memory.

        `share` (n,) is this rank's list, of equal dtype on all ranks. Returns the concatenation,
        valid until the next call with this `name`, and (ranks + 1,) int64 the positions at which
        the ranks' lists begin.
        """
        ends = np.cumsum([0, *self.comm.allgather(len(share))], dtype=np.int64)
        # Wait until no rank reads the previous lists any more.
        self.comm.Barrier()
        whole = self.get(name, (int(ends[-1]), 1), share.dtype)[:, 0]
        whole[ends[self.comm.rank] : ends[self.comm.rank + 1]] = share
        self.synchronise(name)
        return whole, ends

    @collective
    def forget(self, *names: str) -> None:
        """Free the named arrays that exist."""
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
        # Shared windows have the unified memory model, so one epoch can last as long as the window.
        window.Lock_all(MPI.MODE_NOCHECK)
        return window

    def _release(self, name: str) -> None:
        window = self._windows.pop(name, None)
        if window is not None:
            window.Unlock_all()
            window.Free()
            del self._sizes[name]
