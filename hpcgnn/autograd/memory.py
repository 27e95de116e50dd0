"""The memory that a tensor is in, of the host or a GPU, and the kernels that work there.

Functions of this package call `memory_of` on their operand and compute in that memory. Operators
and node ids must be in the same memory as the tensors that they are used with.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.cupy_bridge import as_device_array, as_tensor, shared_stream
from hpcgnn.kernels import cuda
from hpcgnn.kernels.reuse import empty


class TensorMemory(Protocol):
    """Converts between torch tensors and the arrays of a memory, see `hpcgnn.sparse.Memory`."""

    @property
    def kernels(self) -> ModuleType:
        """The module of kernels; all such modules have the same functions."""

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor, without its autograd history."""

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array."""

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor with the dtype and device of another."""

    def ordered(self) -> AbstractContextManager[None]:
        """Return a context in which kernels run in the same order as torch's work."""


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[np.generic]:
    return np.dtype(str(dtype).removeprefix("torch.").replace("bfloat16", "uint16"))


_NOTHING = nullcontext()


class HostTensors:
    """NumPy arrays and torch's CPU tensors."""

    kernels = kernels

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor."""
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.dtype is torch.bfloat16:
            # NumPy has no bfloat16: kernels take its bits as uint16.
            tensor = tensor.view(torch.uint16)
        return tensor.numpy()

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array; uint16 rows are bfloat16."""
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor; NumPy requests huge pages, which fill faster."""
        return self.tensor(empty(tuple(shape), _numpy_dtype(like.dtype)))

    def ordered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the host works in order."""
        return _NOTHING


class DeviceTensors:
    """CuPy arrays and torch's CUDA tensors of one GPU."""

    kernels = cuda

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor."""
        return as_device_array(tensor)

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array."""
        return as_tensor(array)

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor."""
        return like.new_empty(tuple(shape))

    def ordered(self) -> AbstractContextManager[None]:
        """Return the context that runs CuPy on torch's stream.

        The stream is that of the calling thread, since torch differentiates in a thread of its own.
        """
        return shared_stream()


_MEMORIES: Mapping[str, TensorMemory] = {"cpu": HostTensors(), "cuda": DeviceTensors()}


def memory_of(tensor: Tensor) -> TensorMemory:
    """Return the memory that a tensor is in."""
    # `is_cpu` is faster than making the name of the device.
    return _MEMORIES["cpu" if tensor.is_cpu else tensor.device.type]


def in_order(matrix: Tensor) -> Tensor:
    """Return the matrix in C order, copied only if it is not; without history."""
    if not matrix.is_cpu or matrix.is_contiguous() or not matrix.t().is_contiguous():
        return matrix.contiguous()
    memory = memory_of(matrix)
    out = memory.empty(matrix, matrix.shape)
    # torch, which copies whole rows or columns, takes up to five times as long.
    kernels.transpose_rows(memory.array(matrix.t()), memory.array(out))
    return out
