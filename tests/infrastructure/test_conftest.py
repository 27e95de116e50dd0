"""The suite's own machinery: worlds form, failures spread, nothing hangs for ever."""

import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mpi4py import MPI

import pytest

TESTS = Path(__file__).resolve().parents[1]
USED = ("call_order", "covering", "processes")
"""The support files that the conftest imports."""

PytestRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def pytest_run(mpi_run: PytestRun, tmp_path: Path) -> PytestRun:
    """Return a function that runs the source of a test file on two ranks."""
    return partial(run_suite, mpi_run, tmp_path)


def run_suite(
    mpi_run: PytestRun, path: Path, source: str, *options: str
) -> subprocess.CompletedProcess[str]:
    # The conftest looks for the repository one folder above itself.
    folder = path / "tests"
    for name in ("conftest.py", *(f"support/{name}.py" for name in USED)):
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(TESTS / name, copy)
    (folder / "test_it.py").write_text("from mpi4py import MPI\n" + textwrap.dedent(source))
    fixed = ("-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "--color=no")
    return mpi_run(2, *fixed, *options, cwd=path)


@pytest.fixture(scope="module")
def session(mpi_run: PytestRun, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the output of a suite with some failing and some passing tests."""
    source = textwrap.dedent(MIXED)
    for name, (body, *_) in ORDERS.items():
        source += f"def {name}(comm):\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    # A failure is reported however late the other rank is.
    more = (source + "def test_next(comm): comm.Barrier()", "-o", "mpi_grace=200")
    done = run_suite(mpi_run, tmp_path_factory.mktemp("session"), *more)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def section(session: str, name: str) -> str:
    """Return the output for a failure."""
    return session.partition(f" {name}[np2] ")[2].partition("\n____")[0]


def test_sums_over_sub_communicators(comm: MPI.Intracomm) -> None:
    assert comm.allreduce(comm.rank + 1) == comm.size * (comm.size + 1) // 2


def test_directory_is_shared(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    (comm_tmp_path / f"rank{comm.rank}").touch()
    comm.Barrier()
    assert len(list(comm_tmp_path.iterdir())) == comm.size


@pytest.mark.mpi(min_size=2)
def test_world_directory_is_shared(mpi_tmp_path: Path) -> None:
    paths = MPI.COMM_WORLD.allgather(str(mpi_tmp_path))
    assert len(set(paths)) == 1


def test_only_rank_0_reports(session: str) -> None:
    assert session.count("4 failed, 3 passed, 1 deselected") == 1


def test_failure_on_one_rank_fails_the_test_on_all(session: str) -> None:
    assert "[rank 1]" in section(session, "test_odd")
    assert "odd rank" in section(session, "test_odd")


def test_failure_before_a_collective_ends_the_job(pytest_run: PytestRun) -> None:
    done = pytest_run(
        """
        def test_stuck(comm):
            assert comm.rank == 0, "this rank left early"
            comm.Barrier()
        """,
        "-o",
        "mpi_grace=0.5",
    )
    assert done.returncode != 0
    assert "[rank 1]" in done.stderr
    assert "this rank left early" in done.stderr


def test_deadlock_is_ended_with_stacks(pytest_run: PytestRun) -> None:
    done = pytest_run(
        "def test_nobody_sends(comm): comm.recv(source=1 - comm.rank)",
        "--timeout=1",
        "-o",
        "timeout_func_only=true",
    )
    assert done.returncode != 0
    assert "Timeout" in done.stderr
    assert "test_nobody_sends" in done.stderr


def test_ranks_that_collect_different_tests_stop(pytest_run: PytestRun) -> None:
    done = pytest_run(
        """
        if MPI.COMM_WORLD.rank == 0:
            def test_only_here(comm): pass
        """
    )
    assert done.returncode != 0
    assert "test_only_here" in done.stderr


MIXED = """
    import numpy as np
    import pytest
    from hpcgnn.comm import ProcessGrid, all_ranks, allreduce_max, allreduce_sum, start_broadcast
    from hpcgnn.spmd import collective

    NOTHING, ONE = np.zeros(0), np.ones(1)

    def test_size(comm): assert comm.size == 2
    def test_serial(): assert 0
    def test_odd(comm): assert comm.rank == 0, "odd rank"

    def test_calls_of_some_ranks(comm):
        with ProcessGrid(comm, replication=2) as grid:
            assert all_ranks(comm, True)
            if comm.rank:
                grid.alone().sum_over_blocks(ONE)
                allreduce_sum(grid.layer, ONE)
                allreduce_sum(MPI.COMM_SELF, ONE)
                on_a_subgraph()

    @collective
    def on_a_subgraph():
        allreduce_sum(MPI.COMM_SELF, ONE)
"""


ORDERS = {
    # The messages of both look alike: each rank gets a wrong number without an error.
    "test_wrong_numbers": (
        "[f(comm, ONE) for f in (allreduce_sum, allreduce_max)[:: 1 - 2 * comm.rank]]",
        "transfer.allreduce_sum",
        "transfer.allreduce_max",
    ),
    # Calls before an error that the test expects also count.
    "test_expected_error": (
        """
        with pytest.raises(ValueError):
            with ProcessGrid(comm) as grid:
                comm.rank and grid.sum_over_blocks(NOTHING)
                raise ValueError
        """,
        "no further call",
        "grid.ProcessGrid.sum_over_blocks",
    ),
    # There is nothing to send, so no rank notices that rank 1 does not take part.
    "test_nothing_sent": (
        "comm.rank or start_broadcast(comm, NOTHING, 0)",
        "transfer.start_broadcast",
        "no further call",
    ),
}


def test_ranks_that_call_in_different_orders_fail(session: str) -> None:
    for name, (_, *told) in ORDERS.items():
        for rank, call in enumerate(told):
            line = rf"rank {rank}: .*{call}$"
            assert re.search(line, section(session, name), re.MULTILINE), session


def test_calls_that_concern_some_ranks_only_are_not_compared(session: str) -> None:
    assert not section(session, "test_calls_of_some_ranks"), session


@pytest.mark.max_ranks(2)
def test_most_ranks_are_kept_to(comm: MPI.Intracomm) -> None:
    assert comm.size <= 2
