import sys
from types import SimpleNamespace

import pytest
import torch

from hpcgnn.config.file import load_config
from hpcgnn.config.training import TrainConfig
from hpcgnn.errors import InputError
from hpcgnn.graph.device import require_device


def stand_in(count: int) -> SimpleNamespace:
    runtime = SimpleNamespace(getDeviceCount=lambda: count, CUDARuntimeError=RuntimeError)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime), __version__="14.0.0")


def require(*overrides: str) -> None:
    require_device(load_config(None, ["graph.store=g.h5", "run.dir=run", *overrides]))


def test_the_cpu_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    require()


@pytest.mark.parametrize(
    ("cupy", "words"),
    [
        (None, "CuPy cannot be imported"),
        (stand_in(0), "no GPU can be used: the driver lists none"),
        (stand_in(1), "this build of torch finds no GPU"),
    ],
)
def test_cuda_is_never_silently_the_cpu(
    monkeypatch: pytest.MonkeyPatch, cupy: object, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=f"train.device = 'cuda': {words}"):
        require("train.device=cuda")


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="choose one of cpu, cuda"):
        TrainConfig(device="rocm")
