"""Allocate large arrays, on huge pages or in the memory of earlier arrays that were freed.

The system clears fresh pages, which takes longer than filling them, and several times as long on
virtual machines. Training steps allocate the same sizes again and again; setup does not.
"""

import ctypes
import math
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.typing import Array

_LEAST_BYTES = 1 << 18
"""Smaller arrays are left to the allocator, which reuses memory of such sizes itself."""
_MOST_WASTE = 1.25
"""Largest ratio of reused bytes to requested bytes."""

_LINE_BYTES = 64
_MOST_EXCESS = 6.0
"""The same ratio when idle memory would otherwise have to go back to the system."""
_MOST_HELD = 1.125
"""Largest ratio of idle plus used bytes to the peak of used bytes."""
_HUGE_BYTES = 1 << 22
"""Larger arrays fill faster on huge pages; smaller ones are not worth returning."""

# Parameters of mallopt in glibc's malloc.h: arrays of at least the first many bytes get a mapping
# of their own; free bytes at the end of the heap beyond the second go back to the system.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LOADED = 1 << 22
"""Larger than the arrays made for one piece of entries, which the heap should reuse."""
_KEPT = 1 << 25
"""Highest value of glibc's own dynamic threshold, reached once an array of this size is freed."""


class _Reuse:
    """A pool of memory: an array's memory returns when the last array that uses it is freed.

    It hardly raises the peak: idle plus used memory exceeds the peak of used memory by at most an
    eighth plus 4 MiB.
    """

    def __init__(self) -> None:
        self._idle: list[Array] = []
        self._returned: list[Array] = []
        self._used_bytes = self._idle_bytes = self._peak_bytes = 0
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
        return np.asarray(_Lease(memory, shape, kind, self._return))

    def close(self) -> None:
        """Free idle memory; memory that returns later is freed at once."""
        self._closed = True
        self._returned.clear()
        self._idle.clear()
        self._idle_bytes = 0

    def _return(self, memory: Array) -> None:
        # It may be called at any point of any thread: list.append is atomic.
        if not self._closed:
            self._returned.append(memory)

    def _collect(self) -> None:
        while self._returned:
            memory = self._returned.pop()
            self._used_bytes -= len(memory)
            self._idle_bytes += len(memory)
            self._idle.append(memory)

    def _fitting(self, needed: int) -> Array:
        index = self._shortest(needed, _MOST_WASTE)
        most = _MOST_HELD * self._peak_bytes + _HUGE_BYTES - self._used_bytes - needed
        if index is None and self._idle_bytes > most:
            # Rather than return idle memory to the system, accept a poorer fit.
            index = self._shortest(needed, _MOST_EXCESS)
        if index is not None:
            return self._taken(index)
        while self._idle and self._idle_bytes > most:
            self._taken(0)
        return _fresh(needed)

    def _taken(self, index: int) -> Array:
        memory = self._idle.pop(index)
        self._idle_bytes -= len(memory)
        return memory

    def _shortest(self, needed: int, waste: float) -> int | None:
        """Return the index of the shortest idle memory of `needed` to `waste * needed` bytes."""
        found, limit = None, int(waste * needed) + 1
        for index, memory in enumerate(self._idle):
            if needed <= len(memory) < limit:
                found, limit = index, len(memory)
        return found


class _Lease:
    """The use of some memory as an array; NumPy keeps it as long as the array or a view of it."""

    __slots__ = ("__array_interface__", "_give_back", "_memory")

    def __init__(
        self,
        memory: Array,
        shape: tuple[int, ...],
        kind: np.dtype[np.generic],
        give_back: Callable[[Array], None],
    ) -> None:
        self._memory, self._give_back = memory, give_back
        place = memory.__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "data": place,
            "shape": shape,
            "typestr": kind.str,
        }

    def __del__(self) -> None:
        self._give_back(self._memory)


def _fresh(size: int) -> Array:
    """Return memory that begins at a cache line.

    Rows of whole lines then never straddle an extra line: gathering rows of one line takes little
    more than half the time. Large memory has a mapping of its own, which leaves no hole in the heap
    when it is freed.
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
    """Let `empty` reuse the memory of freed arrays until the context ends.

    Arrays still in use at the end stay valid. Threads that start inside do not take part.
    """
    pool = _Reuse()
    token = _reuse.set(pool)
    try:
        yield
    finally:
        _reuse.reset(token)
        pool.close()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return an uninitialised C-contiguous array, from the pool inside `reused_memory`."""
    reuse = _reuse.get()
    return np.empty(shape, dtype) if reuse is None else reuse.empty(shape, np.dtype(dtype))


def return_freed_arrays(least: int = _LEAST_BYTES) -> None:
    """From now on, make glibc return arrays of `least` bytes and more to the system when freed.

    By default it keeps those below 32 MiB in its heap, whose holes take half as much again as is in
    use. Other C libraries are left alone.
    """
    _tell_malloc("mallopt", _MMAP_THRESHOLD, least)
    _tell_malloc("mallopt", _TRIM_THRESHOLD, 4 * least)


@contextmanager
def loading(*, lean: bool) -> Iterator[None]:
    """Return freed arrays of 4 MiB and more while a graph is loaded, and holes of the heap after.

    A `lean` process goes on so; others keep such arrays again, to spare training cleared pages.
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
