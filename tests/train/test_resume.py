"""A run that is stopped and restarted ends like an uninterrupted one."""

import json
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.errors import EXIT_REQUEUE, StorageFormatError
from hpcgnn.train.run import directory
from hpcgnn.train.run.checkpoint import Checkpoint, read_checkpoint
from tests.support import training

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
        "train.weight_decays=['*bias=0']",
        "train.label_smoothing=0.1",
    ),
    "sgd without momentum": ("train.optimizer=sgd", "train.momentum=0"),
    "last, seldom evaluated": ("train.select=last", "train.evaluate_every=3"),
    "rounded at random": (
        "exchange.method=joint",
        "exchange.wire=int2",
        "exchange.keep_products=always",
    ),
    "standard features": ("graph.normalize_features=standard", "train.dtype=float64"),
}


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return training.write_store(comm, comm_tmp_path, training.make_graph())


def interrupt(comm: MPI.Intracomm, store: Path, run: Path, epoch: int, *settings: str) -> None:
    """Train until a stop in `epoch`; only the stop leaves a checkpoint."""
    config = training.make_config(store, run, "run.checkpoint_share=0", *settings)
    stopped = training.train(comm, config, training.StopAfter(epoch))
    assert stopped.status == EXIT_REQUEUE
    assert not (run / "summary.json").exists()
    comm.Barrier()


def test_results_stay_if_a_rank_cannot_resume(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = comm_tmp_path / "run"
    training.train(comm, training.make_config(store, path, "train.epochs=2"))

    def read(found: Path) -> Checkpoint:
        if comm.rank == comm.size - 1:
            raise StorageFormatError("unreadable here")
        return read_checkpoint(found)

    monkeypatch.setattr(directory, "read_checkpoint", read)
    with pytest.raises(CollectiveInputError, match="unreadable here"):
        training.train(comm, training.make_config(store, path, "train.epochs=4"))
    for name in ("summary.json", "predictions.h5", "model.safetensors"):
        assert (path / name).is_file()


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_an_uninterrupted_run(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, name: str
) -> None:
    settings = ("train.epochs=8", *SETTINGS[name])
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *settings))
    interrupt(comm, store, comm_tmp_path / "parts", 5, *settings)
    parts = training.train(comm, training.make_config(store, comm_tmp_path / "parts", *settings))
    assert whole.status == parts.status == 0
    assert [row["epoch"] for row in parts.metrics] == list(range(8))
    assert parts.summary["session_epochs"] == 3
    training.assert_same(parts, whole)


def test_seeds_and_patience_go_on(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    settings = ("train.epochs=30", "train.seeds=[4, 2, 9]", "train.patience=3", "model.dropout=0.2")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *settings))
    first = whole.summary["seeds"][0]["epochs"]
    assert 3 <= first < 30
    # The first stop comes when the first seed's patience ends, the second in the middle of a seed.
    interrupt(comm, store, comm_tmp_path / "parts", first, *settings)
    interrupt(comm, store, comm_tmp_path / "parts", 2, *settings)
    parts = training.train(comm, training.make_config(store, comm_tmp_path / "parts", *settings))
    training.assert_same(parts, whole)
    assert [seed["seed"] for seed in parts.summary["seeds"]] == [4, 2, 9]


def test_goes_on_at_another_rank_count(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    settings = ("train.epochs=8", "model.dropout=0.3", "train.dtype=float64")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *settings))
    narrow = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    for name in ("down", "up"):
        path = comm_tmp_path / name
        if name == "down":
            interrupt(comm, store, path, 5, *settings)
        if narrow != MPI.COMM_NULL:
            if name == "up":
                interrupt(narrow, store, path, 5, *settings)
            else:
                training.train(narrow, training.make_config(store, path, *settings))
        comm.Barrier()
        if name == "up":
            training.train(comm, training.make_config(store, path, *settings))
        for column in ("train_loss", "valid_loss"):
            np.testing.assert_allclose(
                training.Run(path, 0).column(column), whole.column(column), rtol=1e-10
            )
        probabilities = training.Run(path, 0).predictions()["probabilities"]
        np.testing.assert_allclose(
            probabilities, whole.predictions()["probabilities"], rtol=1e-5, atol=1e-7
        )
    if narrow != MPI.COMM_NULL:
        narrow.Free()


def test_a_killed_run_goes_on(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    settings = ("train.epochs=8", "model.dropout=0.3")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *settings))
    path = comm_tmp_path / "killed"
    interrupt(comm, store, path, 5, *settings)
    if comm.rank == 0:
        with (path / "metrics.jsonl").open("a") as file:
            # Epochs after the last checkpoint, and a line that was cut by a kill.
            file.write('{"seed": 1, "epoch": 5, "train_loss": 0.5}\n{"seed": 1, "epo')
        (path / "checkpoints" / ".seed1-epoch000006.partial-4711").mkdir()
        (path / "checkpoints" / ".seed1-epoch000006.partial-4711" / "model.safetensors").touch()
        (path / ".config.toml.0a1b2c3d4e5f.tmp").touch()
        (path / ".predictions.h5.0a1b2c.tmp").touch()
    comm.Barrier()
    training.assert_same(training.train(comm, training.make_config(store, path, *settings)), whole)
    left = [each.name for each in path.rglob(".*") if each.name != ".lock"]
    assert left == []


def test_a_finished_run_says_so(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=2")
    run = training.train(comm, config)
    before = {path: path.stat().st_mtime_ns for path in run.path.glob("[!.]*")}
    # It records every start.
    del before[run.path / "log.txt"]
    summary = run.summary
    capfd.readouterr()
    comm.Barrier()
    again = training.train(comm, config)
    assert again.status == 0
    assert again.summary == summary
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert ("is finished" in capfd.readouterr().err) == (comm.rank == 0)
    longer = training.train(
        comm, training.make_config(store, comm_tmp_path / "run", "train.epochs=3")
    )
    assert [row["epoch"] for row in longer.metrics] == [0, 1, 2]
    assert longer.summary["seeds"][0]["epochs"] == 3


def test_a_directory_serves_one_run_at_a_time(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    import fcntl

    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=1")
    training.train(comm, config)
    with (comm_tmp_path / "run" / ".lock").open("a") as lock:
        if comm.rank == 0:
            fcntl.flock(lock, fcntl.LOCK_EX)
        comm.Barrier()
        with pytest.raises(CollectiveInputError, match=r"run is in use \(.*process \d+\): wait"):
            training.train(comm, config)


def test_a_signal_before_the_first_epoch(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=2")
    # Any rank may be the one that receives it.
    early = training.train(
        comm, config, training.StopAfter(0) if comm.rank == comm.size - 1 else None
    )
    assert early.status == EXIT_REQUEUE
    assert not (early.path / "metrics.jsonl").exists()
    assert training.train(comm, config, training.StopAfter(0)).status == EXIT_REQUEUE
    # It would be started again without end.
    with pytest.raises(
        CollectiveInputError, match="stopped 3 times in a row before an epoch ended"
    ):
        training.train(comm, config, training.StopAfter(0))
    assert training.train(comm, config, training.StopAfter(1)).status == EXIT_REQUEUE
    assert training.train(comm, config, training.StopAfter(0)).status == EXIT_REQUEUE
    assert training.train(comm, config).status == 0
    epochs = [each["epochs"] for each in json.loads((early.path / "sessions.json").read_text())]
    assert epochs == [0, 0, 0, 1, 0, 1]


def test_missing_lines_of_metrics_are_said(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = comm_tmp_path / "run"
    interrupt(comm, store, run, 5, "train.epochs=8")
    if comm.rank == 0:
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        assert len(lines) == 5
        (run / "metrics.jsonl").write_text("".join(lines[:3]))
    comm.Barrier()
    found = training.train(comm, training.make_config(store, run, "train.epochs=8"))
    assert [row["epoch"] for row in found.metrics] == [0, 1, 2, 5, 6, 7]
    if comm.rank == 0:
        assert "metrics.jsonl lacks 2 epochs of seed 1" in capfd.readouterr().err


def test_a_lock_is_not_opened_through_a_link(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    run, precious = comm_tmp_path / "run", comm_tmp_path / "precious"
    if comm.rank == 0:
        run.mkdir()
        precious.write_text("mine")
        (run / ".lock").symlink_to(precious)
    comm.Barrier()
    with pytest.raises(CollectiveInputError, match=r"run.dir .*symbolic links"):
        training.train(comm, training.make_config(store, run, "train.epochs=1"))
    assert precious.read_text() == "mine"


def test_a_growing_loss_is_remarked_on(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = ("train.epochs=5", "train.learning_rate=1e4")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *settings))
    assert run.status == 0
    if comm.rank == 0:
        assert "seed 1 ends with a loss of " in capfd.readouterr().err
