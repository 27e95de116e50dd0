"""Tensors of torch and arrays of CuPy that share memory and stream on a GPU."""

import contextlib
from collections.abc import Iterator

import torch
from torch.utils.dlpack import from_dlpack

from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy


@contextlib.contextmanager
def shared_stream() -> Iterator[None]:
    """Let CuPy, and with it our kernels, run on torch's current stream.

    Work of both libraries is then ordered as it was issued, and nobody waits for anybody.
    """
    stream = torch.cuda.current_stream()
    with load_cupy().cuda.ExternalStream(stream.cuda_stream, stream.device_index):
        yield


@contextlib.contextmanager
def own_stream(place: torch.device) -> Iterator[torch.cuda.Stream]:
    """Let torch and CuPy work on a new stream of a GPU, in this thread, while the block runs."""
    torch.cuda.set_device(place)
    stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream), shared_stream():
        yield stream


def as_device_array(tensor: torch.Tensor) -> DeviceArray:
    """Return a CuPy array over the memory of a tensor, by DLPack; bfloat16 becomes uint16.

    The caller keeps the tensor alive until the work issued on the array is done.
    """
    flat = tensor.detach()
    return load_cupy().from_dlpack(
        flat.view(torch.uint16) if flat.dtype == torch.bfloat16 else flat
    )


def as_tensor(array: DeviceArray) -> torch.Tensor:
    """Return a tensor over the memory of a CuPy array, by DLPack; uint16 becomes bfloat16."""
    tensor: torch.Tensor = from_dlpack(array)
    return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
