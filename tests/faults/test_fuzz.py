"""Random damage and forgery, by seed: refused in one line or harmless; never a traceback."""

import json
import shutil
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from hpcgnn.config.file import describe_keys, load_config
from hpcgnn.errors import InputError
from tests.support import training
from tests.support.graph_files import convert_to

SIZES = [
    pytest.param(40),
    pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
]
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.0, -0.5, 1e38, 1e308),
    *(float("nan"), float("inf"), "", "x", "\x1b[2J", "é" * 300, [], [[]], [1, "a"], {}, {"a": 1}),
)


def generators(count: int) -> Iterator[np.random.Generator]:
    for seed in range(count):
        yield np.random.default_rng([20261122, seed])


def refused(error: Exception) -> None:
    """Check that an error is the user's, and one line."""
    assert isinstance(error, InputError), repr(error)
    assert str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("count", SIZES)
def test_configurations(tmp_path: Path, count: int) -> None:
    keys = [key for key, _, _ in describe_keys()]
    for rng in generators(20 * count):
        words = []
        for _ in range(rng.integers(1, 4)):
            value = VALUES[rng.integers(len(VALUES))]
            text = json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")
            words.append(f"{rng.choice(keys)}={text}")
        file = tmp_path / "c.toml"
        content = "".join(f"[{w.split('.')[0]}]\n{w.split('.', 1)[1]}\n" for w in words).encode()
        cut = int(rng.integers(len(content)))
        file.write_bytes(content[:cut] + bytes(rng.integers(0, 256, 2).tolist()) + content[cut:])
        for path, overrides in ((None, words), (file, ["graph.store=a", "run.dir=b"])):
            try:
                load_config(path, ["graph.store=a", "run.dir=b", *overrides])
            except Exception as error:
                refused(error)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.write_store(
        MPI.COMM_SELF, tmp_path_factory.mktemp("fuzz"), training.make_graph(), parts=2
    )


@pytest.fixture(scope="module")
def run(store: Path) -> Path:
    """A run that is stopped after two epochs."""
    path = store.parent / "run"
    config = training.make_config(store, path, "train.epochs=3")
    training.train(MPI.COMM_SELF, config, training.StopAfter(2))
    return path


def change_json(rng: np.random.Generator, value: Any) -> Any:
    """Return JSON with one random part replaced or removed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = list(value)[rng.integers(len(value))]
        if rng.random() < 0.15:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: change_json(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = int(rng.integers(len(value)))
        return [*value[:place], change_json(rng, value[place]), *value[place + 1 :]]
    return VALUES[rng.integers(len(VALUES))]


def change_tensors(rng: np.random.Generator, tensors: dict[str, torch.Tensor]) -> None:
    """Rename, drop, add, reshape or convert a tensor."""
    name = sorted(tensors)[rng.integers(len(tensors))] if tensors else "x"
    value = tensors.pop(name, torch.zeros(2))
    kind = rng.integers(5)
    if kind == 0:
        tensors[f"{name}x"] = value
    elif kind == 1:
        tensors[name] = torch.cat([value.reshape(-1), torch.zeros(1, dtype=value.dtype)])
    elif kind == 2:
        tensors[name] = value.to([torch.float64, torch.int32, torch.bfloat16][rng.integers(3)])
    elif kind == 3:
        tensors |= {name: value, "more": torch.zeros(3)}


def forge(rng: np.random.Generator, path: Path) -> None:
    """Change a checkpoint; its checksums are corrected, except in one case of four."""
    names = ("model", "optimizer", "best", "features")
    file = path / f"{names[rng.integers(4)]}.safetensors"
    state = json.loads((path / "state.json").read_text())
    right = rng.random() < 0.75
    if rng.random() < 0.5:
        tensors = load_file(file)
        change_tensors(rng, tensors)
        content = save(tensors)
        file.write_bytes(content)
        if right:
            state["crc32"][file.name] = zlib.crc32(content)
    else:
        changed = change_json(rng, state)
        state = changed if isinstance(changed, dict) else state
    if right:
        state.pop("state_crc32", None)
        state["state_crc32"] = zlib.crc32(json.dumps(state, sort_keys=True).encode())
    (path / "state.json").write_text(json.dumps(state))


@pytest.mark.parametrize("count", SIZES)
def test_checkpoints(tmp_path: Path, store: Path, run: Path, count: int) -> None:
    for number, rng in enumerate(generators(count)):
        copy = tmp_path / str(number)
        shutil.copytree(run, copy)
        (checkpoint,) = (copy / "checkpoints").iterdir()
        forge(rng, checkpoint)
        try:
            training.train(MPI.COMM_SELF, training.make_config(store, copy, "train.epochs=3"))
        except Exception as error:
            refused(error)
        shutil.rmtree(copy)


@pytest.mark.parametrize("count", SIZES)
def test_a_store_changed_in_place_never_trains(tmp_path: Path, store: Path, count: int) -> None:
    for rng in generators(count):
        copy = tmp_path / "g.h5"
        shutil.copyfile(store, copy)
        with h5py.File(copy, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            datasets = [file[name] for name in names if isinstance(file[name], h5py.Dataset)]
            chosen = datasets[rng.integers(len(datasets))]
            values = chosen[...]
            raw = values.view(np.uint8).reshape(-1)
            raw[rng.integers(len(raw))] ^= 1 << rng.integers(8)
            chosen[...] = values
        config = training.make_config(copy, tmp_path / "run", "train.epochs=1")
        with pytest.raises(InputError) as caught:
            training.train(MPI.COMM_SELF, config)
        refused(caught.value)


@pytest.mark.parametrize("count", SIZES)
def test_imports(tmp_path: Path, count: int) -> None:
    """Headers of arrays in .npz files with valid zips."""
    arrays = {
        "edge_index": np.array([[0, 1, 2], [1, 2, 0]]),
        "x": np.eye(3),
        "y": np.array([0, 1, 0]),
        "train_mask": np.array([True, False, False]),
    }
    source, out = tmp_path / "g.npz", tmp_path / "out.h5"
    for rng in generators(count):
        np.savez(source, **arrays)
        with zipfile.ZipFile(source) as archive:
            members = {name: bytearray(archive.read(name)) for name in archive.namelist()}
        content = members[list(members)[rng.integers(len(members))]]
        for _ in range(rng.integers(1, 4)):
            content[rng.integers(len(content))] = rng.integers(256)
        with zipfile.ZipFile(source, "w") as archive:
            for name, each in members.items():
                archive.writestr(name, bytes(each))
        try:
            convert_to(out, source, "npz")
        except Exception as error:
            refused(error)
