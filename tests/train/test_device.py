import sys
from types import SimpleNamespace

import pytest

from hpcgnn.errors import InputError
from hpcgnn.train.config import TrainConfig
from hpcgnn.train.device import require_device


def stand_in(count: int) -> SimpleNamespace:
    runtime = SimpleNamespace(getDeviceCount=lambda: count, CUDARuntimeError=RuntimeError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


def test_the_cpu_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    require_device("cpu")


@pytest.mark.parametrize(
    ("cupy", "words"),
    [
        (None, "CuPy cannot be imported"),
        (stand_in(0), "no GPU can be used: the driver lists none"),
        (stand_in(1), "training runs on the CPU only"),
    ],
)
def test_cuda_is_never_silently_the_cpu(
    monkeypatch: pytest.MonkeyPatch, cupy: object, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(InputError, match=f"train.device = 'cuda': {words}"):
        require_device("cuda")


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="choose one of cpu, cuda"):
        TrainConfig(device="rocm")
