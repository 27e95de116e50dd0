import sys
from types import SimpleNamespace

import pytest

from hpcgnn.kernels import cuda
from hpcgnn.kernels.cuda.device import load_cupy


def test_without_cupy_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    for call in (load_cupy, cuda.require_gpu):
        with pytest.raises(
            cuda.GpuUnavailableError, match=r"CuPy cannot be imported.*hpcgnn\[gpu\]"
        ):
            call()


def runtime(count, version="14.0.0"):
    class CUDARuntimeError(RuntimeError):
        pass

    def device_count():
        if count is None:
            raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return count

    found = SimpleNamespace(getDeviceCount=device_count, CUDARuntimeError=CUDARuntimeError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=found), __version__=version)


@pytest.mark.parametrize(("count", "words"), [(None, "cudaErrorNoDevice"), (0, "lists none")])
def test_without_a_gpu_one_line_says_so(monkeypatch, count, words):
    monkeypatch.setitem(sys.modules, "cupy", runtime(count))
    with pytest.raises(cuda.GpuUnavailableError, match=f"no GPU can be used: .*{words}"):
        cuda.require_gpu()


def test_with_a_gpu_nothing_happens(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", runtime(1))
    cuda.require_gpu()


def test_an_old_cupy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", runtime(1, "13.6.0"))
    with pytest.raises(cuda.GpuUnavailableError, match=r"CuPy 13\.6\.0 is too old"):
        cuda.require_gpu()
