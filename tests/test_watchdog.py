"""A process that shows no progress ends with its own status, whatever blocks it."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from hpcgnn.errors import MACHINE_FAULT

BEGIN = """
import ctypes, time
from hpcgnn import watchdog
from hpcgnn.trace import TraceRecorder
watchdog.start("hpcgnn test", "7 of 9")
trace = TraceRecorder.open(None, 0, {})
trace.set_epoch(4, 2, seed=1)
"""


def started(body: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(body)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def outcome(body: str) -> tuple[int, str]:
    with started(body) as process:
        _, errors = process.communicate(timeout=240)
        return process.returncode, errors


@pytest.mark.parametrize(
    "wait", ["time.sleep(90)", "ctypes.PyDLL(None).sleep(90)", "while True: pass"]
)
def test_names_place_and_stacks(wait: str) -> None:
    """The second one keeps the GIL, as HDF5 does on a file system that hangs."""
    status, errors = outcome(f"""
        def stand_here():
            {wait}
        watchdog.set_limit(1)
        with trace.span("exchange.forward"):
            with trace.span("wait.forward"):
                pass
            stand_here()
        """)
    assert status == MACHINE_FAULT
    line, *stacks = errors.splitlines()
    assert line.startswith("hpcgnn test: error: rank 7 of 9 on ")
    assert "no progress for 1 s: in exchange.forward of seed 1, epoch 4, step 2, after" in line
    assert "after wait.forward; ending the job with status 76: start it again" in line
    assert any("in stand_here" in each for each in stacks)


def test_the_job_is_ended_through_mpi_where_a_thread_runs() -> None:
    status, _ = outcome("""
        import os
        watchdog.end_by(lambda status: os._exit(status + 1))
        watchdog.set_limit(1)
        time.sleep(90)
        """)
    assert status == MACHINE_FAULT + 1


def test_signs_of_life_and_no_limit() -> None:
    status, errors = outcome("""
        watchdog.set_limit(2)
        for _ in range(25):
            time.sleep(0.15)
            with trace.span("dense"):
                pass
        for _ in range(20):
            time.sleep(0.15)
            watchdog.beat()
        watchdog.set_limit(0)
        time.sleep(3)
        """)
    assert (status, errors) == (0, "")


def test_a_suspended_process_has_not_waited() -> None:
    with started("""
        import sys
        watchdog.set_limit(4)
        sys.stderr.write("ready\\n")
        time.sleep(1)
        """) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(6)
        os.kill(process.pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=240)
        assert (process.returncode, errors) == (0, "")


def test_a_signal_shows_the_stacks() -> None:
    status, errors = outcome("""
        import os, signal
        def stand_here():
            os.kill(os.getpid(), signal.SIGUSR2)
        stand_here()
        """)
    assert status == 0
    assert "in stand_here" in errors
