"""Import CuPy at first use, check for a GPU, and describe device arrays to the kernels."""

import importlib
import platform
import sys
from typing import Any, TypeAlias

from hpcgnn.errors import InputError
from hpcgnn.kernels import arguments
from hpcgnn.kernels.arguments import WireFormat

# A cupy.ndarray: CuPy is not a dependency, so its types cannot be named.
DeviceArray: TypeAlias = Any

# The first major version that accepts other libraries' streams by their protocol.
_LEAST_CUPY = 14


class GpuUnavailableError(InputError):
    """CuPy is not installed, or finds no usable GPU."""


def load_cupy() -> Any:
    """Return the module cupy; raise `GpuUnavailableError` if it is not installed."""
    # Every launch comes here; the lookup is faster than an import.
    if (loaded := sys.modules.get("cupy")) is not None:
        return loaded
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise GpuUnavailableError(
            f"CuPy cannot be imported ({error}): pip install cupy-cuda12x, or install hpcgnn[gpu]"
        ) from error


def require_gpu() -> None:
    """Raise `GpuUnavailableError` with the reason in one line unless CuPy finds a GPU."""
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
    """Make the GPU `number`, modulo the number of GPUs, the current device; return its index.

    Raises `GpuUnavailableError` if there is no GPU.
    """
    require_gpu()
    cuda = load_cupy().cuda
    chosen = number % int(cuda.runtime.getDeviceCount())
    cuda.Device(chosen).use()
    return chosen


def card_id() -> str:
    """Return a string that identifies the current GPU among those of all hosts."""
    return f"{platform.node()} {load_cupy().cuda.Device().pci_bus_id}"


def pointer(array: DeviceArray | None) -> int:
    """Return the device address of an array, 0 for None."""
    return 0 if array is None else int(array.data.ptr)


def storage_of(array: DeviceArray, half: WireFormat | None) -> str:
    """Return the name of the element type: the dtype, or `half` if `array` is uint16.

    Raises `TypeError` if `array` is uint16 and `half` is not a 16-bit format.
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
        """Return an event recorded after the work issued so far."""
        event = load_cupy().cuda.Event()
        event.record()
        return event

    def ns_between(self, start: Any, end: Any) -> int:
        """Wait for a later event, and return the nanoseconds from the first one to it."""
        end.synchronize()
        return round(float(load_cupy().cuda.get_elapsed_time(start, end)) * 1e6)
