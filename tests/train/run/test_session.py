"""A run's records of when, where and with what it ran."""

import subprocess
from datetime import datetime
from pathlib import Path

from mpi4py import MPI

import pytest
import torch

from hpcgnn.analysis.curves import RunCurves
from hpcgnn.analysis.epoch_breakdown import summarise
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.comm import ProcessGrid
from hpcgnn.console import commit_of
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.run.session import describe_session, launcher_of, seconds_of_process
from tests.support import training


@pytest.fixture
def store(comm: MPI.Intracomm, comm_tmp_path: Path) -> Path:
    return training.write_store(comm, comm_tmp_path, training.make_graph())


def test_summary_tells_of_every_start(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path
) -> None:
    path = comm_tmp_path / "run"
    settings = ("train.epochs=5", "train.seeds=[1, 2]", "trace.enabled=true")
    config = training.make_config(store, path, *settings)
    training.train(comm, config, training.StopAfter(3))
    run = training.train(comm, config)
    comm.Barrier()
    first, second = run.summary["sessions"]
    assert (first["epochs"], first["stopped"]) == (3, True)
    assert (second["epochs"], second["stopped"]) == (7, False)
    assert first["started"] < first["ended"] <= second["started"]
    assert datetime.fromisoformat(second["started"]).tzinfo is not None
    assert second["ranks"] == comm.size == sum(host["ranks"] for host in second["hosts"])
    assert second["versions"]["torch"] == str(torch.__version__)
    assert second["versions"]["mpi"].lower().split()[0] in MPI.Get_library_version().lower()
    assert second["threads"] == 1
    assert second["command"]
    # Reading and planning are set-up; with the time outside spans they do not exceed the total.
    for detail in run.summary["ranks_detail"]:
        setup = detail["setup_s"]
        assert {"read", "plan", "other"} <= setup.keys()
        assert min(setup.values()) >= 0
        assert sum(setup.values()) < second["wall_s"]
        assert all(second["setup_s"][phase] >= value for phase, value in setup.items())


def test_phases_and_the_rest_are_the_whole_set_up(
    comm: MPI.Intracomm, comm_tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TraceRecorder, "seconds_by_phase", lambda _: {"read": 1e6})
    config = training.make_config(store, comm_tmp_path / "run", "train.epochs=1")
    summary = training.train(comm, config).summary
    for detail in summary["ranks_detail"]:
        assert 0 < sum(detail["setup_s"].values()) < summary["sessions"][0]["wall_s"]


def test_epochs_are_counted_one_way(comm: MPI.Intracomm, comm_tmp_path: Path, store: Path) -> None:
    path = comm_tmp_path / "run"
    settings = ("train.epochs=4", "train.seeds=[1, 2]", "trace.enabled=true")
    run = training.train(comm, training.make_config(store, path, *settings))
    comm.Barrier()
    opened = open_run(path)
    counts = [entry["epochs"] for entry in RunCurves(opened).final()]
    assert counts == [each["epochs"] for each in run.summary["seeds"]] == [4, 4]
    assert run.summary["epochs"] == sum(counts) == summarise(Trace(opened))["epochs"]
    assert run.summary["sessions"][0]["epochs"] == len(run.metrics) == 8


def test_hosts_cores_and_launcher(comm: MPI.Intracomm) -> None:
    with ProcessGrid(comm) as grid:
        found = describe_session(grid, 3)
    assert bool(found) == (comm.rank == 0)
    if found:
        assert all(host["cores"] >= 1 and host["processor"] for host in found["hosts"])
        assert 0 < found["before_s"] <= seconds_of_process() < 7200
    assert launcher_of({}) == "none"
    assert launcher_of({"OMPI_COMM_WORLD_SIZE": "2"}) == "mpiexec (Open MPI)"
    assert launcher_of({"PMI_SIZE": "2", "SLURM_STEP_ID": "0"}) == "srun"


def test_commit_is_that_of_the_checkout_itself(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    assert commit_of(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
    inside = tmp_path / "site-packages"
    inside.mkdir()
    assert commit_of(inside) is None
