"""Exchange buffers that are allocated once and reused, and counted.

A fresh array of a megabyte costs its page faults on every exchange; a pool pays them once.
"""

import math

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.typing import Array

__all__ = ["BufferPool"]


class BufferPool:
    """Named scratch arrays that grow and are reused.

    A name stands for one buffer: asking for it again hands out the same memory, so a caller uses as
    many names as it needs arrays at one time.
    """

    def __init__(self) -> None:
        self._memory: dict[str, Array] = {}

    def get(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialised C-contiguous array of `shape` and `dtype`.

        Not collective.
        """
        kind = np.dtype(dtype)
        needed = math.prod(shape) * kind.itemsize
        memory = self._memory.get(name)
        if memory is None or memory.nbytes < needed:
            # Drop the smaller one first, so that both never live at once.
            self._memory.pop(name, None)
            memory = np.empty(needed, np.uint8)
            self._memory[name] = memory
        return memory[:needed].view(kind).reshape(shape)

    @property
    def num_bytes(self) -> int:
        """Bytes held by all buffers."""
        return sum(memory.nbytes for memory in self._memory.values())
