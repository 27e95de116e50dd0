"""A run that was stopped and started again ends like one that was not."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.train.signals import EXIT_REQUEUE
from tests.train.support import (
    Run,
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    train,
    write_store,
)

SETTINGS = {
    "adam cosine dropout": (
        "train.schedule=cosine",
        "model.dropout=0.4",
        "model.input_dropout=0.2",
        "model.name=gcn",
    ),
    "adamw step warm-up": (
        "train.optimizer=adamw",
        "train.schedule=step",
        "train.schedule_steps=[3, 6]",
        "train.warmup_epochs=2",
        "train.weight_decay=0.1",
        "model.dropout=0.4",
    ),
    "nesterov exponential clipped": (
        "train.optimizer=sgd",
        "train.nesterov=true",
        "train.schedule=exponential",
        "train.clip_norm=0.05",
        "train.weight_decay=0.01",
        "train.weight_decay_layers=first",
        "train.label_smoothing=0.1",
    ),
    "sgd without momentum": ("train.optimizer=sgd", "train.momentum=0"),
    "last, seldom evaluated": ("train.select=last", "train.evaluate_every=3"),
    "standard features": ("graph.normalize_features=standard", "train.dtype=float64"),
}


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return write_store(comm, comm_tmp_path, make_graph())


def interrupt(comm: MPI.Intracomm, store: Path, run: Path, epoch: int, *settings: str) -> None:
    """Train until a stop in `epoch`; nothing but the stop leaves a checkpoint."""
    config = make_config(store, run, "run.checkpoint_every=0", *settings)
    stopped = train(comm, config, StopAfter(epoch))
    assert stopped.status == EXIT_REQUEUE
    assert not (run / "summary.json").exists()
    comm.Barrier()


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_an_uninterrupted_run(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, name: str
) -> None:
    settings = ("train.epochs=8", *SETTINGS[name])
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *settings))
    interrupt(comm, store, comm_tmp_path / "parts", 5, *settings)
    parts = train(comm, make_config(store, comm_tmp_path / "parts", *settings))
    assert whole.status == parts.status == 0
    assert [row["epoch"] for row in parts.metrics] == list(range(8))
    assert parts.summary["session_epochs"] == 3
    assert_same(parts, whole)


def test_seeds_and_patience_go_on(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    settings = ("train.epochs=30", "train.seeds=[4, 2, 9]", "train.patience=3", "model.dropout=0.2")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *settings))
    first = whole.summary["seeds"][0]["epochs"]
    assert 3 <= first < 30
    # The first stop ends the first seed with its patience, the second comes amid the next seed.
    interrupt(comm, store, comm_tmp_path / "parts", first, *settings)
    interrupt(comm, store, comm_tmp_path / "parts", 2, *settings)
    parts = train(comm, make_config(store, comm_tmp_path / "parts", *settings))
    assert_same(parts, whole)
    assert [seed["seed"] for seed in parts.summary["seeds"]] == [4, 2, 9]


def test_goes_on_at_another_rank_count(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    settings = ("train.epochs=8", "model.dropout=0.3", "train.dtype=float64")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *settings))
    narrow = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    for name in ("down", "up"):
        path = comm_tmp_path / name
        if name == "down":
            interrupt(comm, store, path, 5, *settings)
        if narrow != MPI.COMM_NULL:
            if name == "up":
                interrupt(narrow, store, path, 5, *settings)
            else:
                train(narrow, make_config(store, path, *settings))
        comm.Barrier()
        if name == "up":
            train(comm, make_config(store, path, *settings))
        for column in ("train_loss", "valid_loss"):
            np.testing.assert_allclose(
                Run(path, 0).column(column), whole.column(column), rtol=1e-10
            )
        probabilities = Run(path, 0).predictions()["probabilities"]
        np.testing.assert_allclose(
            probabilities, whole.predictions()["probabilities"], rtol=1e-5, atol=1e-7
        )
    if narrow != MPI.COMM_NULL:
        narrow.Free()


def test_a_killed_run_goes_on(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    settings = ("train.epochs=8", "model.dropout=0.3")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *settings))
    path = comm_tmp_path / "killed"
    interrupt(comm, store, path, 5, *settings)
    if comm.rank == 0:
        with (path / "metrics.jsonl").open("a") as file:
            # Epochs after the last checkpoint, and a line that a kill has cut.
            file.write('{"seed": 1, "epoch": 5, "train_loss": 0.5}\n{"seed": 1, "epo')
        (path / "checkpoints" / ".seed1-epoch000006.partial-4711").mkdir()
        (path / "checkpoints" / ".seed1-epoch000006.partial-4711" / "model.safetensors").touch()
        (path / ".config.toml.partial-4711").touch()
        (path / ".predictions.h5.0a1b2c.tmp").touch()
    comm.Barrier()
    assert_same(train(comm, make_config(store, path, *settings)), whole)
    left = [each.name for each in path.rglob(".*") if each.name != ".lock"]
    assert left == []


def test_a_finished_run_says_so(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config(store, comm_tmp_path / "run", "train.epochs=2")
    run = train(comm, config)
    before = {path: path.stat().st_mtime_ns for path in run.path.glob("[!.]*")}
    summary = run.summary
    capfd.readouterr()
    comm.Barrier()
    again = train(comm, config)
    assert again.status == 0
    assert again.summary == summary
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert ("has ended" in capfd.readouterr().err) == (comm.rank == 0)
    longer = train(comm, make_config(store, comm_tmp_path / "run", "train.epochs=3"))
    assert [row["epoch"] for row in longer.metrics] == [0, 1, 2]
    assert longer.summary["seeds"][0]["epochs"] == 3


def test_a_directory_serves_one_run_at_a_time(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    import fcntl

    config = make_config(store, comm_tmp_path / "run", "train.epochs=1")
    train(comm, config)
    with (comm_tmp_path / "run" / ".lock").open("a") as lock:
        if comm.rank == 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
        comm.Barrier()
        with pytest.raises(CollectiveInputError, match=r"run is in use \(.*process \d+\): wait"):
            train(comm, config)


def test_a_signal_before_the_first_epoch(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    config = make_config(store, comm_tmp_path / "run", "train.epochs=2")
    # Any rank may be the one that hears it.
    early = train(comm, config, StopAfter(0) if comm.rank == comm.size - 1 else None)
    assert early.status == EXIT_REQUEUE
    assert not (early.path / "metrics.jsonl").exists()
    assert train(comm, config).status == 0
