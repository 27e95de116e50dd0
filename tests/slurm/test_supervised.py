"""A host of a supervised job vanishes, on a real Slurm over two emulated hosts."""

import json
import os
import signal
import time

from mpi4py import MPI

import pytest

from tests.slurm.cluster import Cluster
from tests.support import training
from tests.support.faults import losses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = (
    "train.epochs=200",
    "train.reproducible=true",
    "model.hidden=16",
    "run.checkpoint_every=1",
    "run.stall_s=8",
)


def test_the_job_goes_on_without_it(cluster: Cluster) -> None:
    graph = training.make_graph(num_nodes=501)
    store = training.write_store(MPI.COMM_SELF, cluster.directory, graph, parts=4)
    runs = {name: cluster.directory / name for name in ("whole", "lost")}
    words = {
        name: (f"graph.store={store}", f"run.dir={run}", *SETTINGS) for name, run in runs.items()
    }
    cluster.wait(cluster.submit("train.sbatch", *words["whole"]), "COMPLETED")
    output = f"--output={cluster.directory}/job-%j.out"
    job = cluster.run(
        *("env", "HPCGNN_SUPERVISE=1", "sbatch", "--parsable", "--no-kill", output),
        *("jobs/train.sbatch", *words["lost"]),
    ).strip()
    metrics = runs["lost"] / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.read_text().count("\n") < 10:
        assert time.monotonic() < deadline, cluster.log(job)
        time.sleep(0.1)
    # The script is on the first host.
    os.kill(int((cluster.directory / "node2.pid").read_text()), signal.SIGKILL)
    # Slurm waits for a sign of the lost node long after the script has ended.
    cluster.wait(job, "COMPLETING", "COMPLETED")
    assert cluster.facts(job)["ExitCode"] == "0:0"
    log = cluster.log(job)
    assert "supervise: node2 is left out: no answer in 10 s" in log
    assert "supervise: start 2: 2 ranks on node1\n" in log
    assert losses(runs["lost"]) == losses(runs["whole"])
    summary = json.loads((runs["lost"] / "summary.json").read_text())
    assert [session["ranks"] for session in summary["sessions"]] == [4, 2]
