"""A pool of exchange buffers, which are allocated once, reused and counted.

Allocating a megabyte anew for every exchange costs page faults each time; a pool pays them once.
"""

import math
import weakref

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.typing import Array

_ALIGNMENT = 64


class LiveBytes:
    """A gauge of the bytes held now and their peak."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def hold(self, owner: object, num_bytes: int) -> None:
        """Count bytes as held until `owner` is garbage-collected."""
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(owner, self._drop, num_bytes).atexit = False

    def _drop(self, num_bytes: int) -> None:
        self.now -= num_bytes


class BufferPool:
    """Memory that is lent to arrays and returns when the last array using it is gone.

    So buffers need no explicit release, and rows that a caller keeps are never overwritten. One
    pool serves all exchanges of a grid: they run one at a time and need the memory of only one.
    """

    def __init__(self) -> None:
        self.ghosts = LiveBytes()
        self.num_bytes = 0
        self._idle: list[Array] = []

    def take(self, shape: tuple[int, ...], dtype: DTypeLike, *, ghosts: bool = False) -> Array:
        """Return an uninitialised C-contiguous array of `shape` and `dtype`, aligned to 64 bytes.

        With `ghosts` it is for rows of other ranks' nodes, which the gauge `ghosts` counts.
        """
        kind = np.dtype(dtype)
        num_bytes = math.prod(shape) * kind.itemsize
        memory = self._fitting(num_bytes)
        # `root` does not own its memory, so views of it keep `root` alive, not an array behind it.
        root = np.asarray(memory.data)
        weakref.finalize(root, self._idle.append, memory).atexit = False
        if ghosts:
            self.ghosts.hold(root, num_bytes)
        return root[:num_bytes].view(kind).reshape(shape)

    def _fitting(self, num_bytes: int) -> Array:
        """Return the smallest idle memory that suffices, or replace the largest idle one."""
        self._idle.sort(key=len)
        for index, memory in enumerate(self._idle):
            if len(memory) >= num_bytes:
                return self._idle.pop(index)
        if self._idle:
            # Drop the old one first, so that both are never allocated at once.
            self.num_bytes -= len(self._idle.pop())
        self.num_bytes += num_bytes
        unaligned = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = -unaligned.ctypes.data % _ALIGNMENT
        return unaligned[start : start + num_bytes]
