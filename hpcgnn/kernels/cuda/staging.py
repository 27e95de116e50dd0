"""Rows on their way between device memory and MPI, through page-locked host memory."""

import importlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.typing import Array


def empty_pinned(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return a host array that the device copies to and from while the host does other things."""
    return importlib.import_module("cupyx").empty_pinned(shape, np.dtype(dtype))


class Download:
    """A copy to the host under way, ordered on CuPy's current stream.

    The array on the device is C-contiguous; `host` of the same shape and dtype is from
    `empty_pinned`, and not to be read before `wait`.
    """

    def __init__(self, array: DeviceArray, host: Array) -> None:
        self.host = host
        self._event: Any = load_cupy().cuda.Event()
        array.get(out=host, blocking=False)
        self._event.record()

    def wait(self) -> None:
        """Return when the rows are in host memory; work issued since then goes on."""
        self._event.synchronize()


class Upload:
    """A copy to the device under way, ordered on CuPy's current stream.

    `host`, from `empty_pinned`, is read until the copy is `done`, and held that long; the array on
    the device is C-contiguous, of the same shape and dtype.
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
    """Copies to the device under way, each held until it is done."""

    def __init__(self) -> None:
        self._under_way: list[Upload] = []

    def hold(self, upload: Upload) -> None:
        """Keep a copy until it is done."""
        self._under_way = [earlier for earlier in self._under_way if not earlier.done] + [upload]

    def start(self, rows: Array, array: DeviceArray) -> None:
        """Start to copy host rows of any kind, which may change as soon as this returns."""
        host = empty_pinned(rows.shape, rows.dtype)
        host[...] = rows
        self.hold(Upload(host, array))
