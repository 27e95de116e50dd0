"""The copies of a run's metrics, and its log: complete after a stop, never delaying the run."""

import csv
import json
import logging
import math
from pathlib import Path

from mpi4py import MPI

import pytest

from hpcgnn import console
from hpcgnn.comm import CollectiveInputError
from hpcgnn.config.file import load_config
from hpcgnn.errors import InputError
from hpcgnn.train.run import trackers
from tests.support import training

SETTINGS = ("train.seeds=[1, 2]", "train.evaluate_every=3", "train.epochs=5")


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return training.write_store(comm, comm_tmp_path, training.make_graph())


def rows(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_csv_holds_what_the_metrics_hold(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    path = comm_tmp_path / "run"
    config = training.make_config(store, path, *SETTINGS, "run.track=csv")
    training.train(comm, config, training.StopAfter(4))
    if comm.rank == 0:
        # Records that a killed run wrote for epochs after its checkpoint are removed.
        with (path / "metrics.csv").open("a") as file:
            file.write("1,99\n")
    comm.Barrier()
    training.train(comm, config)
    comm.Barrier()
    with (path / "metrics.csv").open(newline="") as file:
        found = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
    expected = rows(path)
    assert len(expected) == 10
    assert [{k: float(v) for k, v in row.items()} for row in found] == expected


def test_run_goes_on_without_a_tracker_that_fails(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Failing:
        def __init__(self, *arguments: object) -> None:
            del arguments

        def begin(self, seed: int, rows: object, run: object) -> None:
            pass

        def add(self, row: dict[str, object]) -> None:
            if row["epoch"] == 1:
                raise RuntimeError("no\nroute to host")

        def end(self, *, finished: bool) -> None:
            raise AssertionError(finished)

    monkeypatch.setattr(trackers, "_KINDS", {"csv": Failing})
    plain = training.train(comm, training.make_config(store, comm_tmp_path / "plain", *SETTINGS))
    config = training.make_config(store, comm_tmp_path / "run", *SETTINGS, "run.track=csv")
    tracked = training.train(comm, config)
    comm.Barrier()
    assert tracked.column("train_loss") == plain.column("train_loss")
    said = capsys.readouterr().err
    text = "run.track=csv fails (RuntimeError: no route to host); the run goes on without it"
    assert said.count(text) == (1 if comm.rank == 0 else 0)


def test_a_tracker_goes_on_with_its_own_run(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    class Named:
        def __init__(self, *arguments: object) -> None:
            del arguments

        def begin(self, seed: int, rows: object, run: str | None) -> str:
            del rows
            begun.append((seed, run))
            return run or f"run of {seed}"

        def add(self, row: dict[str, object]) -> None:
            del row

        def end(self, *, finished: bool) -> None:
            del finished

    monkeypatch.setattr(trackers, "_KINDS", {"csv": Named})
    config = training.make_config(store, comm_tmp_path / "run", *SETTINGS, "run.track=csv")
    training.train(comm, config, training.StopAfter(4))
    training.train(comm, config)
    assert begun == ([(1, None), (1, "run of 1"), (2, None)] if comm.rank == 0 else [])


def test_package_must_be_there(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    config = training.make_config(store, comm_tmp_path / "run", "run.track=['csv', 'wandb']")
    with pytest.raises(CollectiveInputError, match=r"wandb: .* pip install wandb"):
        training.train(comm, config)
    comm.Barrier()
    assert not (comm_tmp_path / "run").exists()


def test_unknown_tracker_is_refused() -> None:
    with pytest.raises(InputError, match=r"run\.track = 'excel': choose one of csv, mlflow"):
        load_config(None, ["graph.store=s.h5", "run.dir=r", "run.track=excel"])


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING])
def test_log_has_what_the_screen_has_not(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    level: int,
) -> None:
    console.show_from(level)
    # However slow the machine is, no line is due yet.
    monkeypatch.setattr("hpcgnn.train.run.report._QUIET_SECONDS", math.inf)
    path = comm_tmp_path / "run"
    training.train(comm, training.make_config(store, path, *SETTINGS))
    comm.Barrier()
    lines = [line.partition("Z ") for line in (path / "log.txt").read_text().splitlines()]
    for seed in (1, 2):
        assert sum(text.startswith(f"sage seed {seed}  ") for _, _, text in lines) == 5
    for start in ("started as ", "set up on rank 0: "):
        assert sum(text.startswith(start) for _, _, text in lines) == 1
    times = [time for time, _, _ in lines]
    assert times == sorted(times)
    # Before the log there is a notice about a machine with fewer cores than ranks.
    shown = capsys.readouterr().err.splitlines()
    on_screen = [line for line in shown if " ranks share " not in line]
    # The first and the last epoch are always shown, those between only sometimes.
    expected = {logging.DEBUG: len(lines), logging.INFO: 1 + 2 * 2, logging.WARNING: 0}[level]
    assert len(on_screen) == (expected if comm.rank == 0 else 0)


def test_log_has_the_fault(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    path = comm_tmp_path / "run"
    config = training.make_config(store, path, "graph.split=other")
    for _ in range(2):
        with pytest.raises(CollectiveInputError, match="other"):
            training.train(comm, config)
    comm.Barrier()
    text = (path / "log.txt").read_text()
    assert text.count("ended by CollectiveInputError: ") == 2
    assert text.count("other") == 2


def test_full_disk_costs_the_log_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with console.logged_to(tmp_path / "log.txt"):
        console.report("one")
        console.report("two")
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "one"
    assert "log.txt: cannot be written (" in said[1]
    assert said[2:] == ["two"]


@pytest.mark.max_ranks(1)
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow", "wandb"])
def test_packages_that_are_there(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    tracker: str,
) -> None:
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = comm_tmp_path / "run"
    config = training.make_config(store, path, "train.epochs=6", f"run.track={tracker}")
    training.train(comm, config, training.StopAfter(3))
    training.train(comm, config)
    expected = {row["epoch"]: row["train_loss"] for row in rows(path)}
    assert len(expected) == 6
    assert READERS[tracker](path) == pytest.approx(expected)


def from_tensorboard(run: Path) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (run / "tensorboard").iterdir()
    events = EventAccumulator(str(folder)).Reload()
    return {each.step: each.value for each in events.Scalars("train_loss")}


def from_mlflow(run: Path) -> dict[int, float]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run / 'mlflow.db'}")
    (number,) = json.loads((run / "tracked.json").read_text())["mlflow"].values()
    assert client.get_run(number).info.status == "FINISHED"
    assert client.get_run(number).data.params["train.epochs"] == "6"
    return {each.step: each.value for each in client.get_metric_history(number, "train_loss")}


def from_wandb(run: Path) -> dict[int, float]:
    from wandb.proto import wandb_internal_pb2

    found = {}
    for file in run.glob("wandb/offline-run-*/*.wandb"):
        # LevelDB's log: 7 bytes of header, then records after checksum, length and type.
        content, place = file.read_bytes(), 7
        assert len(content) < 32768
        while place + 7 <= len(content):
            length = int.from_bytes(content[place + 4 : place + 6], "little")
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content[place + 7 : place + 7 + length])
            place += 7 + length
            items = {"".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
            if "epoch" in items:
                found[int(items["epoch"])] = float(items["train_loss"])
    return found


READERS = {"tensorboard": from_tensorboard, "mlflow": from_mlflow, "wandb": from_wandb}
