"""One of four hosts is killed, or cut off, in the middle of a supervised run."""

import sys
import tempfile
from pathlib import Path

from mpi4py import MPI

import pytest

from tests.supervise import kills
from tests.support import training
from tests.support.faults import losses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * kills.LIMIT_S)]


@pytest.mark.parametrize(
    ("host", "kind", "where"),
    [("node3", "killed", "disk"), ("node3", "cut off", "disk"), ("node1", "killed", "memory")],
)
def test_the_run_goes_on_without_it(tmp_path: Path, host: str, kind: str, where: str) -> None:
    checked = kills.hosts("check")
    if checked.returncode or not (Path(sys.prefix) / "bin" / "mpiexec").exists():
        pytest.skip(checked.stderr.strip() or "no Open MPI wheel in this environment")
    graph = training.make_graph(num_nodes=501)
    store = training.write_store(MPI.COMM_SELF, tmp_path, graph, parts=4)
    with tempfile.TemporaryDirectory(prefix="hpcgnn-hosts-") as name:
        directory = Path(name)
        try:
            assert kills.hosts("up", directory, *kills.NAMES).returncode == 0
            undisturbed = kills.supervised(directory, store, tmp_path / "whole")
            assert undisturbed.status == 0, undisturbed.errors
            fault = kills.Fault(kills.ways(directory, host)[kind], 20)
            found = kills.supervised(directory, store, tmp_path / "run", fault, where)
        finally:
            kills.hosts("down", directory)
    assert found.status == 0, found.errors
    left = ",".join(name for name in kills.NAMES if name != host)
    assert f"supervise: {host} is left out: " in found.errors
    assert f"start 2: 3 ranks on {left}\n" in found.errors
    # Rank 0 was on node1, its partner on node2.
    assert ("was restored from the memory of node2\n" in found.errors) == (where == "memory")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
