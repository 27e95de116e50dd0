"""Where tensors live, and the kernels that work there: of the host, or of a GPU.

A function of this package asks `memory_of` its operand and computes in that memory. Operators and
node ids that meet a tensor lie in the memory of the tensor.
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
from hpcgnn.autograd.crossing import as_device_array, as_tensor, shared_stream
from hpcgnn.kernels import cuda
from hpcgnn.kernels.reuse import empty


class TensorMemory(Protocol):
    """What torch needs of a memory beside `hpcgnn.sparse.Memory`: tensors over its arrays."""

    @property
    def kernels(self) -> ModuleType:
        """The kernels: modules with the same functions."""

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor, without its history."""

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array."""

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor of the dtype and the place of another."""

    def ordered(self) -> AbstractContextManager[None]:
        """Return the context in which kernels run in the order of torch's own work."""


@cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype[np.generic]:
    return np.dtype(str(dtype).removeprefix("torch.").replace("bfloat16", "uint16"))


_NOTHING = nullcontext()


class HostTensors:
    """NumPy's and torch's CPU tensors."""

    kernels = kernels

    def array(self, tensor: Tensor) -> Any:
        """Return an array over the bytes of a tensor."""
        flat = tensor.detach() if tensor.requires_grad else tensor
        # NumPy has no bfloat16: kernels take its bits.
        return (flat.view(torch.uint16) if flat.dtype == torch.bfloat16 else flat).numpy()

    def tensor(self, array: Any) -> Tensor:
        """Return a tensor over the bytes of an array; uint16 rows are bfloat16."""
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor

    def empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor; numpy asks for huge pages, which fill faster."""
        return self.tensor(empty(tuple(shape), _numpy_dtype(like.dtype)))

    def ordered(self) -> AbstractContextManager[None]:
        """Return a context that does nothing: the host works in order."""
        return _NOTHING


class DeviceTensors:
    """CuPy's arrays and torch's CUDA tensors of one GPU."""

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
        """Return the context that puts CuPy on torch's stream.

        torch differentiates in a thread of its own: the stream is that of the thread that runs.
        """
        return shared_stream()


_MEMORIES: Mapping[str, TensorMemory] = {"cpu": HostTensors(), "cuda": DeviceTensors()}


def memory_of(tensor: Tensor) -> TensorMemory:
    """Return the memory that a tensor lies in."""
    # torch takes longer to make the name of a device than to tell that it is the host.
    return _MEMORIES["cpu" if tensor.is_cpu else tensor.device.type]
