"""Training commands with a fault in one rank, and their outcomes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.errors import EXIT_REQUEUE, EXIT_TERMINATED, MACHINE_FAULT

ROOT = Path(__file__).resolve().parents[2]
INJECTED = ROOT / "tests" / "faults" / "injected"
PHASES = {
    # The other ranks wait for it in the start of MPI.
    "start": "import:mpi4py.MPI",
    "import": "import:safetensors",
    "reading": "read.nodes",
    "planning": "plan",
    "epoch": "exchange.forward 3",
    "checkpoint": "checkpoint",
}
"""Phases of a run, and the place of `sitecustomize`'s fault for each."""

STATUS: dict[str, Callable[[int, str], bool]] = {
    "kill": lambda status, _: status == 128 + signal.SIGKILL,
    "segv": lambda status, _: status == 128 + signal.SIGSEGV,
    # Between a run's first and last line, a rank is asked to stop, not terminated.
    "term": lambda status, phase: (
        status == (EXIT_TERMINATED if phase in ("start", "import") else EXIT_REQUEUE)
    ),
    "stop": lambda status, _: status == MACHINE_FAULT,
    "sleep": lambda status, _: status == MACHINE_FAULT,
    "hang": lambda status, _: status == MACHINE_FAULT,
    # A rank whose MPI does not load has an environment to be mended.
    "raise": lambda status, phase: status == (2 if phase == "start" else 1),
    "poison": lambda status, phase: status == (2 if phase == "start" else 1),
    # Without MPI, it can tell nobody that it ends: the launcher notices it, or the others do.
    "exit0": lambda status, phase: status == 1 or (phase == "start" and status == MACHINE_FAULT),
    "exit3": lambda status, _: status == 3,
    "leave": lambda status, _: status not in (0, EXIT_REQUEUE),
    "interrupt": lambda status, _: status not in (0, EXIT_REQUEUE),
}
"""Faults of `sitecustomize`, and the possible exit statuses of the launcher for each."""

STALLS = ("stop", "sleep", "hang")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a fault; seconds count from the fault to the end of the last process."""

    status: int
    seconds: float
    errors: str
    orphans: int


def command(
    ranks: int, store: Path, run: Path, settings: Sequence[str], fault: str | None = None
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a run; `fault` as `sitecustomize` reads it."""
    script = f'. "{ROOT}/jobs/env.sh" && mpi_exec "$@"'
    words = [sys.executable, "-m", "hpcgnn.train", f"graph.store={store}", f"run.dir={run}"]
    # A rank that waits for a stopped one takes a tenth of a core, not most of one (Open MPI 5).
    waiting = {"yield_strategy": "nanosleep", "nanosleep_time": "200000"}
    environment = {**os.environ, "HPCGNN_VENV": sys.prefix}
    environment |= {f"OMPI_MCA_threads_pthreads_{key}": value for key, value in waiting.items()}
    if fault is not None:
        environment |= {
            "PYTHONPATH": str(INJECTED),
            "HPCGNN_TEST_FAULT": fault,
            "HPCGNN_TEST_FAULT_TIME": f"{run}.fault",
        }
    return ["bash", "-c", script, "bash", str(ranks), *words, *settings], environment


def run_with_fault(
    ranks: int,
    store: Path,
    run: Path,
    settings: Sequence[str],
    fault: str | None = None,
    timeout: float = 240,
    then: Callable[[int], None] | None = None,
) -> Outcome:
    """Train, with or without a fault, and wait until no process of the run is left.

    `then` is called with the launcher's process id when the fault has happened.
    """
    words, environment = command(ranks, store, run, settings, fault)
    began, fired = time.time(), Path(f"{run}.fault")
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            while then is not None and not fired.exists():
                assert process.poll() is None, process.communicate()[1]
                time.sleep(0.01)
            if then is not None:
                then(process.pid)
            _, errors = process.communicate(timeout=timeout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            orphans = end_those_of(run)
    ended = time.time()
    if fault is not None:
        assert fired.exists(), f"no fault: {process.returncode}, {errors.decode(errors='replace')}"
        began = float(fired.read_text())
        fired.unlink()
    return Outcome(process.returncode, ended - began, errors.decode(errors="replace"), orphans)


def end_those_of(run: Path) -> int:
    """Wait briefly for processes that name the run directory; kill and count the remaining ones."""
    deadline = time.monotonic() + 30
    while found := processes_of(run):
        if time.monotonic() > deadline:
            for each in found:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            return len(found)
        time.sleep(0.05)
    return 0


def processes_of(run: Path) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"run.dir={run}".encode() in file.read_bytes().split(b"\0"):
                found.append(int(file.parent.name))
    return found


def is_rank(cmdline: Path) -> bool:
    try:
        program, *words = cmdline.read_bytes().split(b"\0")
    except OSError:
        return False
    return b"python" in program and b"hpcgnn.train" in words


def ranks_of(run: Path) -> list[int]:
    """Return the processes that train into `run`, without those that started them."""
    programs = {each: Path(f"/proc/{each}/cmdline") for each in processes_of(run)}
    found = [each for each, file in programs.items() if is_rank(file)]
    # A child of a rank, such as git, has the rank's command line for a moment.
    return [each for each in found if parent_of(each) not in found]


def parent_of(process: int) -> int | None:
    """Return the parent of a process, None if the process is gone."""
    try:
        # The name, which may contain anything, is in brackets before.
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def describe_processes(run: Path) -> str:
    """Return a line for each process of a run: its state, and where it waits."""
    lines = []
    for each in processes_of(run):
        with suppress(OSError):
            folder = Path(f"/proc/{each}")
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            waits, epochs = (folder / "wchan").read_text(), run / "metrics.jsonl"
            words = (folder / "cmdline").read_text().split("\0")[:3]
            rows = epochs.read_text().count("\n") if epochs.exists() else 0
            lines.append(f"{each} {' '.join(words)}: {state} in {waits}, {rows} epochs")
    return "\n".join(lines)


def losses(run: Path) -> list[float]:
    """Return the losses of a run, whose bits are the same after any interruption."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [row["epoch"] for row in rows] == list(range(len(rows)))
    return [row["train_loss"] for row in rows]


def weights(run: Path) -> bytes:
    """Return the model of the last checkpoint of a run."""
    last = max((run / "checkpoints").iterdir())
    return (last / "model.safetensors").read_bytes()
