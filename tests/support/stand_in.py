"""The GPU of tests: a module in place of cupy, or CuPy itself if there is a GPU.

The stand-in has arrays in host memory, and kernels that emulator.h runs.

Every array ends at a page that must not be touched, so that reading or writing past its end stops
the process; kernels are compiled with the checks of undefined behaviour, misaligned access among
them. New arrays hold NaN (or other rubbish), never zeros.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import importlib
import mmap
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

HEADER = Path(__file__).with_name("emulator.h")
# Beside CMake's build files: pytest's own cache is disabled in tests/run.sh.
COMPILED = Path(__file__).resolve().parents[2] / "build" / "cuda-emulator"
FLAGS = [
    "-std=c++20",
    # Compiled in half the time of -O1; tests run each kernel on few rows.
    "-O0",
    "-shared",
    "-fPIC",
    "-U_FORTIFY_SOURCE",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
    "-fsanitize=undefined",
    # A quarter of the compile time: a kernel that reads there stops the process anyway.
    "-fno-sanitize=null,object-size,pointer-overflow",
    # Stops the process as a message would, and compiles in a third less.
    "-fsanitize-undefined-trap-on-error",
    "-fno-exceptions",
    "-fno-asynchronous-unwind-tables",
]
# Fewer blocks than items, so that threads stride over the grid.
MOST_BLOCKS = 3
ALIGNMENT = 16


class DeviceNdarray(np.ndarray):
    """Host memory that exposes its address like CuPy's arrays, and may wrap other memory."""

    def __new__(cls, shape: Any, dtype: Any, memory: Any, strides: Any = None) -> "DeviceNdarray":
        made = np.asarray(memory.detach().view(getattr(torch, np.dtype(dtype).name)))
        assert made.shape == shape
        assert strides in (None, made.strides)
        return made.view(cls)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(
        self, out: np.ndarray[Any, Any] | None = None, blocking: bool = True
    ) -> np.ndarray[Any, Any]:
        """Copy to the host; unless `blocking`, only when an event is next waited for."""
        if out is None or blocking:
            return np.array(self, subok=False)
        StandIn.under_way.append((np.array(self, subok=False), out))
        return out

    def set(self, array: np.ndarray[Any, Any], stream: "Stream | None" = None) -> None:
        self[...] = array


class EmulatorError(AssertionError):
    """A kernel did something that no GPU allows."""


def compiler() -> str | None:
    """Return the host's C++ compiler, or None."""
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def guarded(shape: Any, dtype: Any) -> DeviceNdarray:
    """Return an array whose last element is right before a page without access."""
    dtype, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(np.prod(shape, dtype=np.int64))
    size = -(-count * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    raw = np.frombuffer(memory, np.uint8)
    forbid = ctypes.CDLL(None, use_errno=True).mprotect
    if forbid(ctypes.c_void_p(raw.ctypes.data + pages), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    # A value of all ones is NaN in every float width, and -1 in integers.
    raw[:pages] = 0xFF
    start = pages - size
    array = raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)
    return array.view(DeviceNdarray)


def host(array: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array of an array on either kind of device."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


class RawModule:
    """Kernels of one source text, compiled by the host's compiler once for all later runs."""

    def __init__(self, code: str, reverse: bool) -> None:
        words = [str(compiler()), *FLAGS, "-x", "c++", "-include", str(HEADER)]
        key = "\0".join([*words, HEADER.read_text(), code])
        name = hashlib.sha256(key.encode()).hexdigest()[:20]
        library = COMPILED / f"{name}.so"
        COMPILED.mkdir(parents=True, exist_ok=True)
        # The first of several processes that need the same text compiles it; the others wait.
        with (COMPILED / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                source, made = (COMPILED / f"{name}.{end}" for end in ("cu", "partial"))
                source.write_text(code)
                command = [*words, str(source), "-o", str(made)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise EmulatorError(done.stderr)
                made.rename(library)
        self._library = ctypes.CDLL(str(library))
        self._reverse = reverse

    def get_function(self, name: str) -> Any:
        run = getattr(self._library, f"run_{name}")
        run.restype = ctypes.c_char_p
        size = getattr(self._library, f"size_{name}")
        size.restype = ctypes.c_ulong

        def launch(grid: tuple[int], block: tuple[int], args: tuple[Any]) -> None:
            if args[0].nbytes != size():
                raise EmulatorError(f"{name} takes {size()} bytes, not {args[0].nbytes}")
            blocks = min(grid[0], MOST_BLOCKS)
            address = ctypes.c_void_p(args[0].ctypes.data)
            error = run(address, blocks, block[0], int(self._reverse))
            if error is not None:
                raise EmulatorError(f"{name}: {error.decode()}")

        return launch


class Stream:
    """A stream whose work is done at once."""

    ptr = 4711

    def __init__(self, *, non_blocking: bool = False) -> None:
        assert non_blocking

    @staticmethod
    def from_external(stream: Any) -> contextlib.AbstractContextManager[None]:
        assert stream.__cuda_stream__() == (0, 0)
        return contextlib.nullcontext()

    def wait_event(self, event: "Event") -> None:
        assert event.recorded


class Event:
    """An event; waiting for it completes all copies to the host."""

    recorded = False

    @property
    def done(self) -> bool:
        """Whether the work before it is done; copies to the device are done when issued."""
        return self.recorded

    def record(self, stream: Stream | None = None) -> None:
        """Mark a position in the stream, whose work is already done."""
        self.recorded, self.time_ns = True, time.perf_counter_ns()

    def synchronize(self) -> None:
        for source, target in StandIn.under_way:
            target[...] = source
        StandIn.under_way.clear()


class StandIn:
    """The parts of cupy that hpcgnn uses and, for page-locked memory, of cupyx."""

    ndarray, __version__ = DeviceNdarray, "14.0.0"
    under_way: ClassVar[list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]] = []

    def __init__(self, *, reverse: bool = False) -> None:
        self._reverse = reverse
        errors = SimpleNamespace(getDeviceCount=lambda: 1, CUDARuntimeError=RuntimeError)
        self.cuda = SimpleNamespace(
            runtime=errors,
            Device=lambda _=0: SimpleNamespace(use=lambda: None, pci_bus_id=f"card {os.getpid()}"),
            Event=Event,
            Stream=Stream,
            get_elapsed_time=lambda start, end: (end.time_ns - start.time_ns) / 1e6,
            get_current_stream=lambda: Stream(non_blocking=True),
            UnownedMemory=lambda _address, _size, owner, _device: owner,
            MemoryPointer=lambda owner, _offset: owner,
        )

    def RawModule(self, *, code: str, options: tuple[str, ...]) -> RawModule:  # noqa: N802
        assert options == ("--std=c++17",)
        return RawModule(code, self._reverse)

    @staticmethod
    def empty(shape: Any, dtype: Any) -> DeviceNdarray:
        return guarded(shape, dtype)

    @staticmethod
    def empty_pinned(shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        return guarded(shape, dtype).view(np.ndarray)

    @staticmethod
    def zeros(shape: Any, dtype: Any) -> DeviceNdarray:
        array = guarded(shape, dtype)
        array[...] = 0
        return array

    @staticmethod
    def asarray(array: np.ndarray[Any, Any]) -> DeviceNdarray:
        made = guarded(array.shape, array.dtype)
        made[...] = array
        return made

    @staticmethod
    def full(shape: Any, value: float, dtype: Any) -> DeviceNdarray:
        array = guarded(shape, dtype)
        array[...] = value
        return array

    @staticmethod
    def ascontiguousarray(array: DeviceNdarray) -> DeviceNdarray:
        if array.flags.c_contiguous:
            return array
        made = guarded(array.shape, array.dtype)
        made[...] = array
        return made

    @staticmethod
    def concatenate(parts: Any, axis: int) -> DeviceNdarray:
        return StandIn.asarray(np.concatenate(parts, axis))

    @staticmethod
    def where(condition: DeviceNdarray, this: Any, other: Any) -> DeviceNdarray:
        return StandIn.asarray(np.where(condition, this, other))

    exp = staticmethod(np.exp)
    isfinite = staticmethod(np.isfinite)

    @staticmethod
    def asnumpy(array: DeviceNdarray) -> np.ndarray[Any, Any]:
        return np.array(array, subok=False)


class Card:
    """A real CuPy behind the functions that tests use; new arrays are NaN, as in the stand-in."""

    def __init__(self) -> None:
        self._cupy: Any = importlib.import_module("cupy")
        self.zeros, self.asarray = self._cupy.zeros, self._cupy.asarray

    def empty(self, shape: Any, dtype: Any) -> Any:
        array = self._cupy.empty(shape, dtype)
        array.view("uint8")[...] = 0xFF
        return array
