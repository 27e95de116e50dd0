"""NCCL's messages by MPI: without tags, so that only their order matches them."""

import ctypes
from types import SimpleNamespace
from typing import Any

from mpi4py import MPI

import numpy as np

__all__ = ["FakeNccl"]

STREAM = 4711
DTYPES = {1: np.uint8, 7: np.float32, 8: np.float64}
OPERATIONS = {0: MPI.SUM, 2: MPI.MAX}


class FakeNccl:
    """The module ``cupy.cuda.nccl`` for the ranks of a communicator."""

    NCCL_UINT8, NCCL_FLOAT32, NCCL_FLOAT64 = 1, 7, 8
    NCCL_SUM, NCCL_MAX = 0, 2

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._waiting = comm, []

    def get_unique_id(self) -> tuple[int, ...]:
        return (self._comm.rank,) * 128

    def NcclCommunicator(  # noqa: N802
        self, size: int, unique_id: tuple[int, ...], rank: int
    ) -> SimpleNamespace:
        ranks = self._comm.Split(unique_id[0], rank)
        assert (size, rank) == (ranks.size, ranks.rank)
        return SimpleNamespace(
            send=lambda *message: self._waiting.append((ranks.Isend, *message)),
            recv=lambda *message: self._waiting.append((ranks.Irecv, *message)),
            bcast=lambda *call: self._broadcast(ranks, *call),
            reduce=lambda *call: self._reduce(ranks, *call),
            allReduce=lambda *call: self._all_reduce(ranks, *call),
        )

    def groupStart(self) -> None:  # noqa: N802
        assert not self._waiting

    def groupEnd(self) -> None:  # noqa: N802
        requests = []
        for start, address, size, kind, peer, stream in self._waiting:
            assert (kind, stream) == (self.NCCL_UINT8, STREAM)
            requests.append(start(self._array(address, size, kind), peer))
        self._waiting.clear()
        MPI.Request.Waitall(requests)

    def _broadcast(
        self, ranks: MPI.Intracomm, address: int, count: int, kind: int, root: int, stream: int
    ) -> None:
        assert stream == STREAM
        ranks.Bcast(self._array(address, count, kind), root)

    def _reduce(self, ranks: MPI.Intracomm, source: int, target: int, *how: int) -> None:
        count, kind, operation, root, stream = how
        assert stream == STREAM
        total = self._array(target, count, kind) if ranks.rank == root else None
        ranks.Reduce(self._array(source, count, kind), total, OPERATIONS[operation], root)

    def _all_reduce(self, ranks: MPI.Intracomm, source: int, target: int, *how: int) -> None:
        count, kind, operation, stream = how
        assert (source, stream) == (target, STREAM)
        values = self._array(target, count, kind)
        ranks.Allreduce(MPI.IN_PLACE, values, OPERATIONS[operation])

    def _array(self, address: int, count: int, kind: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(DTYPES[kind])
        if count == 0:
            return np.empty(0, dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype)
