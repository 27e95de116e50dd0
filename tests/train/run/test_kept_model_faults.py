"""A forged model file with a correct checksum: refused in one line before any use."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hpcgnn.errors import InputError
from hpcgnn.train.run.checkpoint import _checksum
from hpcgnn.train.run.saved_model import open_saved_model
from tests.support import training

Texts = dict[str, str]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    store = training.write_store(MPI.COMM_SELF, folder, training.make_graph(), parts=1)
    training.train(MPI.COMM_SELF, training.make_config(store, folder / "run", "train.epochs=1"))
    return folder / "run" / "model.safetensors"


def long_seed(texts: Texts, _: Tensors) -> None:
    state = json.loads(texts["state"])
    texts["state"] = json.dumps({**state, "seed": 10**400})


def no_number(_: Texts, tensors: Tensors) -> None:
    name = next(iter(tensors))
    tensors[name] = torch.full_like(tensors[name], torch.nan)


def very_wide(texts: Texts, _: Tensors) -> None:
    texts["config"] = re.sub(r"\bhidden = \d+", "hidden = 2147483648", texts["config"])
    assert "2147483648" in texts["config"]


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (long_seed, "seed does not fit 64 bits"),
        (no_number, r"its weights \S+ are not all finite numbers"),
        (very_wide, "says model.hidden = 2147483648, and no weights are wider than"),
    ],
)
def test_forged_models_are_one_line(
    model: Path, tmp_path: Path, forge: Callable[[Texts, Tensors], None], message: str
) -> None:
    with safe_open(model, "pt") as file:
        texts = {name: file.metadata()[name] for name in ("config", "state")}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    forge(texts, tensors)
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, {**texts, "crc32": str(_checksum(texts, tensors))})
    with pytest.raises(InputError, match=message):
        open_saved_model(path)
