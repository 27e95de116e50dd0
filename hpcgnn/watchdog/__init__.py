"""End a rank that makes no progress, so that its job does not hang until the time limit.

A native thread counts the seconds since the last sign of life: the begin or end of a span, or
`beat` in a long loop without spans. Past the limit it reports where the rank is, writes the stacks
of all threads to standard error, and ends the job with `MACHINE_FAULT`, even if a library that
never returns holds the interpreter's lock. A process has one watchdog, as it has one set of signal
handlers; without one, the functions have no visible effect.

At `STACKS_SIGNAL`, which users may send as well, faulthandler writes Python's stacks.
"""

import atexit
import faulthandler
import platform
import signal
import sys
import threading
from collections.abc import Callable

from hpcgnn.errors import MACHINE_FAULT
from hpcgnn.watchdog import _watchdog

DEFAULT_LIMIT_S = 1800.0
"""Limit until the configuration sets one."""

STACKS_SIGNAL = signal.SIGUSR2

beat = _watchdog.beat
set_limit = _watchdog.set_limit
set_place = _watchdog.set_place
set_position = _watchdog.set_position


def start(command: str, rank: str) -> None:
    """Watch this process from now on, as `command` (for instance ``hpcgnn train``) on `rank`."""
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
    # After exit the interpreter has no stacks or threads, and the signal its default action.
    atexit.register(_watchdog.leave_interpreter)
    name_rank(command, rank)
    set_limit(DEFAULT_LIMIT_S)
    set_place("start", "")
    # Some modules are imported late, for example by torch's optimisers.
    sys.meta_path.insert(0, _BeatsAtImports())
    _watchdog.start(MACHINE_FAULT, STACKS_SIGNAL)


def name_rank(command: str, rank: str) -> None:
    """Set the rank in messages, once MPI knows it."""
    _watchdog.set_command(command, f"rank {rank} on {platform.node()}")


def end_by(abort: Callable[[int], None]) -> None:
    """Call `abort` with `MACHINE_FAULT` if this rank stalls and a Python thread can still run.

    Without `abort`, or if it does not return, the watchdog ends only this process.
    """

    def wait() -> None:
        _watchdog.wait_until_stalled()
        abort(MACHINE_FAULT)

    threading.Thread(target=wait, name="watchdog", daemon=True).start()


class _BeatsAtImports:
    """Finds no module, but counts each import as a sign of life, since file systems may be slow."""

    def find_spec(self, *_: object) -> None:
        beat()
