"""The process of a rank: every pool of threads in it has the size that is asked for."""

import json
import os
import subprocess
import sys

import pytest

SHOW = """
import json, sys
import numpy, torch, threadpoolctl
from hpcgnn.comm import ProcessGrid
from hpcgnn.train.process import set_threads
from mpi4py import MPI
numpy.ones((2, 2)) @ numpy.ones((2, 2))
with ProcessGrid(MPI.COMM_SELF) as grid:
    given = set_threads(grid, int(sys.argv[1]))
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
