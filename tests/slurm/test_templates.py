"""The job templates as written, on a real Slurm over two emulated hosts."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcgnn.storage import GraphArrays, GraphStore, store_from_arrays
from tests.slurm.cluster import Cluster
from tests.support.training import TIMES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUM_NODES, NUM_CLASSES, PARTS, EPOCHS = 1003, 5, 4, 150

CONFIG = f"""
[model]
hidden = 16
[train]
epochs = {EPOCHS}
seeds = [11]
"""


@pytest.fixture(scope="module")
def config(cluster: Cluster) -> Path:
    path = cluster.directory / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Path:
    """A partitioned store, made by its template."""
    rng = np.random.default_rng(20260907)
    source, target = rng.integers(0, NUM_NODES, (2, 6 * NUM_NODES))
    whole, parts = cluster.directory / "whole.h5", cluster.directory / "parts.h5"
    labels = rng.integers(0, NUM_CLASSES, NUM_NODES).astype(np.int32)
    store_from_arrays(
        whole,
        GraphArrays(
            name="random",
            num_nodes=NUM_NODES,
            edges={"": (source, target)},
            features=rng.normal(size=(NUM_NODES, 7)).astype(np.float32) + labels[:, None],
            labels=labels,
            split=rng.integers(1, 4, NUM_NODES).astype(np.uint8),
            num_classes=NUM_CLASSES,
        ),
    )
    options = ("--parts", PARTS, "--method", "metis", "-o", parts)
    job = cluster.submit("partition.sbatch", whole, *options)
    cluster.wait(job, "COMPLETED")
    return parts


@pytest.fixture(scope="module")
def train(cluster: Cluster, config: Path, store: Path) -> Callable[[Path], str]:
    """Return a function that submits training into a run directory."""

    def submit(run: Path) -> str:
        return cluster.submit("train.sbatch", config, f"graph.store={store}", f"run.dir={run}")

    return submit


@pytest.fixture(scope="module")
def reference(cluster: Cluster, train: Callable[[Path], str]) -> list[dict[str, Any]]:
    """The epochs of an uninterrupted run."""
    run = cluster.directory / "reference"
    job = train(run)
    cluster.wait(job, "COMPLETED")
    assert cluster.facts(job)["Restarts"] == "0"
    assert "4 ranks" in cluster.log(job)
    return epochs(run)


def epochs(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without their times."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def wait_for_epochs(run: Path, count: int, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while len(epochs(run)) < count:
        assert time.monotonic() < deadline, "training does not progress"
        time.sleep(0.05)


def test_partition(store: Path) -> None:
    with GraphStore.open(store) as graph:
        assert graph.num_parts == PARTS
        assert graph.num_nodes == NUM_NODES


def test_signalled_job_requeues_and_finishes_alike(
    cluster: Cluster, train: Callable[[Path], str], reference: list[dict[str, Any]]
) -> None:
    run = cluster.directory / "signalled"
    job = train(run)
    wait_for_epochs(run, 5)
    # This is what --signal=B:USR1@180 sends 180 s before the time limit.
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.wait(job, "PENDING")
    assert len(epochs(run)) < EPOCHS
    cluster.wait(job, "COMPLETED")
    assert cluster.facts(job)["Restarts"] == "1"
    assert "requeueing" in cluster.log(job)
    assert epochs(run) == reference


@pytest.mark.parametrize("trains", [True, False])
def test_preempted_job_requeues_and_finishes_alike(
    cluster: Cluster, train: Callable[[Path], str], reference: list[dict[str, Any]], trains: bool
) -> None:
    run = cluster.directory / f"preempted-{trains}"
    job = train(run)
    if trains:
        wait_for_epochs(run, 5)
    else:
        # The ranks do not handle signals before they have imported their modules.
        wait_for_log(cluster, job, "4 ranks: python")
    urgent = ("--partition=urgent", "--nodes=2", "--exclusive", f"--output={run}.urgent")
    cluster.run("sbatch", *urgent, "--wrap", "sleep 1")
    cluster.wait(job, "PENDING")
    assert len(epochs(run)) < EPOCHS
    cluster.wait(job, "COMPLETED")
    assert epochs(run) == reference


def test_job_with_a_stopped_rank_requeues_and_finishes_alike(
    cluster: Cluster, config: Path, store: Path, reference: list[dict[str, Any]]
) -> None:
    run = cluster.directory / "stopped"
    settings = (f"graph.store={store}", f"run.dir={run}", "run.stall_s=20")
    job = cluster.submit("train.sbatch", config, *settings)
    wait_for_epochs(run, 12)
    os.kill(rank_of(run), signal.SIGSTOP)
    cluster.wait(job, "PENDING")
    # Output of ranks passes through srun, which may write it after the job is queued again.
    wait_for_log(cluster, job, "has made no progress for 20 s: in ")
    wait_for_log(cluster, job, "ended by a fault of a machine: requeueing")
    cluster.wait(job, "COMPLETED")
    assert cluster.facts(job)["Restarts"] == "1"
    assert epochs(run) == reference


def wait_for_log(cluster: Cluster, job: str, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in cluster.log(job):
        assert time.monotonic() < deadline, cluster.log(job)
        time.sleep(0.2)


def rank_of(run: Path) -> int:
    """Return a process that trains into `run`, of any host: all are on this machine."""
    wanted = {b"hpcgnn.train", f"run.dir={run}".encode()}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            program, *words = file.read_bytes().split(b"\0")
            if b"python" in program and wanted <= set(words):
                return int(file.parent.name)
    raise AssertionError(f"no rank trains into {run}")


def test_job_that_must_not_be_requeued_says_so(cluster: Cluster, config: Path, store: Path) -> None:
    run = cluster.directory / "once"
    settings = (f"graph.store={store}", f"run.dir={run}", "train.epochs=100000")
    job = cluster.submit("train.sbatch", config, *settings, options=("--no-requeue",))
    wait_for_epochs(run, 5)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    wait_for_log(cluster, job, "not requeued: submit the job again to continue")
    cluster.wait_until_gone(job)
    assert cluster.facts(job)["ExitCode"] == "75:0"


def test_cancelled_job_stays_cancelled(cluster: Cluster, train: Callable[[Path], str]) -> None:
    run = cluster.directory / "cancelled"
    job = train(run)
    wait_for_epochs(run, 5)
    cluster.run("scancel", job)
    cluster.wait_until_gone(job)
    facts = cluster.facts(job)
    assert (facts["JobState"], facts["Restarts"]) == ("CANCELLED", "0")
    assert "requeueing" not in cluster.log(job)


def test_task_of_an_array_is_requeued_and_cancelled_alone(
    cluster: Cluster, config: Path, store: Path
) -> None:
    folder = cluster.directory / "seeds"
    words = (folder, config, f"graph.store={store}", "train.epochs=100000")
    array = cluster.submit("seeds.sbatch", *words, options=("--array=1-2",))
    for seed in (1, 2):
        wait_for_epochs(folder / f"seed-{seed}", 5)
    last = f"{array}_2"
    assert cluster.facts(last)["JobId"] == array
    cluster.run("scancel", "--batch", "--signal=USR1", last)
    cluster.wait(last, "PENDING")
    cluster.wait(last, "RUNNING")
    wait_for_log(cluster, array, "resuming seed 2")
    cluster.run("scancel", last)
    cluster.wait(last, "CANCELLED")
    other = cluster.facts(f"{array}_1")
    assert (other["JobState"], other["Restarts"]) == ("RUNNING", "0")
    cluster.run("scancel", array)
    cluster.wait_until_gone(array)
