"""Memory of large results: fresh from the system, or left by results that are gone.

The system clears pages before it hands them out, which takes longer than to fill them, and on
virtual machines several times as long. Steps of training ask for the same sizes again and again;
what comes before them does not.
"""

import ctypes
import math
import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.typing import Array

_LEAST_BYTES = 1 << 18
"""Smaller arrays are left to the allocator, which reuses memory of such sizes itself."""
_MOST_WASTE = 1.25
"""Bytes of reused memory over the bytes that are asked for, at most."""

_LINE_BYTES = 64
_MOST_EXCESS = 3.0
"""The same where other memory would be given back for it."""
_MOST_HELD = 1.125
"""Bytes of idle memory and of memory in use over the most that has been in use, at most."""
_HUGE_BYTES = 1 << 22
"""Larger arrays fill faster on huge pages; less is not worth giving back."""

# From glibc's malloc.h: arrays from so many bytes on get a mapping of their own, and so many free
# bytes at the end of the heap go back to the system.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LOADED = 1 << 22
"""Larger than what is made of a piece of entries, which the heap should give again and again."""
_KEPT = 1 << 25
"""What glibc's own threshold rises to once an array of this size is freed."""


class _Reuse:
    """Memory that comes back when the last array that uses it is gone.

    It hardly raises the peak: idle memory and memory in use together are at most an eighth and 4
    MiB more than what has been in use at one time.
    """

    def __init__(self) -> None:
        self._idle: list[Array] = []
        self._returned: list[Array] = []
        self._used_bytes = self._peak_bytes = 0
        self._closed = False

    def empty(self, shape: tuple[int, ...], kind: np.dtype[np.generic]) -> Array:
        """Return an uninitialised C-contiguous array."""
        needed = math.prod(shape) * kind.itemsize
        if needed < _LEAST_BYTES:
            return np.empty(shape, kind)
        self._collect()
        memory = self._fitting(needed)
        self._used_bytes += len(memory)
        self._peak_bytes = max(self._peak_bytes, self._used_bytes)
        # A root that does not own its memory: arrays made from it refer to it, not past it.
        root = np.asarray(memory.data)
        weakref.finalize(root, self._return, memory).atexit = False
        return root[:needed].view(kind).reshape(shape)

    def close(self) -> None:
        """Give idle memory back to the system, and what returns later too."""
        self._closed = True
        self._returned.clear()
        self._idle.clear()

    def _return(self, memory: Array) -> None:
        # May run at any point of any thread: it does one thing that no other can interrupt.
        if not self._closed:
            self._returned.append(memory)

    def _collect(self) -> None:
        while self._returned:
            memory = self._returned.pop()
            self._used_bytes -= len(memory)
            self._idle.append(memory)

    def _fitting(self, needed: int) -> Array:
        found = self._shortest(needed, _MOST_WASTE)
        most, idle_bytes = _MOST_HELD * self._peak_bytes + _HUGE_BYTES, sum(map(len, self._idle))
        if found is None and self._used_bytes + idle_bytes + needed > most:
            # What else would go back to the system serves as it is, unless most of it lay idle.
            found = self._shortest(needed, _MOST_EXCESS)
        if found is not None:
            return self._idle.pop(found)
        while self._idle and self._used_bytes + idle_bytes + needed > most:
            idle_bytes -= len(self._idle.pop(0))
        return _fresh(needed)

    def _shortest(self, needed: int, waste: float) -> int | None:
        """Return which idle memory of enough bytes, and at most so many times that, is shortest."""
        fits = [i for i, m in enumerate(self._idle) if needed <= len(m) <= waste * needed]
        return min(fits, key=lambda i: len(self._idle[i]), default=None)


def _fresh(size: int) -> Array:
    """Return memory that begins at a cache line.

    Rows of whole lines then lie in no more lines than they have: gathering those of one line takes
    little more than half the time. Much memory has a mapping of its own, which leaves no hole in
    the heap when it is gone.
    """
    if size < _HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = np.empty(size + _LINE_BYTES, np.uint8)
        first = -memory.ctypes.data % _LINE_BYTES
        return memory[first : first + size]
    mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


_reuse: ContextVar[_Reuse | None] = ContextVar("reuse", default=None)


@contextmanager
def reused_memory() -> Iterator[None]:
    """Let results lie in the memory of results that are gone, until the context ends.

    What is still in use at the end stays valid. Threads that start inside do not take part.
    """
    mine = _Reuse()
    token = _reuse.set(mine)
    try:
        yield
    finally:
        _reuse.reset(token)
        mine.close()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an uninitialised C-contiguous array, on huge pages where it is large."""
    reuse = _reuse.get()
    return np.empty(shape, dtype) if reuse is None else reuse.empty(shape, np.dtype(dtype))


def return_freed_arrays(least: int = _LEAST_BYTES) -> None:
    """Have glibc return arrays of so many bytes to the system when they are freed, from now on.

    By itself it keeps those below 32 MiB in its heap, with holes: half as much again as is in use.
    Another C library is left as it is.
    """
    _tell_malloc("mallopt", _MMAP_THRESHOLD, least)
    _tell_malloc("mallopt", _TRIM_THRESHOLD, 4 * least)


@contextmanager
def loading(*, lean: bool) -> Iterator[None]:
    """Return freed arrays of 4 MiB and more while a graph is loaded, and at its end holes.

    A `lean` process goes on so; others keep such arrays again, whose pages training would clear.
    """
    return_freed_arrays(_LOADED)
    try:
        yield
    finally:
        _tell_malloc("malloc_trim", 0)
        _tell_malloc("mallopt", _TRIM_THRESHOLD, 2 * _KEPT)
        if not lean:
            _tell_malloc("mallopt", _MMAP_THRESHOLD, _KEPT)


def _tell_malloc(function: str, *arguments: int) -> None:
    call = getattr(ctypes.CDLL(None), function, None)
    if call is not None:
        call(*arguments)
