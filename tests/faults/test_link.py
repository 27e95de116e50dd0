"""The link between two hosts is cut: permanently, and for a while."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mpi4py import MPI

import pytest

from tests.support import training
from tests.support.faults import ROOT, end_those_of, losses, ranks_of

SCRIPT = ROOT / "benchmarks" / "hosts.sh"
STALL_S = 20.0
LIMIT_S = 120
SETTINGS = (
    "train.epochs=400",
    "model.hidden=16",
    "run.threads=1",
    "run.checkpoint_every=5",
    f"run.stall_s={STALL_S}",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * LIMIT_S)]


def hosts(*words: object) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPT), *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=240)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    checked = hosts("check")
    launcher = Path(sys.prefix) / "bin" / "mpiexec"
    if checked.returncode or not launcher.exists():
        pytest.skip(checked.stderr.strip() or "no Open MPI wheel in this environment")
    with tempfile.TemporaryDirectory(prefix="hpcgnn-hosts-") as name:
        try:
            done = hosts("up", name, "node1", "node2", "node3", "node4")
            assert done.returncode == 0, done.stderr
            yield Path(name)
        finally:
            hosts("down", name)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("link")
    return training.write_store(MPI.COMM_SELF, folder, training.make_graph(num_nodes=501), parts=4)


@contextmanager
def started(directory: Path, store: Path, run: Path) -> Iterator[subprocess.Popen[str]]:
    """Train on four hosts with one rank each."""
    launcher = Path(sys.prefix) / "bin" / "mpiexec"
    python = ["env", f"PATH={os.environ['PATH']}", sys.executable, "-m", "hpcgnn.train"]
    train = [*python, f"graph.store={store}", f"run.dir={run}", *SETTINGS]
    root = ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMP_NUM_THREADS=1"]
    words = ["env", *root, "bash", SCRIPT, "mpiexec", directory, 1, launcher, "-n", 4, *train]
    with subprocess.Popen(
        list(map(str, words)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            end_those_of(run)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def epochs(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def test_cut_and_healed(tmp_path: Path, directory: Path, store: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with started(directory, store, whole) as process:
        wait_until(lambda: epochs(whole) > 3)
        assert hosts("link", directory, "node2", "down").returncode == 0
        time.sleep(STALL_S / 3)
        before = epochs(whole)
        assert hosts("link", directory, "node2", "up").returncode == 0
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
    assert before < len(losses(whole)) == 400
    with started(directory, store, cut) as process:
        wait_until(lambda: epochs(cut) > 3)
        began = time.monotonic()
        assert hosts("link", directory, "node2", "down").returncode == 0
        try:
            # The launcher itself waits for the lost host until TCP gives up after minutes.
            wait_until(lambda: not ranks_of(cut))
            seconds = time.monotonic() - began
        finally:
            hosts("link", directory, "node2", "up")
        process.kill()
        _, errors = process.communicate(timeout=LIMIT_S)
    assert errors.count("has made no progress for 20 s: in ") >= 1
    assert seconds < STALL_S + 10, errors
    with started(directory, store, cut) as process:
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
    assert losses(cut) == losses(whole)
