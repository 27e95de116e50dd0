import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcgnn.autograd.crossing import as_device_array, as_tensor, shared_stream


@pytest.fixture
def streams(monkeypatch):
    """Put NumPy, which speaks DLPack too, in CuPy's place; return the streams that it is given."""
    taken = []

    def external(handle, device):
        taken.append((handle, device))
        return nullcontext()

    stand_in = SimpleNamespace(
        cuda=SimpleNamespace(ExternalStream=external), from_dlpack=np.from_dlpack
    )
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    stream = SimpleNamespace(cuda_stream=4711, device_index=1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return taken


def test_cupy_runs_on_the_stream_of_torch(streams):
    with shared_stream():
        assert streams == [(4711, 1)]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
def test_memory_is_shared_both_ways(dtype):
    tensor = torch.arange(12).to(dtype).reshape(3, 4)
    if tensor.is_floating_point():
        tensor.requires_grad_()
    array = as_device_array(tensor)
    assert array.shape == (3, 4)
    assert array.dtype == (np.uint16 if dtype == torch.bfloat16 else tensor.detach().numpy().dtype)
    back = as_tensor(array)
    assert back.dtype == dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor.detach())
