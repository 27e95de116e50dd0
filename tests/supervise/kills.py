"""Hosts that are killed, or cut off, at random moments of a supervised run.

    python -m tests.supervise.kills FOLDER [--number 10] [--seed 7] [--where memory]

There are four emulated hosts with one rank each, whose memory is lost with them. A run with
``train.reproducible`` must end with status 0 and the bits of an uninterrupted one, on the three
remaining hosts. Needs root, and the wheel of Open MPI or MPICH beside this Python.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

from tests.support import training
from tests.support.faults import ROOT, end_those_of, losses

SCRIPT = ROOT / "benchmarks" / "hosts.sh"
NAMES = ("node1", "node2", "node3", "node4")
LIMIT_S = 240
SETTINGS = (
    "train.epochs=150",
    "train.reproducible=true",
    "model.hidden=32",
    "run.threads=1",
)
CHECKPOINTS = {
    "disk": ("run.checkpoint_every=1",),
    "memory": ("run.checkpoint_share=0", "run.partner_every=1"),
}


def hosts(*words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of hosts.sh."""
    command = ["bash", str(SCRIPT), *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=60)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a supervised run.

    `reached` are the epochs that were done when it started again, `noticed_s` the seconds from the
    fault to that start, and `lost_s` those to the end of its first epoch.
    """

    status: int
    errors: str
    reached: int
    noticed_s: float
    lost_s: float


@dataclass(frozen=True)
class Fault:
    """Starts a command at an epoch."""

    words: Sequence[str] = ()
    epoch: int = 0


def supervised(
    directory: Path,
    store: Path,
    run: Path,
    fault: Fault = Fault(),
    where: str = "disk",
    patience_s: float = 20.0,
) -> Outcome:
    """Train on the hosts of `directory`, with checkpoints on the disk or in memory.

    Ranks that make no progress, and hosts that do not answer, have `patience_s` seconds.
    """
    launcher = Path(sys.prefix) / "bin" / "mpiexec"
    root = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS=1"]
    names = directory / "allocation"
    names.write_text("\n".join(NAMES))
    words = [sys.executable, "-m", "hpcgnn.supervise", "--hosts", names, "--patience", 5]
    words += [
        "--ping",
        patience_s,
        "--",
        "env",
        *root,
        "bash",
        SCRIPT,
        "mpiexec",
        directory,
        "{slots}",
    ]
    words += [launcher, "-n", "{ranks}", "env", f"PATH={os.environ['PATH']}", sys.executable]
    words += ["-m", "hpcgnn.train", f"graph.store={store}", f"run.dir={run}", *SETTINGS]
    words += [*CHECKPOINTS[where], f"run.stall_s={patience_s}"]
    errors = run.with_suffix(".txt")
    with (
        errors.open("w") as told,
        subprocess.Popen(
            list(map(str, words)), stdout=subprocess.DEVNULL, stderr=told, cwd=ROOT
        ) as process,
    ):
        try:
            noticed_s, lost_s, reached = 0.0, 0.0, 0
            if fault.words:
                wait_until(lambda: epochs(run) >= fault.epoch)
                began = time.monotonic()
                subprocess.run(fault.words, check=True)
                wait_until(lambda: "start 2: " in errors.read_text() or process.poll() is not None)
                noticed_s, reached = time.monotonic() - began, epochs(run)
                wait_until(lambda: epochs(run) > reached or process.poll() is not None)
                lost_s = time.monotonic() - began
            process.wait(LIMIT_S)
        finally:
            process.kill()
            end_those_of(run)
    return Outcome(process.returncode, errors.read_text(), reached, noticed_s, lost_s)


def epochs(run: Path) -> int:
    """Return the number of epochs that a run has written."""
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait, up to a limit."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ways(directory: Path, host: str) -> dict[str, list[str]]:
    """Return the command that loses a host: it kills all its processes, or cuts its link."""
    holder = (directory / f"{host}.pid").read_text().strip()
    return {
        "killed": ["kill", "-KILL", holder],
        "cut off": ["bash", str(SCRIPT), "link", str(directory), host, "down"],
    }


def main() -> None:
    """Print a line for each fault, and fail at the first run with a wrong outcome."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("folder", type=Path)
    cli.add_argument("--number", type=int, default=10)
    cli.add_argument("--seed", type=int, default=7)
    cli.add_argument("--patience", type=float, default=8.0, help="seconds")
    cli.add_argument("--where", choices=CHECKPOINTS, default="disk", help="of the checkpoints")
    options = cli.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True)
    graph = training.make_graph(num_nodes=501)
    store = training.write_store(MPI.COMM_SELF, folder, graph, parts=4)
    generator = random.Random(options.seed)
    whole: list[float] = []

    def run_on(directory: Path, run: Path, fault: Fault = Fault()) -> Outcome:
        return supervised(directory, store, run, fault, options.where, options.patience)

    print("| host | epoch | to the start, s | lost, s | equal bits |\n" + "|---" * 5 + "|")
    for number in range(options.number + 1):
        directory = folder / f"hosts-{number}"
        try:
            assert hosts("up", directory, *NAMES).returncode == 0
            run = folder / f"run-{number}"
            if not whole:
                assert run_on(directory, run).status == 0
                whole = losses(run)
                continue
            host, epoch = generator.choice(NAMES), generator.randrange(len(whole) - 20)
            kind, words = generator.choice(list(ways(directory, host).items()))
            found = run_on(directory, run, Fault(words, epoch))
            equal = losses(run) == whole
            marks = f"{found.reached} | {found.noticed_s:.1f} | {found.lost_s:.1f}"
            print(f"| {host} {kind} | {marks} | {'yes' if equal else 'no'} |", flush=True)
            if found.status or not equal:
                raise SystemExit(found.errors)
        finally:
            hosts("down", directory)


if __name__ == "__main__":
    main()
