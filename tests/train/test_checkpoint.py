"""Checkpoints: whole or absent, refused when damaged or of another run."""

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pytest
import torch

from hpcgnn.comm import CollectiveInputError
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.train.checkpoint import (
    Checkpoint,
    checkpoint_paths,
    read_checkpoint,
    read_state,
    write_checkpoint,
)
from tests.train.support import StopAfter, assert_same, make_config, make_graph, train, write_store


def some_checkpoint(epoch: int) -> Checkpoint:
    weights = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(epoch)}
    state = {"seed": 3, "epoch": epoch, "value": 0.1 + 0.2, "nothing": None, "list": [1, {"a": 2}]}
    return Checkpoint(state, weights, {}, {"a": weights["a"].T}, {})


def test_round_trip(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, some_checkpoint(7))
    assert path.name == "seed3-epoch000007"
    found = read_checkpoint(path)
    written = some_checkpoint(7)
    assert {key: found.state[key] for key in written.state} == written.state
    assert found.model.keys() == written.model.keys()
    assert torch.equal(found.model["a"], written.model["a"])
    assert torch.equal(found.best["a"], written.best["a"])
    assert found.optimizer == found.features == {}
    # The same epoch again replaces it.
    write_checkpoint(tmp_path, some_checkpoint(7))
    write_checkpoint(tmp_path, some_checkpoint(12))
    (tmp_path / "seed3-epoch000013").mkdir()
    (tmp_path / ".seed3-epoch000014.partial-1").mkdir()
    assert [epoch for _, epoch, _ in checkpoint_paths(tmp_path)] == [7, 12]
    assert checkpoint_paths(tmp_path / "none") == []


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, some_checkpoint(7))
    before = read_state(path)
    for file in path.iterdir():
        good = file.read_bytes()
        for place in range(len(good)):
            file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            try:
                state = read_checkpoint(path).state
            except StorageFormatError as error:
                assert file.name in str(error) or "format version" in str(error)  # noqa: PT017
            else:
                # White space of JSON, or the last digit of a number that rounds to the same.
                assert file.name == "state.json"
                assert state == before
        file.write_bytes(good)
    assert read_state(path)["epoch"] == 7


def edit_state(**changes: Any) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        (path / "state.json").write_text(json.dumps({**state, **changes}))

    return edit


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (
        lambda path: (path / "model.safetensors").write_bytes(b"12345"),
        r"model.safetensors is damaged \(it does not match its checksum\); remove that directory",
    ),
    "missing": (
        lambda path: (path / "optimizer.safetensors").unlink(),
        r"optimizer.safetensors: No such file or directory; remove that directory to resume",
    ),
    "not JSON": (
        lambda path: (path / "state.json").write_text('{"seed": 1,'),
        r"state.json is damaged \(Expecting",
    ),
    "a list": (lambda path: (path / "state.json").write_text("[]"), r"state.json is damaged"),
    "edited": (edit_state(epoch=3), r"state.json is damaged \(it does not match its checksum"),
    "later version": (edit_state(format_version=9), r"has format version 9, this program reads 1"),
}

CHANGES = {
    "model.hidden=6": r"model.hidden = 6, but the run in .* has 5: set it back, use another",
    "train.learning_rate=0.1": r"train.learning_rate = 0.1, but the run in .* has 0.01",
    "train.epochs=5": r"train.epochs = 5, but the run in .* has 8",
    "train.seeds=[2]": r"has seed 1, which is not in train.seeds",
    "train.seeds=[2, 1]": r"train.seeds = \(2, 1\), but the run in",
    "train.schedule=cosine": r"train.schedule = 'cosine', but the run in .* has 'constant'",
    "graph.undirected=true": r"graph.undirected = True, but the run in",
}


def test_resume_refuses_damage_and_changes(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    settings = ("train.epochs=8",)
    run = train(comm, make_config(store, comm_tmp_path / "run", *settings), StopAfter(5))
    comm.Barrier()

    def refuse(path: Path, message: str, *changes: str) -> None:
        with pytest.raises(CollectiveInputError, match=message) as caught:
            train(comm, make_config(store, path, *settings, *changes))
        assert "\n" not in str(caught.value)
        assert len(set(comm.allgather(str(caught.value)))) == 1

    for name, (spoil, message) in FAULTS.items():
        copy = comm_tmp_path / name
        if comm.rank == 0:
            shutil.copytree(run.path, copy)
            spoil(copy / "checkpoints" / "seed1-epoch000005")
        comm.Barrier()
        refuse(copy, message)
    for change, message in CHANGES.items():
        refuse(run.path, message, change)
    other = write_store(comm, comm_tmp_path, make_graph(seed=4), method="block")
    refuse(run.path, "was trained on another store", f"graph.store={other}")
    refuse(comm_tmp_path / "empty", "run.resume=must, but .* has no checkpoint", "run.resume=must")
    if comm.rank == 0:
        (run.path / "config.toml").rename(run.path / "other.toml")
    comm.Barrier()
    refuse(run.path, "has checkpoints but no config.toml; use another run.dir")


def test_where_and_how_it_runs_may_change(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    path = comm_tmp_path / "run"
    train(comm, make_config(store, path, "train.epochs=4"), StopAfter(2))
    moved = comm_tmp_path / "moved.h5"
    if comm.rank == 0:
        store.rename(moved)
    comm.Barrier()
    settings = ("exchange.method=oblivious", "trace.enabled=true", "run.checkpoint_every=1")
    run = train(comm, make_config(moved, path, "train.epochs=6", *settings))
    assert len(run.metrics) == 6
    more = train(comm, make_config(moved, path, "train.epochs=6", "train.seeds=[1, 4]"))
    assert [seed["seed"] for seed in more.summary["seeds"]] == [1, 4]
    assert len(more.metrics) == 12


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Make writes beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_last_checkpoint(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    settings = ("model.hidden=4000", "model.num_layers=2", "run.checkpoint_every=1")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", "train.epochs=3", *settings))
    path = comm_tmp_path / "full"
    train(comm, make_config(store, path, "train.epochs=3", *settings), StopAfter(1))
    config = make_config(store, path, "train.epochs=3", *settings)
    # Output that the suite captures stays far below this; a checkpoint does not.
    with (
        largest_file(100_000),
        pytest.raises(
            CollectiveInputError, match=r"checkpoint .*epoch000002: File too large; free"
        ),
    ):
        train(comm, config)
    comm.Barrier()
    assert [each.name for each in (path / "checkpoints").iterdir()] == ["seed1-epoch000001"]
    assert_same(train(comm, config), whole)


def test_unwritable_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match=r"checkpoint .*seed3-epoch000007: Not a directory; free"):
        write_checkpoint(tmp_path / "checkpoints", some_checkpoint(7))
