"""The training command as users start it: mpiexec, signals, exit statuses, one line for a fault."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.errors import EXIT_REQUEUE
from tests.support.faults import ranks_of
from tests.support.training import Run, make_config, make_graph, train, write_store

ROOT = Path(__file__).resolve().parents[2]
# Generous, for machines that are busy with other things.
LIMIT_S = 240
MpiRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(MPI.COMM_SELF, tmp_path, make_graph(num_nodes=1501), parts=2)


def arguments(store: Path, run: Path) -> list[str]:
    """Return a command whose epochs take long enough to be interrupted."""
    settings = ("model.hidden=256", "model.dropout=0.3", "train.epochs=60", "run.threads=1")
    frequent = "run.checkpoint_every=2"
    return [f"graph.store={store}", f"run.dir={run}", "train.dtype=float64", frequent, *settings]


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start training on two ranks in a process group of its own, and end it in any case."""
    script = f'. "{ROOT}/jobs/env.sh" && mpi_run 2 "$@"'
    words = ["bash", "-c", script, "bash", sys.executable, "-m", "hpcgnn.train", *command]
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "HPCGNN_VENV": sys.prefix},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for_epoch(run: Path, number: int, process: subprocess.Popen[str]) -> None:
    """Return once `number` epochs are in the metrics."""
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not metrics.is_file() or metrics.read_text().count("\n") < number:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == process:
            found.append(int(stat.parent.name))
    return sorted(found)


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("ranks_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_signals_and_kills(tmp_path: Path, store: Path, ranks_too: bool) -> None:
    """SIGUSR1 to the launcher, SIGTERM to the ranks, a killed rank: the run goes on each time."""
    run = tmp_path / "run"
    command = arguments(store, run)

    def interrupt(epoch: int, send: Callable[[int], None]) -> int:
        with started(command) as process:
            wait_for_epoch(run, epoch, process)
            # The shell waits for the launcher, which may start the ranks by a process between.
            (launcher,) = children(process.pid)
            send(launcher)
            _, errors = process.communicate(timeout=LIMIT_S)
        assert "Traceback" not in errors
        assert not (run / "summary.json").exists()
        return process.returncode

    def end_ranks(_: int) -> None:
        for rank in ranks_of(run):
            os.kill(rank, signal.SIGTERM)

    assert interrupt(1, lambda launcher: os.kill(launcher, signal.SIGUSR1)) == EXIT_REQUEUE
    done = len(Run(run, 0).metrics)
    assert (run / "checkpoints" / f"seed1-epoch{done:06d}").is_dir()
    if ranks_too:
        assert interrupt(done + 1, end_ranks) == EXIT_REQUEUE
        done = len(Run(run, 0).metrics)
    killed = interrupt(done + 3, lambda _: os.kill(max(ranks_of(run)), 9))
    assert killed not in (0, EXIT_REQUEUE)
    with started(command) as process:
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "going on with seed 1 after " in errors

    assert Run(run, 0).column("epoch") == list(range(60))
    whole = make_config(store, tmp_path / "whole", *arguments(store, tmp_path / "whole"))
    expected = train(MPI.COMM_SELF, whole)
    np.testing.assert_allclose(
        Run(run, 0).column("train_loss"), expected.column("train_loss"), rtol=1e-8
    )
    assert Run(run, 0).summary["seeds"][0]["test"] == expected.summary["seeds"][0]["test"]


@pytest.mark.timeout(LIMIT_S)
def test_every_fault_is_one_line_and_status_2(tmp_path: Path, store: Path, mpi_run: MpiRun) -> None:
    taken, file = tmp_path / "taken", tmp_path / "file"
    file.touch()
    good = [f"graph.store={store}", f"run.dir={taken}", "train.epochs=1", "model.hidden=4"]
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n")
    cases = {
        r"nothing.h5: cannot be opened": [*good, "graph.store=nothing.h5"],
        r"file: is not an HDF5 file": [*good, f"graph.store={file}"],
        r"did you mean 'model.hidden'\?": [*good, "model.hiden=3"],
        r"model.hidden = 'x': expected a whole number": [*good, "model.hidden=x"],
        r"broken.toml is not valid TOML": [str(broken), *good],
        r"configuration .* is a directory: that of a run holds .*/config.toml": [
            str(tmp_path),
            *good,
        ],
        r"replication 3 does not divide the 2 ranks": [*good, "exchange.replication=3"],
        r"run.dir = 'none': a run has a directory; name one": [*good, "run.dir=none"],
        r"run.dir .*file/run: Not a directory": [*good, f"run.dir={file}/run"],
        r"training diverges": [*good, f"run.dir={tmp_path}/a", "train.learning_rate=1e30"],
        r"training diverges in epoch 0": [
            *good,
            f"run.dir={tmp_path}/e",
            "train.learning_rate=1e38",
        ],
        r"train.device = 'cuda': ": [*good, "train.device=cuda"],
        r"run.resume=must, but": [*good, f"run.dir={tmp_path}/b", "run.resume=must"],
        r"run.dir .*d: File too large; free space": [
            "largest_file=0",
            *good,
            f"run.dir={tmp_path}/d",
        ],
        r"checkpoint .*epoch000001: File too large; free": [
            "largest_file=100000",
            *good,
            f"run.dir={tmp_path}/c",
            "model.hidden=4000",
        ],
    }
    names = [*cases]
    (tmp_path / "cases.json").write_text(json.dumps([good, *cases.values()]))
    probe = mpi_run(
        2,
        "-m",
        "tests.support.command_probe",
        tmp_path / "cases.json",
        tmp_path / "results.json",
        timeout=LIMIT_S,
    )
    assert probe.returncode == 0, probe.stderr
    first, *found = json.loads((tmp_path / "results.json").read_text())
    assert first["status"] == [0, 0]
    for message, result in zip(names, found, strict=True):
        assert result["status"] == [2, 2], result
        lines = "".join(result["stderr"]).splitlines()
        faults = [line for line in lines if line.startswith("hpcgnn")]
        assert len(faults) == 1, lines
        assert re.match(rf"hpcgnn train: error: .*{message}", faults[0]), faults
        assert "Traceback" not in "".join(lines)


def test_worlds_of_size_one_are_noticed(tmp_path: Path, store: Path) -> None:
    """A launcher that speaks another protocol starts worlds of one rank; the first one speaks."""
    command = [sys.executable, "-m", "hpcgnn.train", *arguments(store, tmp_path / "run")]
    launchers = ("OMPI_", "PMI", "PRTE_", "SLURM_")
    lone = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    lone["SLURM_STEP_NUM_TASKS"] = "2"
    worlds = [
        subprocess.Popen(
            command,
            env={**lone, "SLURM_PROCID": str(number)},
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    first, second = (world.communicate(timeout=LIMIT_S)[1] for world in worlds)
    assert [world.returncode for world in worlds] == [2, 2]
    (line,) = first.splitlines()
    assert line.startswith("hpcgnn train: error: SLURM_STEP_NUM_TASKS=2, but this process is alone")
    assert "--mpi=pmix" in line
    assert second == ""
    assert not (tmp_path / "run").exists()
