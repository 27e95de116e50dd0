"""CuPy, imported at the first use, and the check that a GPU is there."""

import importlib
import platform
import sys
from typing import Any, TypeAlias

from hpcgnn.errors import InputError
from hpcgnn.kernels import arguments
from hpcgnn.kernels.arguments import WireFormat

# A cupy.ndarray: CuPy is no dependency, so that its types cannot be named.
DeviceArray: TypeAlias = Any

# The first that takes streams of others by their protocol.
_LEAST_CUPY = 14


class GpuUnavailableError(InputError):
    """CuPy is not installed, or finds no GPU that it can use."""


def load_cupy() -> Any:
    """Return the module cupy; raises `GpuUnavailableError` where it is not installed."""
    # Every launch asks.
    if (loaded := sys.modules.get("cupy")) is not None:
        return loaded
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise GpuUnavailableError(
            f"CuPy cannot be imported ({error}): pip install cupy-cuda12x, which hpcgnn[gpu] does"
        ) from error


def require_gpu() -> None:
    """Raise `GpuUnavailableError`, one line that names the reason, unless CuPy finds a GPU."""
    cupy = load_cupy()
    if int(cupy.__version__.partition(".")[0]) < _LEAST_CUPY:
        raise GpuUnavailableError(
            f"CuPy {cupy.__version__} is too old: pip install 'cupy-cuda12x>={_LEAST_CUPY}'"
        )
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise GpuUnavailableError(f"no GPU can be used: {error}") from error
    if count == 0:
        raise GpuUnavailableError("no GPU can be used: the driver lists none")


def use_device(number: int) -> int:
    """Make one of the GPUs that CuPy finds the current one; return which.

    Numbers beyond the last GPU begin anew at the first. Raises `GpuUnavailableError` where there is
    none.
    """
    require_gpu()
    cuda = load_cupy().cuda
    chosen = number % int(cuda.runtime.getDeviceCount())
    cuda.Device(chosen).use()
    return chosen


def card_id() -> str:
    """Return what tells the current GPU from all others."""
    return f"{platform.node()} {load_cupy().cuda.Device().pci_bus_id}"


def pointer(array: DeviceArray | None) -> int:
    """Return the device address of an array, 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def storage_of(array: DeviceArray, half: WireFormat | None) -> str:
    """Return the name of the elements' type: what `half` says where `array` is uint16.

    Raises `TypeError` where it does not.
    """
    name = arguments.dtype_name(array.dtype)
    if name != "uint16":
        return name
    if half not in ("bfloat16", "float16"):
        raise TypeError(f"uint16 operands need half='bfloat16' or half='float16', not {half!r}")
    return half


def require_array(name: str, array: object, ndim: int, dtypes: tuple[str, ...]) -> None:
    """Raise unless `array` is a C-contiguous CuPy array of one of `dtypes`."""
    arguments.require_array(name, array, ndim, dtypes, load_cupy().ndarray)


class EventClock:
    """A `hpcgnn.trace.DeviceClock`: marks CuPy's current stream with CUDA events."""

    def mark(self) -> Any:
        """Return an event behind the work that was issued so far."""
        event = load_cupy().cuda.Event()
        event.record()
        return event

    def ns_between(self, start: Any, end: Any) -> int:
        """Return the nanoseconds from one event to a later one, when that has come."""
        end.synchronize()
        return round(float(load_cupy().cuda.get_elapsed_time(start, end)) * 1e6)
