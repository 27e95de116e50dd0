"""Share memory and streams between torch tensors and CuPy arrays on a GPU."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy

_DTYPES = {
    dtype: np.dtype(str(dtype).removeprefix("torch.").replace("bfloat16", "uint16"))
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.uint16, torch.uint8, torch.bool),
    )
}


@contextlib.contextmanager
def shared_stream() -> Iterator[None]:
    """Run CuPy, and with it our kernels, on torch's current stream.

    The work of both libraries then runs in the order of issue, without synchronisation.
    """
    cuda, address = load_cupy().cuda, _stream_address()
    if cuda.get_current_stream().ptr == address:
        yield
        return
    with cuda.Stream.from_external(_Stream(address)):
        yield


def _stream_address() -> int:
    """Return the address of torch's current stream, without creating torch's stream object."""
    return int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))


@dataclass(frozen=True)
class _Stream:
    """A stream in the protocol that CuPy reads; torch's own streams have it since version 2.9."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


@contextlib.contextmanager
def own_stream(place: torch.device) -> Iterator[torch.cuda.Stream]:
    """Run torch and CuPy on a new stream of a GPU, in this thread, inside the block."""
    torch.cuda.set_device(place)
    stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream), shared_stream():
        yield stream


def as_device_array(tensor: torch.Tensor) -> DeviceArray:
    """Return a CuPy array over the memory of a tensor, kept alive by it; bfloat16 becomes uint16.

    It does not use DLPack, whose exchange of streams takes several times as long as a launch.
    """
    cupy, dtype = load_cupy(), _DTYPES[tensor.dtype]
    shape, strides, size = tuple(tensor.shape), None, tensor.nbytes
    if not tensor.is_contiguous():
        strides = tuple(dtype.itemsize * count for count in tensor.stride())
        size = tensor.untyped_storage().nbytes()
    memory = cupy.cuda.UnownedMemory(tensor.data_ptr(), size, tensor, tensor.get_device())
    return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)


def as_tensor(array: DeviceArray) -> torch.Tensor:
    """Return a tensor over the memory of a CuPy array, by DLPack; uint16 becomes bfloat16."""
    tensor: torch.Tensor = from_dlpack(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
