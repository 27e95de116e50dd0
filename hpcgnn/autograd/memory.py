"""Where tensors live, and the kernels that work there: of the host, or of a GPU.

A function of this package asks `memory_of` its operand and computes in that memory. Operators and
node ids that meet a tensor lie in the memory of the tensor.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.crossing import as_device_array, as_tensor, shared_stream
from hpcgnn.kernels import cuda
from hpcgnn.kernels.reuse import empty

__all__ = ["DeviceMemory", "HostMemory", "Memory", "memory_of"]


class Memory(Protocol):
    """Arrays and tensors over the same bytes, and kernels for them."""

    @property
    def kernels(self) -> ModuleType:
        """The kernels: modules with the same functions."""
        ...

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor, without its history."""
        ...

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array."""
        ...

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor of the dtype and the place of another."""
        ...

    def ordered(self) -> AbstractContextManager[None]:
        """Return the context in which kernels run in the order of torch's own work."""
        ...


class HostMemory:
    """NumPy's and torch's CPU tensors."""

    kernels = kernels

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor.

        Not collective.
        """
        return tensor.detach().numpy()

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array.

        Not collective.
        """
        return torch.from_numpy(array)

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor; numpy asks for huge pages, which fill faster.

        Not collective.
        """
        dtype = str(like.dtype).removeprefix("torch.")
        return torch.from_numpy(empty(tuple(shape), dtype))

    def ordered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the host works in order.

        Not collective.
        """
        return nullcontext()


class DeviceMemory:
    """CuPy's arrays and torch's CUDA tensors of one GPU."""

    kernels = cuda

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor.

        Not collective.
        """
        return as_device_array(tensor)

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array.

        Not collective.
        """
        return as_tensor(array)

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor.

        Not collective.
        """
        return like.new_empty(tuple(shape))

    def ordered(self) -> AbstractContextManager[None]:
        """Return the context that puts CuPy on torch's stream.

        Not collective.

        torch differentiates in a thread of its own: the stream is that of the thread that runs.
        """
        return shared_stream()


_MEMORIES: Mapping[str, Memory] = MappingProxyType({"cpu": HostMemory(), "cuda": DeviceMemory()})


def memory_of(tensor: Tensor) -> Memory:
    """Return the memory that a tensor lies in.

    Not collective.
    """
    return _MEMORIES[tensor.device.type]
