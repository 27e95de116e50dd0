"""A configuration for a store: it loads, explains its keys, and matches the store."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.config.command_line import COMMON
from hpcgnn.config.config import Config
from hpcgnn.config.file import describe_keys, load_config
from hpcgnn.errors import InputError
from hpcgnn.storage import EdgeData, GraphArrays, SeriesArrays, store_from_arrays
from hpcgnn.train import init_config

COMMAND = find_command("init")

N = 30
RNG = np.random.default_rng(1)
EDGES = tuple(RNG.integers(0, N, (2, 90)))
LABELS = np.arange(N) % 4
FLAT = RNG.random((N, 3), dtype=np.float32)
STEEP = FLAT * np.array([1, 10, 1e4], np.float32)
YEARS = FLAT + np.array([0, 2000, 0], np.float32)
WORDS = (FLAT < [0.5, 0.9, 1 / N]).astype(np.float32)
TYPED = {
    "features": None,
    "types": [0, 1] * (N // 2),
    "type_features": {"a": None, "b": YEARS[::2]},
}
FLOWS = {"series": SeriesArrays([0.0, 1], [0, 2], {}, {"q": np.ones((2, 90, 1))})}
AMOUNTS = RNG.normal(5e4, 1, (90, 1))
PAID = {
    "labels": None,
    "edge_data": {"": EdgeData(AMOUNTS, labels=np.zeros((90, 1), np.int32))},
    "edge_labels": ("fair",),
}
SPLIT = np.arange(N, dtype=np.uint8) % 3 + 1


def write(path: Path, **more: Any) -> Path:
    contents = {"edges": {"": EDGES}, "labels": LABELS, "features": FLAT, "split": SPLIT, **more}
    contents = {key: value for key, value in contents.items() if value is not None}
    store_from_arrays(path, GraphArrays(name="g", num_nodes=N, **contents))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["hpcgnn init", *map(str, words)])
    COMMAND.call()


def made(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **more: Any) -> Config:
    out = folder / "mine.toml"
    run(monkeypatch, write(folder / "g.h5", **more), "-o", out, *words)
    return load_config(out)


def test_keys_that_matter_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, monkeypatch, features=STEEP)
    named = re.findall(r"^(?:# )?(\w+) = ", (tmp_path / "mine.toml").read_text(), re.MULTILINE)
    set_here = {"graph.undirected", "graph.normalize_features"}
    assert sorted(named) == sorted(key.partition(".")[2] for key in {*COMMON, *set_here})


def test_all_keys_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(tmp_path, monkeypatch, "--all")
    text = (tmp_path / "mine.toml").read_text()
    assert max(map(len, text.splitlines())) <= 100 or str(tmp_path) in text
    flowing = " ".join(line.removeprefix("# ") for line in text.splitlines())
    for key, _, meaning in describe_keys():
        assert re.search(rf"^(# )?{key.partition('.')[2]} = ", text, re.MULTILINE), key
        assert meaning in flowing
    assert config.graph.store == str(tmp_path / "g.h5")
    assert config.graph.undirected
    assert config.run.dir == "runs/g"


def test_every_default_may_be_uncommented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = made(tmp_path, monkeypatch, "--all")
    out = tmp_path / "mine.toml"
    out.write_text(re.sub(r"^# (\w+ = )", r"\1", out.read_text(), flags=re.MULTILINE))
    assert load_config(out) == config


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ({}, "graph.normalize_features", "none"),
        ({"features": STEEP}, "graph.normalize_features", "standard"),
        ({"features": YEARS}, "graph.normalize_features", "standard"),
        ({"features": YEARS[:, 1:2]}, "graph.normalize_features", "standard"),
        ({"features": WORDS}, "graph.normalize_features", "none"),
        (TYPED, "graph.normalize_features", "standard"),
        (PAID, "train.task", "edges"),
        (PAID, "graph.normalize_edge_features", "standard"),
        ({}, "model.name", "sage"),
        ({"edges": {"a": EDGES, "b": EDGES}}, "model.name", "rgcn"),
        ({"edges": {f"r{i}": EDGES for i in range(8)}}, "model.num_bases", 0),
        ({"edges": {f"r{i}": EDGES for i in range(9)}}, "model.num_bases", 8),
        ({}, "train.task", "full"),
        ({"labels": None, "split": None}, "train.task", "links"),
        (FLOWS, "fields.edge_targets", ("q",)),
        (FLOWS, "graph.undirected", False),
    ],
)
def test_suits_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], key: str, value: object
) -> None:
    section, _, name = key.partition(".")
    assert getattr(getattr(made(tmp_path, monkeypatch, **more), section), name) == value


def test_says_what_is_to_be_done_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path, monkeypatch, split=None)
    told = capsys.readouterr().err
    assert "has no split: hpcgnn split" in told
    assert "is in one part, for one rank" in told
    assert f"hpcgnn train {tmp_path / 'mine.toml'}" in told


def test_keeps_a_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "mine.toml"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        run(monkeypatch, write(tmp_path / "g.h5"), "-o", out)
    assert out.read_text() == "mine"


def test_leaves_no_part_of_a_file_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, limits = write(tmp_path / "g.h5"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(InputError, match="cannot be written"):
            run(monkeypatch, store, "-o", tmp_path / "mine.toml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "mine.toml").exists()


def test_jobs_are_written_for_this_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(monkeypatch, "--jobs")
    code = (
        '. jobs/env.sh && use_environment && echo "$HPCGNN_ROOT $HPCGNN_VENV" && command -v python'
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    words = ["bash", "-euc", code]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == [str(tmp_path), sys.prefix, f"{sys.prefix}/bin/python"], (
        done.stderr
    )
    assert "hidden = 128" in (tmp_path / "jobs" / "configs" / "quickstart.toml").read_text()
    with pytest.raises(InputError, match="jobs: exists already"):
        run(monkeypatch, "--jobs")
    monkeypatch.setattr(init_config.shutil, "copytree", full)
    shutil.rmtree("jobs")
    with pytest.raises(InputError, match=r"jobs: cannot be written .*No space left"):
        run(monkeypatch, "--jobs")
    assert not Path("jobs").exists()


def full(source: Path, target: Path, **_: Any) -> None:
    """A disk that is full once the first file has been begun."""
    target.mkdir()
    fault = OSError(28, "No space left on device")
    raise shutil.Error([(str(source / "env.sh"), str(target / "env.sh"), str(fault))])


@pytest.mark.parametrize("words", [[], ["g.h5", "--jobs"]])
def test_a_store_or_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, *words)
    [line] = capsys.readouterr().err.splitlines()
    assert "STORE" in line
    assert "--jobs" in line
