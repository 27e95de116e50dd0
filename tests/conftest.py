"""Pytest for a program of many processes: one suite, run serially and under mpiexec.

Every rank runs the same tests in the same order and only rank 0 reports. After the setup or call of
a test, and again after its teardown, the ranks agree on the outcome over a communicator of their
own, so that a failure anywhere fails the test everywhere. Nothing waits for ever:

* a rank that fails while the others wait in a collective prints its traceback after ``mpi_grace``
  seconds and aborts the job;
* a test that exceeds its time-out (pytest-timeout's, by setting or marker) ends the job with the
  stacks of every rank.

A test also fails if its ranks made collective calls in different orders, even if none of them had
to wait (tests/support/call_order.py).

A serial run covers the tests with ``comm`` at one rank (unless the test is marked
``several_ranks``) and all tests without it; a run under
mpiexec covers ``comm`` at 3 and 4 ranks, in a world of 3 at 2 and 3, and in one of 8 at 8 (unless
the test is marked ``max_ranks(4)``), and the tests marked ``mpi``.
"""

import faulthandler
import gc
import importlib
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn, TextIO

from mpi4py import MPI

import hypothesis
import numpy as np
import pytest
from hypothesis.internal.conjecture import providers

from tests.support.call_order import CallOrder, difference, in_one_order
from tests.support.covering import left_out
from tests.support.processes import run_group

WORLD = MPI.COMM_WORLD
ROOT = Path(__file__).resolve().parents[1]
ABORT_STATUS = 70
POLL_S = 0.002
DAILY = 4
"""Ranks of the world of the daily runs, which come after a run on one rank."""
LARGEST = 8
"""Ranks of the largest world, which has few cases of each test, and no slow ones."""
MOST_EPOCHS = 3
"""Epochs of a rehearsal: one more than most tests ask for; no state may remain after it."""
RANKS_IN = re.compile(r"\bcomm(_tmp_path)?\b|mark\.mpi\b|mpi_tmp_path")
"""Texts in a test file where ranks matter to one of its tests."""

EXAMPLES = hypothesis.settings(
    # The machine is shared with others.
    deadline=None,
    database=None,
    # `comm` is made once in a session and does not change between examples. The time to draw these
    # depends on the machine.
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)


class Stacks:
    """The pytest plugin that ends a process with the stacks of its threads at a time-out."""

    def __init__(self) -> None:
        # Captured output is redirected while a test runs; this copy still reaches the terminal.
        self.stderr: TextIO = os.fdopen(os.dup(2), "w")

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, settings: object) -> bool:
        limit_s: float = getattr(settings, "timeout")  # noqa: B009
        # Written in C, it fires even if a thread is stuck without releasing the GIL. The timer of
        # pytest-timeout writes where workers of pytest-xdist have no output.
        faulthandler.dump_traceback_later(limit_s, exit=True, file=self.stderr)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        faulthandler.cancel_dump_traceback_later()
        return True

    def pytest_unconfigure(self) -> None:
        self.stderr.close()


class Ranks:
    """The pytest plugin that keeps the ranks of one world together."""

    def __init__(self, grace_s: float, stderr: TextIO) -> None:
        self._grace_s = grace_s
        self._order = CallOrder()
        self._order.install()
        # Only here: the order of calls is watched only in modules imported later.
        pieces = importlib.import_module("hpcgnn.sparse.pieces")
        # Graphs of tests would be one piece each, while a user's have many.
        pieces.PIECE = 500  # type: ignore[attr-defined]
        self._control = WORLD.Dup()
        self._stderr = stderr

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        # Launchers give each rank its own terminal, which would show every redrawn line.
        reporter.isatty = lambda: False
        if WORLD.rank > 0:
            reporter._tw._file = Path(os.devnull).open("w")  # noqa: SIM115

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        names = [item.nodeid for item in session.items]
        everywhere: list[list[str]] = self._control.allgather(names)
        if any(other != everywhere[0] for other in everywhere):
            differing = {name for other in everywhere for name in set(other) ^ set(names)}
            self._end_job(f"the ranks collected different tests: {sorted(differing)[:5]}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._order.start(size_of(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # A rank outside a sub-communicator skips in its setup while others run the call: each rank
        # agrees once before the teardown, on whichever of its reports is the last.
        if not (call.when == "setup" and report.passed):
            self._agree(item, report)
        return report

    def _agree(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Fail `report` if any rank's report of this part of the test has failed. Collective."""
        text = report.longreprtext if report.failed else ""
        timer = threading.Timer(
            self._grace_s, self._end_job, (f"{item.nodeid} failed here, others wait\n{text}",)
        )
        if report.failed:
            timer.start()
        failed, digests = self._gather(report.failed)
        timer.cancel()
        size = size_of(item)
        if failed.any():
            texts: list[str] = self._control.allgather(text)
            report.outcome = "failed"
            report.longrepr = "\n".join(
                f"[rank {rank}]\n{failure}" for rank, failure in enumerate(texts) if failure
            )
        elif not in_one_order(digests[:size]):
            report.outcome = "failed"
            report.longrepr = difference(self._control.allgather(self._order.calls)[:size])
        self._order.start(size)

    def _gather(self, failed: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return every rank's `failed` and digests of calls; waits without using a core."""
        mine = self._order.digests(WORLD.size)
        # Without a grid there are no replicas.
        mine[0] = failed
        everywhere = np.empty((WORLD.size, len(mine)), mine.dtype)
        request = self._control.Iallgather(mine, everywhere)
        while not request.Test():
            time.sleep(POLL_S)
        return everywhere[:, 0], everywhere

    def _end_job(self, reason: str) -> NoReturn:
        self._stderr.write(f"\n[rank {WORLD.rank}] {reason}\n")
        self._stderr.flush()
        # The launcher kills at once: give it a moment to forward the text.
        time.sleep(1)
        WORLD.Abort(ABORT_STATUS)
        sys.exit(ABORT_STATUS)


COMMUNICATORS = pytest.StashKey[dict[int, MPI.Comm]]()


def tested_sizes(world: int) -> tuple[int, ...]:
    """Return the sizes of communicators that a run on `world` ranks covers."""
    if world == 1:
        return (1,)
    return (LARGEST,) if world == LARGEST else tuple(range(2, min(world, DAILY) + 1))


def sizes_of(item: pytest.Item | pytest.Function, world: int = WORLD.size) -> list[int]:
    """Return the sizes of a test in a world.

    In a world of 4, which runs every day, 3 and 4 ranks are enough for tests not limited to 2;
    ``tests/run.sh --all`` has 2 ranks in its world of 3.
    """
    limit = item.get_closest_marker("max_ranks")
    sizes = [size for size in tested_sizes(world) if limit is None or size <= limit.args[0]]
    return sizes[1:] if world == DAILY and len(sizes) > 1 else sizes


def daily_sizes(item: pytest.Item) -> list[int]:
    """Return the numbers of ranks on which the daily run has a test, besides one."""
    # Learning results do not depend on ranks, as other tests show.
    of_one = item.get_closest_marker("quality") is not None
    if of_one or not needs_ranks(item):
        return []
    return sizes_of(item, DAILY) if "comm" in getattr(item, "fixturenames", ()) else [DAILY]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("mpi_grace", "seconds a failed rank waits for the others", default="5")


def _no_fsync(_: object) -> None:
    pass


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # No machine loses power in a test, and while all ranks wait for a disk, cores are idle.
    os.fsync = _no_fsync
    # Imported objects stay: a fifth of the time to collect tests was spent in looking for garbage
    # among them.
    gc.disable()
    # The ranks must draw the same examples, and judging a change must not depend on chance.
    fixed = WORLD.size > 1 or "not slow" in config.option.markexpr
    hypothesis.settings.register_profile("hpcgnn", EXAMPLES, derandomize=fixed)
    hypothesis.settings.load_profile("hpcgnn")
    if hasattr(providers, "_get_local_constants"):
        # Hypothesis also draws constants of imported modules, which differ by rank.
        providers._get_local_constants = lambda: providers._local_constants
    config.stash[COMMUNICATORS] = {
        size: WORLD.Split(0 if WORLD.rank < size else MPI.UNDEFINED, key=WORLD.rank)
        for size in tested_sizes(WORLD.size)
    }
    stacks = Stacks()
    config.pluginmanager.register(stacks, "stacks")
    if WORLD.size > 1:
        config.option.with_mpi = True
        ranks = Ranks(float(config.getini("mpi_grace")), stacks.stderr)
        config.pluginmanager.register(ranks, "ranks")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip files whose tests are all serial on several ranks: half of the imports."""
    if WORLD.size == 1 or not collection_path.name.startswith("test_"):
        return None
    return None if RANKS_IN.search(collection_path.read_text()) else True


def pytest_collection_finish() -> None:
    # All present objects stay to the end, so the collector need not look at them. Tests make few
    # cycles: a collection after every 700 objects took a fortieth of the time.
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "comm" not in metafunc.fixturenames:
        return
    sizes = sizes_of(metafunc.definition)
    metafunc.parametrize("comm", sizes, indirect=True, ids=lambda size: f"np{size}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tested = [item for item in items if (fits_one_rank if WORLD.size == 1 else needs_ranks)(item)]
    names = {item.nodeid for item in tested}
    quick = [item for item in tested if item.get_closest_marker("slow") is None]
    is_daily = WORLD.size in (1, DAILY) and "not slow" in config.option.markexpr
    if WORLD.size == LARGEST:
        names &= {item.nodeid for item in quick}
    if is_daily or WORLD.size == LARGEST:
        if is_daily and WORLD.size > 1:
            names -= {item.nodeid for item in quick if not daily_sizes(item)}
            quick = [item for item in quick if daily_sizes(item)]
        names -= {item.nodeid for item in left_out(quick, daily_sizes if WORLD.size == 1 else None)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
    items[:] = [item for item in items if item.nodeid in names]
    if WORLD.size == 1:
        # Tests with their own limit are long, and none should be the last one.
        items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def needs_ranks(item: pytest.Item) -> bool:
    """Return whether a run under mpiexec adds anything to the serial run of `item`."""
    uses_comm = "comm" in getattr(item, "fixturenames", ())
    return uses_comm or item.get_closest_marker("mpi") is not None


def fits_one_rank(item: pytest.Item) -> bool:
    """Return whether one rank tests anything: not where the reference is one process."""
    return item.get_closest_marker("several_ranks") is None


def size_of(item: pytest.Item) -> int:
    """Return the number of ranks of `item` in this world."""
    size = item.callspec.params.get("comm") if hasattr(item, "callspec") else None
    # If `max_ranks` leaves no size, pytest's own mark skips the test.
    return size if isinstance(size, int) else WORLD.size


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Generator[None]:
    """Reset state that another test may have left: random numbers, lines that ``-q`` hides."""
    if rehearsal := sys.modules.get("hpcgnn.plan.rehearsal"):
        # Bytes are the same in any epoch; 20 epochs, as for seconds, would take most of a test.
        rehearsal._MOST_EPOCHS = MOST_EPOCHS
    if torch := sys.modules.get("torch"):
        # `torch.manual_seed` would record, for each GPU library, the place of the call.
        torch.default_generator.manual_seed(0)
    yield
    importlib.import_module("hpcgnn.console").show_from(logging.INFO)


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> MPI.Comm:
    """Return the communicator of the first ranks; on the other ranks the test is skipped."""
    communicator = request.config.stash[COMMUNICATORS][request.param]
    if communicator == MPI.COMM_NULL:
        pytest.skip(f"rank {WORLD.rank} is outside this communicator")
    return communicator


@pytest.fixture
def comm_tmp_path(comm: MPI.Intracomm, tmp_path: Path) -> Path:
    """Return one temporary directory, the same on every rank of `comm`."""
    return Path(comm.bcast(str(tmp_path), root=0))


MpiRun = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def mpi_run() -> MpiRun:
    """Return `run(ranks, *arguments, timeout=240, cwd=ROOT)`, which starts Python on ranks.

    It goes through jobs/env.sh like every other launch, and returns the finished process with its
    output as text. For serial tests of commands; a test inside the suite's world uses `comm`.
    """
    script = f'. "{ROOT}/jobs/env.sh" && mpi_exec "$@"'

    def run(
        ranks: int, *arguments: object, timeout: float = 240, cwd: Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-c", script, "bash", ranks, sys.executable, *arguments]
        return run_group([str(word) for word in words], timeout, cwd)

    return run
