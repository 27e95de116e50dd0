"""The training command in real use: mpiexec, signals, exit statuses, one-line errors."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.errors import EXIT_REQUEUE
from tests.support.faults import ranks_of, run_with_fault
from tests.support.training import Run, make_config, make_graph, train, write_store

ROOT = Path(__file__).resolve().parents[2]
# Long, for machines that are busy with other work.
LIMIT_S = 240
MpiRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write_store(MPI.COMM_SELF, tmp_path, make_graph(), parts=2)


SETTINGS = (
    "model.hidden=16",
    "model.dropout=0.3",
    "train.dtype=float64",
    "train.epochs=8",
    "run.threads=1",
    "run.checkpoint_every=2",
)


@pytest.mark.timeout(4 * LIMIT_S)
@pytest.mark.parametrize("ranks_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_signals_and_kills(tmp_path: Path, store: Path, ranks_too: bool) -> None:
    """After SIGUSR1 to the launcher, SIGTERM to the ranks, or a killed rank, the run resumes."""
    run = tmp_path / "run"

    def interrupt(epoch: int, send: Callable[[int], None]) -> int:
        """Return the status of a run that is sent a signal while its last rank is in an epoch."""
        fault = f"1 wait exchange.forward {epoch}"
        ended = run_with_fault(2, store, run, SETTINGS, fault, LIMIT_S, send)
        assert "Traceback" not in ended.errors
        assert not (run / "summary.json").exists()
        return ended.status

    def end_ranks(_: int) -> None:
        # The process that waits last.
        for rank in sorted(ranks_of(run)):
            os.kill(rank, signal.SIGTERM)

    assert interrupt(1, lambda launcher: os.kill(launcher, signal.SIGUSR1)) == EXIT_REQUEUE
    assert len(Run(run, 0).metrics) == 2
    assert (run / "checkpoints" / "seed1-epoch000002").is_dir()
    if ranks_too:
        assert interrupt(2, end_ranks) == EXIT_REQUEUE
        assert len(Run(run, 0).metrics) == 3
    killed = interrupt(5, lambda _: os.kill(max(ranks_of(run)), 9))
    assert killed not in (0, EXIT_REQUEUE)
    # Signals that come late do not change the status.
    ended = run_with_fault(2, store, run, SETTINGS, "1 signals end", LIMIT_S)
    assert ended.status == 0
    assert "resuming seed 1 after 4 epochs" in ended.errors

    assert Run(run, 0).column("epoch") == list(range(8))
    expected = train(MPI.COMM_SELF, make_config(store, tmp_path / "whole", *SETTINGS))
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
        r"configuration .* is a directory; a run directory has .*/config.toml": [
            str(tmp_path),
            *good,
        ],
        r"replication 3 does not divide the 2 ranks": [*good, "exchange.replication=3"],
        r"run.dir = 'none': a run needs a directory; name one": [*good, "run.dir=none"],
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
    """A launcher with another protocol starts worlds of one rank; only the first one reports it."""
    words = [f"graph.store={store}", f"run.dir={tmp_path / 'run'}", *SETTINGS]
    command = [sys.executable, "-m", "hpcgnn.train", *words]
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


AFTER_TRAINING = """
import os, signal, subprocess
from hpcgnn.train.process import stop_on_signals
with stop_on_signals() as request:
    os.kill(os.getpid(), signal.SIGUSR1)
assert request.received == "SIGUSR1"
for number in (signal.SIGUSR1, signal.SIGTERM):
    os.kill(os.getpid(), number)
child = subprocess.run(["bash", "-c", "trap 'exit 3' TERM; kill -TERM $$; exit 4"])
print(child.returncode)
"""


@pytest.mark.max_ranks(1)
def test_late_signals_change_nothing_and_later_processes_hear_theirs() -> None:
    words = [sys.executable, "-c", AFTER_TRAINING]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr
