"""Point-to-point messages and collectives between GPUs: NCCL through CuPy."""

import importlib
from collections.abc import Sequence
from typing import Any

from hpcgnn.kernels.cuda.device import DeviceArray, GpuUnavailableError, load_cupy, pointer

Messages = Sequence[tuple[int, DeviceArray]]
"""Pairs of a peer rank and the C-contiguous array to send to it or receive from it."""


class NcclRanks:
    """An NCCL communicator of ranks with one GPU each; all pass the same unique id."""

    def __init__(self, size: int, rank: int, unique_id: tuple[int, ...]) -> None:
        self._nccl = load_nccl()
        self._ranks: Any = self._nccl.NcclCommunicator(size, unique_id, rank)

    def start(self, sent: Messages, received: Messages, stream: Any) -> None:
        """Issue sends and receives as one group, on a CuPy stream."""
        kind = self._nccl.NCCL_UINT8
        self._nccl.groupStart()
        for rank, array in sent:
            self._ranks.send(pointer(array), array.nbytes, kind, rank, stream.ptr)
        for rank, array in received:
            self._ranks.recv(pointer(array), array.nbytes, kind, rank, stream.ptr)
        self._nccl.groupEnd()

    def broadcast(self, array: DeviceArray, root: int, stream: Any) -> None:
        """Issue a broadcast of a C-contiguous array from `root`."""
        kind = self._nccl.NCCL_UINT8
        self._ranks.bcast(pointer(array), array.nbytes, kind, root, stream.ptr)

    def reduce(self, array: DeviceArray, total: DeviceArray, root: int, stream: Any) -> None:
        """Issue a sum of all ranks' C-contiguous arrays of floats into `total` on `root`."""
        kind, nccl = self._kind(array), self._nccl
        addresses = pointer(array), pointer(total)
        self._ranks.reduce(*addresses, array.size, kind, nccl.NCCL_SUM, root, stream.ptr)

    def all_reduce(self, array: DeviceArray, stream: Any) -> None:
        """Issue an in-place sum of all ranks' C-contiguous arrays of floats."""
        kind, nccl = self._kind(array), self._nccl
        address = pointer(array)
        self._ranks.allReduce(address, address, array.size, kind, nccl.NCCL_SUM, stream.ptr)

    def _kind(self, array: DeviceArray) -> Any:
        nccl = self._nccl
        return nccl.NCCL_FLOAT64 if array.dtype.name == "float64" else nccl.NCCL_FLOAT32


def load_nccl() -> Any:
    """Return CuPy's module of NCCL; raise `GpuUnavailableError` if it has none."""
    try:
        module = importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise GpuUnavailableError(
            f"this CuPy has no NCCL ({error}): pip install nvidia-nccl-cu12"
        ) from error
    load_cupy()
    return module
