"""Messages between GPUs by NCCL, through CuPy."""

import importlib
from collections.abc import Sequence
from typing import Any

from hpcgnn.kernels.cuda.device import DeviceArray, GpuUnavailableError, load_cupy, pointer

Messages = Sequence[tuple[int, DeviceArray]]
"""A rank, and the C-contiguous array that goes to it or comes from it."""


def new_nccl_id() -> tuple[int, ...]:
    """Return what one rank makes and all ranks of a communicator need.

    Raises `GpuUnavailableError` where this CuPy has no NCCL.
    """
    return tuple(_nccl().get_unique_id())


class NcclRanks:
    """Ranks, each with a GPU of its own, that send to each other, by the same `new_nccl_id`."""

    def __init__(self, size: int, rank: int, unique_id: tuple[int, ...]) -> None:
        self._nccl = _nccl()
        self._ranks: Any = self._nccl.NcclCommunicator(size, unique_id, rank)

    def start(self, sent: Messages, received: Messages, stream: Any) -> None:
        """Issue messages in both directions as one group, on a stream of CuPy."""
        kind = self._nccl.NCCL_UINT8
        self._nccl.groupStart()
        for rank, array in sent:
            self._ranks.send(pointer(array), array.nbytes, kind, rank, stream.ptr)
        for rank, array in received:
            self._ranks.recv(pointer(array), array.nbytes, kind, rank, stream.ptr)
        self._nccl.groupEnd()

    def broadcast(self, array: DeviceArray, root: int, stream: Any) -> None:
        """Issue the copy of a C-contiguous array of `root` to all ranks."""
        kind = self._nccl.NCCL_UINT8
        self._ranks.bcast(pointer(array), array.nbytes, kind, root, stream.ptr)

    def reduce(self, array: DeviceArray, total: DeviceArray, root: int, stream: Any) -> None:
        """Issue the sum of C-contiguous arrays of floats into `total` on `root`."""
        kind, nccl = self._kind(array), self._nccl
        places = pointer(array), pointer(total)
        self._ranks.reduce(*places, array.size, kind, nccl.NCCL_SUM, root, stream.ptr)

    def all_reduce(self, array: DeviceArray, stream: Any) -> None:
        """Issue the replacement of a C-contiguous array of floats by its sum."""
        kind, nccl = self._kind(array), self._nccl
        place = pointer(array)
        self._ranks.allReduce(place, place, array.size, kind, nccl.NCCL_SUM, stream.ptr)

    def _kind(self, array: DeviceArray) -> Any:
        nccl = self._nccl
        return nccl.NCCL_FLOAT64 if array.dtype.name == "float64" else nccl.NCCL_FLOAT32


def _nccl() -> Any:
    try:
        module = importlib.import_module("cupy.cuda.nccl")
    except ImportError as error:
        raise GpuUnavailableError(
            f"this CuPy has no NCCL ({error}): pip install nvidia-nccl-cu12"
        ) from error
    load_cupy()
    return module
