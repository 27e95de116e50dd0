"""The process of a rank: every pool of threads in it has the size that is asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MpiRun

SHOW = """
import json, sys
import numpy, torch, threadpoolctl
from hpcgnn.comm import ProcessGrid
from hpcgnn.train.process import prepare_process
from mpi4py import MPI
numpy.ones((2, 2)) @ numpy.ones((2, 2))
with ProcessGrid(MPI.COMM_SELF) as grid:
    given = prepare_process(grid, int(sys.argv[1]))
pools = [each["num_threads"] for each in threadpoolctl.threadpool_info()]
print(json.dumps([given, torch.get_num_threads(), *pools]))
"""


@pytest.mark.parametrize(
    ("requested", "variable", "expected"), [(1, "", 1), (2, "", 2), (0, "1", 1)]
)
def test_threads_hold_in_every_pool(requested: int, variable: str, expected: int) -> None:
    if len(os.sched_getaffinity(0)) < expected:
        pytest.skip(f"needs {expected} cores: a BLAS starts with no more threads than there are")
    plain = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    if variable:
        plain["OMP_NUM_THREADS"] = variable
    shown = subprocess.run(
        [sys.executable, "-c", SHOW, str(requested)],
        env=plain,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(shown.stdout)
    assert len(found) >= 4, "no BLAS of NumPy, or no OpenMP, was found"
    assert set(found) == {expected}


def test_ranks_that_are_bound_are_told(mpi_run: MpiRun, tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs 2 cores")
    bound = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    script = tmp_path / "bound.py"
    script.write_text(bound + SHOW)
    shown = mpi_run(1, script, "2")
    assert "1 of 1 ranks may use fewer cores than their 2 threads: " in shown.stderr
    script.write_text(SHOW)
    shown = mpi_run(1, script, "2")
    assert shown.returncode == 0
    assert "fewer cores" not in shown.stderr


def test_cores_are_divided_among_ranks_that_share_them(mpi_run: MpiRun, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs 2 cores")
    script = tmp_path / "divided.py"
    script.write_text(DIVIDED)
    assert mpi_run(2, script, "own").stdout.split() == ["1", "1"]
    assert mpi_run(2, script, "all").stdout.split() == [str(len(cores) // 2)] * 2
    assert mpi_run(1, script, "all").stdout.split() == [str(len(cores))]


DIVIDED = """
import os, sys
from mpi4py import MPI
from hpcgnn.comm import ProcessGrid
from hpcgnn.train.process import prepare_process

os.environ.pop("OMP_NUM_THREADS", None)
if sys.argv[1] == "own":
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
else:
    os.sched_setaffinity(0, range(os.cpu_count()))
with ProcessGrid(MPI.COMM_WORLD) as grid:
    print(prepare_process(grid, 0), flush=True)
"""
