"""A host of four is killed, or cut off, in the midst of a supervised run."""

import sys
import tempfile
from pathlib import Path

from mpi4py import MPI

import pytest

from tests.supervise import kills
from tests.support import training
from tests.support.faults import losses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * kills.LIMIT_S)]


@pytest.mark.parametrize("kind", ["killed", "cut off"])
def test_the_run_goes_on_without_it(tmp_path: Path, kind: str) -> None:
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
            fault = kills.ways(directory, "node3")[kind]
            found = kills.supervised(directory, store, tmp_path / "run", fault, 20)
        finally:
            kills.hosts("down", directory)
    assert found.status == 0, found.errors
    assert "supervise: node3 is left out: " in found.errors
    assert "start 2: 3 ranks on node1,node2,node4\n" in found.errors
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
