"""A GPU for whole programs: the stand-in for CuPy, sharing its memory with torch's CPU tensors."""

import contextlib
import sys
from collections.abc import Iterator
from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from hpcgnn.autograd import cupy_bridge, memory
from hpcgnn.graph import device
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from tests.support.stand_in import Card, StandIn, compiler

__all__ = ["emulated_gpu", "some_gpu"]


@contextlib.contextmanager
def some_gpu() -> Iterator[StandIn | Card]:
    """Let ``cuda`` be a GPU if there is one, else the emulator, during the block."""
    try:
        require_gpu()
    except GpuUnavailableError:
        with emulated_gpu() as made:
            yield made
    else:
        yield Card()


@contextlib.contextmanager
def emulated_gpu() -> Iterator[StandIn]:
    """Let ``cuda`` be the emulator, with torch's CPU tensors on it, during the block."""
    if compiler() is None:
        pytest.skip("no C++ compiler: the kernels cannot be emulated")
    made = StandIn()
    stream = SimpleNamespace(
        cuda_stream=0,
        device_index=0,
        record_event=object,
        wait_event=lambda _: None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", made)
        patch.setitem(sys.modules, "cupyx", made)
        patch.setattr(torch.cuda, "current_stream", lambda: stream)
        patch.setattr(cupy_bridge, "_stream_address", lambda: 0)
        patch.setattr(torch.cuda, "Stream", lambda _: stream)
        patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "set_device", lambda _: None)
        patch.setattr(memory, "_MEMORIES", MappingProxyType({"cpu": memory.DeviceTensors()}))
        patch.setattr(device, "_place", lambda _: torch.device("cpu"))
        yield made
