"""The output of inspect for run directories and checkpoints, intact and damaged."""

import json
import os
import shutil
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.inspect import inspect_path

COMMAND = find_command("inspect")


def make_checkpoint(directory: Path, epoch: int) -> Path:
    path = directory / f"seed1-epoch{epoch:06d}"
    path.mkdir(parents=True)
    content = save({"layer.weight": np.ones((3, 2), np.float32), "bias": np.zeros(2)})
    (path / "model.safetensors").write_bytes(content)
    crcs = {"model.safetensors": zlib.crc32(content)}
    state = {"format_version": 1, "seed": 1, "epoch": epoch, "crc32": crcs}
    (path / "state.json").write_text(json.dumps(state))
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path, 12)


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    for epoch in (10, 5):
        make_checkpoint(path / "checkpoints", epoch)
    (path / "checkpoints" / ".seed1-epoch000011.partial-77").mkdir()
    (path / "config.toml").write_text('[train]\nepochs = 3\n[graph]\nstore = "a.h5"\n')
    lines = [json.dumps({"seed": 1, "epoch": epoch, "train_loss": 0.5}) for epoch in range(3)]
    (path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"seed": 1, "ep')
    seeds = [{"seed": 1, "test": 0.5, "curve": [1]}, {"seed": 2, "test": 0.75}]
    summary = {"name": "a", "mean": {"test": 0.7}, "seeds": seeds}
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "trace").mkdir()
    (path / "trace" / "rank00000.jsonl").touch()
    return path


def test_checkpoint(checkpoint: Path) -> None:
    found = inspect_path(checkpoint, verify=True)
    json.dumps(found)
    assert (found["kind"], found["verified"], found["state"]["epoch"]) == ("checkpoint", True, 12)
    (file,) = found["files"]
    assert (file["name"], file["numbers"]) == ("model.safetensors", 8)
    assert file["tensors"] == [
        {"name": "bias", "shape": [2], "dtype": "F64"},
        {"name": "layer.weight", "shape": [3, 2], "dtype": "F32"},
    ]


def test_run(run_directory: Path) -> None:
    found = inspect_path(run_directory, verify=True)
    json.dumps(found)
    assert found["kind"] == "run"
    assert found["config"] == {"train": {"epochs": 3}, "graph": {"store": "a.h5"}}
    assert found["summary"]["mean"] == {"test": 0.7}
    assert (found["epochs"], found["last_epoch"]["epoch"]) == (3, 2)
    assert found["checkpoints"] == ["seed1-epoch000005", "seed1-epoch000010"]
    assert (found["traces"], found["predictions"]) == (1, False)


def test_run_that_has_only_begun(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    found = inspect_path(tmp_path)
    assert (found["config"], found["summary"], found["last_epoch"]) == (None, None, None)
    assert (found["epochs"], found["checkpoints"]) == (0, [])


def test_other_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a directory without state\.json"):
        inspect_path(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "verify"),
    [
        ("state.json", b"{", False),
        ("state.json", b"[1]", False),
        ("state.json", b"\xff\xfe", False),
        ("state.json", b"{}", True),
        ("state.json", b'{"crc32": {"other.safetensors": 1}}', True),
        ("state.json", b'{"crc32": {"../../other.safetensors": 1}}', True),
        ("state.json", b'{"crc32": {"/dev/zero": 1}}', True),
        ("state.json", b"[" * 100_000, True),
        ("model.safetensors", b"", False),
        ("model.safetensors", b"\xff" * 40, False),
        ("model.safetensors", b"12345678", True),
    ],
)
def test_damaged_checkpoint(name: str, content: bytes, verify: bool, checkpoint: Path) -> None:
    (checkpoint / name).write_bytes(content)
    with pytest.raises(StorageFormatError) as caught:
        inspect_path(checkpoint, verify=verify)
    text = str(caught.value)
    assert text.startswith(str(checkpoint))
    assert "; restore it" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "[train"),
        ("summary.json", "{"),
        ("metrics.jsonl", "{\n{}\n"),
    ],
)
def test_damaged_run(name: str, content: str, run_directory: Path) -> None:
    (run_directory / name).write_text(content)
    with pytest.raises(StorageFormatError, match=f"{name}: cannot be read"):
        inspect_path(run_directory)


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "metrics.jsonl"])
def test_pipes_and_devices_are_not_read(name: str, run_directory: Path) -> None:
    file = run_directory / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StorageFormatError, match=f"{name}: is a pipe or a device"):
        inspect_path(run_directory)
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(StorageFormatError, match=f"{name}: is a pipe or a device"):
        inspect_path(run_directory)


def test_verify_reaches_the_checkpoints_of_a_run(run_directory: Path) -> None:
    file = run_directory / "checkpoints" / "seed1-epoch000005" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    inspect_path(run_directory)
    with pytest.raises(StorageFormatError, match="does not match its checksum"):
        inspect_path(run_directory, verify=True)


def test_tables(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = run_directory / "checkpoints" / "seed1-epoch000005"
    stopped = run_directory.parent / "stopped"
    shutil.copytree(run_directory, stopped)
    (stopped / "summary.json").unlink()
    (stopped / "sessions.json").write_text(json.dumps([{"ranks": 2}, {"ranks": 3}]))
    again = f"next: mpiexec -n 3 hpcgnn train {stopped}/config.toml"
    cases: list[tuple[Path, list[Any]]] = [
        (stopped, ["train.epochs", "last epoch", again]),
        (run_directory, ["train.epochs", "seed 2", "75.00 %", "traces"]),
        (checkpoint, ["epoch", "8 numbers", "layer.weight", "F64"]),
    ]
    for path, words in cases:
        monkeypatch.setattr(sys, "argv", ["inspect", str(path)])
        COMMAND.call()
        output = "".join(capsys.readouterr())
        for word in words:
            assert word in output


def test_seeds_of_several_splits_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [{"seed": 1, "split": name, "test": 0.5} for name in "ab"]
    splits = [{"name": name} for name in "ab"]
    summary = {"name": "g", "mean": {"test": 0.5}, "seeds": seeds, "splits": splits}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert COMMAND.call([str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert all(f"split {name} seed 1" in shown.out for name in "ab")
    assert f"analyse report {tmp_path}/split-a {tmp_path}/split-b" in shown.out + shown.err
