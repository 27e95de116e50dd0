"""Copy rows between device memory and MPI through page-locked host memory."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.typing import Array


def empty_pinned(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a page-locked host array, for copies to and from the device in the background."""
    return importlib.import_module("cupyx").empty_pinned(shape, np.dtype(dtype))


class Download:
    """An asynchronous copy to the host, ordered on CuPy's current stream.

    The device array is C-contiguous; `host` has the same shape and dtype, is made by
    `empty_pinned`, and must not be read before `wait`.
    """

    def __init__(self, array: DeviceArray, host: Array) -> None:
        self.host = host
        self._event: Any = load_cupy().cuda.Event()
        array.get(out=host, blocking=False)
        self._event.record()

    def wait(self) -> None:
        """Wait until the rows are in host memory, but not for work issued after the copy."""
        self._event.synchronize()


class Upload:
    """An asynchronous copy to the device, ordered on CuPy's current stream.

    `host`, made by `empty_pinned`, is kept alive and read until the copy is `done`; the device
    array is C-contiguous, of the same shape and dtype.
    """

    def __init__(self, host: Array, array: DeviceArray) -> None:
        cuda = load_cupy().cuda
        self._host = host
        array.set(host, cuda.get_current_stream())
        self._event: Any = cuda.Event()
        self._event.record()

    @property
    def done(self) -> bool:
        """Whether `host` is no longer read."""
        return bool(self._event.done)


class Uploads:
    """Asynchronous copies to the device, each kept alive until it is done."""

    def __init__(self) -> None:
        self._under_way: list[Upload] = []

    def hold(self, upload: Upload) -> None:
        """Keep a copy until it is done."""
        self._under_way = [earlier for earlier in self._under_way if not earlier.done] + [upload]

    def start(self, rows: Array, array: DeviceArray) -> None:
        """Start to copy host rows in any memory, which may change as soon as this returns."""
        host = empty_pinned(rows.shape, rows.dtype)
        host[...] = rows
        self.hold(Upload(host, array))
