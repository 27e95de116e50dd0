"""Checkpoints: complete or absent, refused if damaged or of another run."""

import itertools
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pytest
import torch
from safetensors.torch import load_file, save

from hpcgnn.comm import CollectiveInputError
from hpcgnn.config.config import RunConfig
from hpcgnn.errors import InputError, StorageFormatError
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    CheckpointPace,
    checkpoint_paths,
    read_checkpoint,
    read_state,
    write_checkpoint,
    write_kept_model,
)
from tests.support import training
from tests.support.full_disk import largest_file


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
    # Another checkpoint of the same epoch replaces it.
    write_checkpoint(tmp_path, some_checkpoint(7))
    write_checkpoint(tmp_path, some_checkpoint(12))
    (tmp_path / "seed3-epoch000013").mkdir()
    (tmp_path / ".seed3-epoch000014.partial-1").mkdir()
    assert [epoch for _, epoch, _ in checkpoint_paths(tmp_path)] == [7, 12]
    assert checkpoint_paths(tmp_path / "none") == []


def test_the_kept_model_needs_a_checkpoint_of_its_seed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, some_checkpoint(7))
    config = training.make_config(tmp_path / "store.h5", tmp_path / "run")
    with pytest.raises(InputError, match="has no checkpoint of seed 4, the best by validation; "):
        write_kept_model(tmp_path / "model.safetensors", tmp_path, config, 4)


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
                # JSON white space, or the last digit of a number that is rounded to the same value.
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


def forge_state(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change a checkpoint's state and give it the right checksum, as another program might."""

    def forge(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        state.pop("state_crc32")
        change(state)
        state["state_crc32"] = zlib.crc32(json.dumps(state, sort_keys=True).encode())
        (path / "state.json").write_text(json.dumps(state))

    return forge


def forge_tensors(
    file: str, change: Callable[[dict[str, torch.Tensor]], Any]
) -> Callable[[Path], None]:
    """Change the tensors of a checkpoint's file and give it the right checksums."""

    def forge(path: Path) -> None:
        tensors = load_file(path / file)
        content = save(change(tensors) or tensors)
        (path / file).write_bytes(content)
        forge_state(lambda state: state["crc32"].update({file: zlib.crc32(content)}))(path)

    return forge


def rename_first(tensors: dict[str, torch.Tensor]) -> None:
    name = min(tensors)
    tensors["other"] = tensors.pop(name)


def not_safetensors(path: Path) -> None:
    (path / "model.safetensors").write_bytes(b"nonsense")
    forge_state(
        lambda state: state["crc32"].update({"model.safetensors": zlib.crc32(b"nonsense")})
    )(path)


def as_double(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.double() for name, value in tensors.items()}


def wider(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([value, value], -1) for name, value in tensors.items() if value.ndim}


def without_a_moment(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(name for name in sorted(tensors) if name.endswith("/exp_avg"))]


FORGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nonsense": (not_safetensors, r"model.safetensors is damaged \("),
    "renamed weights": (forge_tensors("model.safetensors", rename_first), r"model\S+ has no \S+:"),
    "renamed best": (forge_tensors("best.safetensors", rename_first), r"best\S+ has no \S+:"),
    "other type": (forge_tensors("model.safetensors", as_double), r"is torch.float64 \(.*, not "),
    "other shape": (forge_tensors("model.safetensors", wider), r"is torch.float32 \(.*, not "),
    "other moments": (forge_tensors("optimizer.safetensors", wider), r"optimizer.safetensors "),
    "half moments": (
        forge_tensors("optimizer.safetensors", without_a_moment),
        r"has no \S+exp_avg",
    ),
    "alien moments": (
        forge_tensors("optimizer.safetensors", rename_first),
        r"optimizer.safetensors",
    ),
    "no epoch": (
        forge_state(lambda state: state.pop("epoch")),
        r"state.json is damaged \(it has no",
    ),
    "epoch of text": (forge_state(lambda state: state.update(epoch="5")), r"epoch is a str\)"),
    "epoch below 0": (forge_state(lambda state: state.update(epoch=-1)), r"epoch is below 0\)"),
    "kept nothing": (forge_state(lambda state: state.update(kept=None)), r"kept is a NoneType\)"),
    "kept a list": (
        forge_state(lambda state: state["kept"].update(metrics=[])),
        r"metrics is a list",
    ),
    "metric of text": (
        forge_state(lambda state: state["kept"]["metrics"].update(valid_accuracy="1")),
        r"kept.metrics.valid_accuracy is a str\)",
    ),
    "a table for a threshold": (
        forge_state(lambda state: state["kept"]["metrics"].update(valid_threshold={})),
        r"kept.metrics.valid_threshold is a dict\)",
    ),
    "no number of labels": (
        forge_state(lambda state: state["kept"]["metrics"].update(valid_top=None)),
        r"kept.metrics.valid_top is a NoneType\)",
    ),
    "results of text": (
        forge_state(lambda state: state.update(finished_seeds=["1"])),
        r"finished_seeds is a str, not an object",
    ),
    "no graph": (forge_state(lambda state: state.update(graph={})), r"it has no graph.fingerprint"),
    "brackets": (
        lambda path: (path / "state.json").write_text("[" * 100_000),
        r"state.json is damaged \(",
    ),
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
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    settings = ("train.epochs=8",)
    run = training.train(
        comm, training.make_config(store, comm_tmp_path / "run", *settings), training.StopAfter(5)
    )
    comm.Barrier()

    def refuse(path: Path, message: str, *changes: str) -> None:
        with pytest.raises(CollectiveInputError, match=message) as caught:
            training.train(comm, training.make_config(store, path, *settings, *changes))
        assert "\n" not in str(caught.value)
        assert len(set(comm.allgather(str(caught.value)))) == 1

    # Several ranks agree on each of the two kinds in one place.
    every = 1 if comm.size == 1 else 5
    for name, (spoil, message) in [*FAULTS.items(), *FORGED.items()][::every]:
        copy = comm_tmp_path / name
        if comm.rank == 0:
            shutil.copytree(run.path, copy)
            spoil(copy / "checkpoints" / "seed1-epoch000005")
        comm.Barrier()
        refuse(copy, message)
    for change, message in CHANGES.items():
        refuse(run.path, message, change)
    other = training.write_store(comm, comm_tmp_path, training.make_graph(seed=4), method="block")
    refuse(run.path, "was trained on another store", f"graph.store={other}")
    refuse(comm_tmp_path / "empty", "run.resume=must, but .* has no checkpoint", "run.resume=must")
    if comm.rank == 0:
        (run.path / "config.toml").rename(run.path / "other.toml")
    comm.Barrier()
    refuse(run.path, "has checkpoints but no config.toml; use another run.dir")


def test_where_and_how_it_runs_may_change(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    path = comm_tmp_path / "run"
    training.train(comm, training.make_config(store, path, "train.epochs=4"), training.StopAfter(2))
    moved = comm_tmp_path / "moved.h5"
    if comm.rank == 0:
        store.rename(moved)
    comm.Barrier()
    settings = ("exchange.method=oblivious", "trace.enabled=true", "run.checkpoint_every=1")
    run = training.train(comm, training.make_config(moved, path, "train.epochs=6", *settings))
    assert len(run.metrics) == 6
    more = training.train(
        comm, training.make_config(moved, path, "train.epochs=6", "train.seeds=[1, 4]")
    )
    assert [seed["seed"] for seed in more.summary["seeds"]] == [1, 4]
    assert len(more.metrics) == 12


def test_a_full_disk_leaves_the_last_checkpoint(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    settings = ("model.hidden=4000", "model.num_layers=2", "run.checkpoint_every=1")
    whole = training.train(
        comm, training.make_config(store, comm_tmp_path / "whole", "train.epochs=3", *settings)
    )
    path = comm_tmp_path / "full"
    training.train(
        comm, training.make_config(store, path, "train.epochs=3", *settings), training.StopAfter(1)
    )
    config = training.make_config(store, path, "train.epochs=3", *settings)
    # Captured output of the suite stays far below this; a checkpoint does not.
    with (
        largest_file(100_000),
        pytest.raises(
            CollectiveInputError, match=r"checkpoint .*epoch000002: File too large; free"
        ),
    ):
        training.train(comm, config)
    comm.Barrier()
    assert [each.name for each in (path / "checkpoints").iterdir()] == ["seed1-epoch000001"]
    training.assert_same(training.train(comm, config), whole)


def test_checkpoints_take_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hpcgnn.train.run.checkpoint.time.perf_counter", lambda: now[0])
    pace, saved = CheckpointPace(RunConfig(dir="run", checkpoint_share=0.05)), list[int]()
    for epoch in range(1, 401):
        now[0] += 0.21
        if pace.is_due(epoch):
            saved.append(epoch)
            with pace.saving(on_disk=True):
                now[0] += 0.5
            with pace.saving(on_disk=False):
                now[0] += 0.01
    # The first one is expected to take 0.1 s; 0.5 s are measured from then on.
    assert saved[0] == 10
    assert {later - earlier for earlier, later in itertools.pairwise(saved)} == {48}
    exact = CheckpointPace(RunConfig(dir="run", checkpoint_every=4))
    assert [epoch for epoch in range(1, 13) if exact.is_due(epoch)] == [4, 8, 12]
    now[0] += 1e9
    assert not CheckpointPace(RunConfig(dir="run", checkpoint_share=0.0)).is_due(1)


def test_unwritable_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match=r"checkpoint .*seed3-epoch000007: Not a directory; free"):
        write_checkpoint(tmp_path / "checkpoints", some_checkpoint(7))
