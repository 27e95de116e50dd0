"""The process of a rank: every pool of threads has the requested size."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from mpi4py import MPI

import pytest
import torch

from hpcgnn.comm import ProcessGrid
from hpcgnn.train.process import prepare_process
from hpcgnn.train.run.session import describe_session
from tests.conftest import MpiRun

SHOW = """
import json, sys
import numpy, torch, threadpoolctl
from hpcgnn.comm import ProcessGrid
from hpcgnn.train.process import prepare_process
from mpi4py import MPI
numpy.ones((2, 2)) @ numpy.ones((2, 2))
with ProcessGrid(MPI.COMM_SELF) as grid:
    for requested in map(int, sys.argv[1:]):
        given = prepare_process(grid, requested)
        pools = [each["num_threads"] for each in threadpoolctl.threadpool_info()]
        print(json.dumps([given, torch.get_num_threads(), *pools]))
"""

HOLES = """
import sys
import numpy
from benchmarks.resident_memory import resident_mib
from hpcgnn.train.process import HeapBound
heap, pins = HeapBound(), []
def epoch(blocks):
    # What stays lies between what goes, so that the heap cannot shrink by itself.
    block = [(numpy.ones(100 << 10, "u1"), pins.append(bytearray(2000))) for _ in range(blocks)]
for _ in range(20):
    epoch(1)
    heap.end_epoch()
before = resident_mib()
epoch(1000)
holes = resident_mib() - before
heap.end_epoch()
print(holes, resident_mib() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc trims its heap")
def test_holes_in_the_heap_go_back() -> None:
    words = [sys.executable, "-c", HOLES]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    holes, left = map(float, done.stdout.split())
    assert holes > 90
    # The pins: 2 MB, plus the pages that each shares with a hole.
    assert left < 12


@pytest.mark.parametrize(
    ("requested", "variable", "expected"), [((1, 2), "", (1, 2)), ((0,), "1", (1,))]
)
def test_threads_hold_in_every_pool(
    requested: tuple[int, ...], variable: str, expected: tuple[int, ...]
) -> None:
    if len(os.sched_getaffinity(0)) < max(expected):
        pytest.skip("needs 2 cores: a BLAS starts with no more threads than there are")
    plain = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    if variable:
        plain["OMP_NUM_THREADS"] = variable
    shown = subprocess.run(
        [sys.executable, "-c", SHOW, *map(str, requested)],
        env=plain,
        capture_output=True,
        text=True,
        check=True,
    )
    for line, number in zip(shown.stdout.splitlines(), expected, strict=True):
        found = json.loads(line)
        assert len(found) >= 4, "no BLAS of NumPy, or no OpenMP, was found"
        assert set(found) == {number}


CORES = """
import os, sys
from mpi4py import MPI
from hpcgnn.comm import ProcessGrid
from hpcgnn.train.process import prepare_process

os.environ.pop("OMP_NUM_THREADS", None)
everything = range(os.cpu_count())
one = sorted(os.sched_getaffinity(0))[:1]
with ProcessGrid(MPI.COMM_WORLD) as grid, ProcessGrid(MPI.COMM_SELF) as alone:
    found = []
    for ranks, cores, threads in ((grid, one, 0), (grid, everything, 0), (alone, everything, 0),
                                  (alone, one, 2), (alone, everything, 2)):
        os.sched_setaffinity(0, cores)
        found.append(prepare_process(ranks, threads))
    for each in grid.world.gather(found) or []:
        print(each)
"""


def test_cores_are_divided_among_ranks_and_few_are_told(mpi_run: MpiRun, tmp_path: Path) -> None:
    num_cores = len(os.sched_getaffinity(0))
    if num_cores < 2:
        pytest.skip("needs 2 cores")
    script = tmp_path / "cores.py"
    script.write_text(CORES)
    shown = mpi_run(2, script)
    own = [1, num_cores // 2, num_cores, 2, 2]
    assert shown.stdout.splitlines() == [str(own)] * 2
    # One for each rank that was alone on its core; not with all of them.
    told = "1 of 1 ranks may use fewer cores than their 2 threads: "
    assert shown.stderr.count("may use fewer cores") == shown.stderr.count(told) == 2


@pytest.mark.parametrize(
    ("hosts", "cores", "threads", "told"),
    [
        # Hosts of unequal cores: each rank has as many threads as its host has cores.
        ("abcd", ({0, 1, 2, 3}, {0, 1}, {0}, {5, 6}), (4, 2, 1, 2), ("have 1 to 4 threads", "")),
        # Two ranks are bound to one core, while their host has others.
        ("aaaa", ({0}, {0}, {1}, {2, 3}), (1, 1, 1, 1), ("a: 2 ranks share 1 core; they wait",)),
        ("aaaa", ({0, 1},) * 4, (1, 1, 1, 1), ("a: 4 ranks share 2 cores; ",)),
        ("aabb", ({0},) * 4, (1, 1, 1, 1), ("share 1 core, and so on 1 other host; they wait",)),
    ],
)
@pytest.mark.several_ranks
def test_cores_of_hosts_and_ranks_are_told(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hosts: str,
    cores: tuple[set[int], ...],
    threads: tuple[int, ...],
    told: tuple[str, ...],
) -> None:
    if comm.size != 4:
        pytest.skip("the hosts have 4 ranks")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores[comm.rank])
    monkeypatch.setattr(platform, "node", lambda: hosts[comm.rank])
    before = torch.get_num_threads()
    with ProcessGrid(comm) as grid:
        assert prepare_process(grid, 0) == threads[comm.rank]
        session = describe_session(grid, threads[comm.rank])
        shown = capsys.readouterr().err
        prepare_process(grid, before)
    if comm.rank == 0:
        assert all(text in shown for text in told)
        assert "fewer cores" not in shown
        assert [each["threads"] for each in session["hosts"]] == [
            max(threads[rank] for rank in range(4) if hosts[rank] == name)
            for name in sorted(set(hosts))
        ]
