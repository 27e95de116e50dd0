import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcgnn.autograd import cupy_bridge
from hpcgnn.autograd.cupy_bridge import as_device_array, as_tensor, shared_stream
from tests.support.stand_in import StandIn

ADDRESS = 4711


@pytest.fixture
def streams(monkeypatch):
    """Put the stand-in in place of CuPy; return the addresses of the streams that it is given."""
    taken = []

    def from_external(stream):
        taken.append(stream.__cuda_stream__())
        return nullcontext()

    made = StandIn()
    made.cuda.current = 0
    made.cuda.get_current_stream = lambda: SimpleNamespace(ptr=made.cuda.current)
    made.cuda.Stream = SimpleNamespace(from_external=from_external)
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(cupy_bridge, "_stream_address", lambda: ADDRESS)
    return made.cuda, taken


def test_cupy_runs_on_the_stream_of_torch(streams):
    cuda, taken = streams
    with shared_stream():
        assert taken == [(0, ADDRESS)]
    cuda.current = ADDRESS
    with shared_stream():
        assert taken == [(0, ADDRESS)]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.bfloat16])
@pytest.mark.parametrize("columns", [4, 3])
def test_memory_is_shared_both_ways(dtype, columns):
    tensor = torch.arange(12).to(dtype).reshape(3, 4)[:, :columns]
    if tensor.is_floating_point():
        tensor.requires_grad_()
    array = as_device_array(tensor)
    assert array.shape == (3, columns)
    assert array.dtype == (np.uint16 if dtype == torch.bfloat16 else tensor.detach().numpy().dtype)
    back = as_tensor(array)
    assert back.dtype == dtype
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor.detach())
