"""Ends a rank that makes no progress, so that no job spins to its time limit.

A native thread counts the seconds since the last sign of life: the begin or end of a span, or
`beat` in a long loop without spans. Past the limit it says where the rank stands, writes the stacks
of all threads to standard error, and ends the job with `MACHINE_FAULT`, even while a library that
never returns holds the interpreter's lock. A process has one watchdog, as it has one set of signal
handlers; where none was started, all functions do nothing that shows.

Python's stacks are written by faulthandler at `STACKS_SIGNAL`, which users may send as well.
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
"""Until a configuration says how long a rank may make no progress."""

STACKS_SIGNAL = signal.SIGUSR2

beat = _watchdog.beat
set_limit = _watchdog.set_limit
set_place = _watchdog.set_place
set_position = _watchdog.set_position


def start(command: str, rank: str) -> None:
    """Watch this process from now on, as `command` (for instance ``hpcgnn train``) on `rank`."""
    faulthandler.register(STACKS_SIGNAL, all_threads=True, chain=False)
    # Later the interpreter has no stacks and no threads, and the signal's old meaning is back.
    atexit.register(_watchdog.leave_interpreter)
    name_rank(command, rank)
    set_limit(DEFAULT_LIMIT_S)
    set_place("start", "")
    # Some are imported late, as by torch's optimisers.
    sys.meta_path.insert(0, _BeatsAtImports())
    _watchdog.start(MACHINE_FAULT, STACKS_SIGNAL)


def name_rank(command: str, rank: str) -> None:
    """Say which rank this is, once MPI knows."""
    _watchdog.set_command(command, f"rank {rank} on {platform.node()}")


def end_by(abort: Callable[[int], None]) -> None:
    """Call `abort` with `MACHINE_FAULT` when this rank stalls, as long as a thread can run.

    Without it, or where it does not return, the watchdog ends the process alone.
    """

    def wait() -> None:
        _watchdog.wait_until_stalled()
        abort(MACHINE_FAULT)

    threading.Thread(target=wait, name="watchdog", daemon=True).start()


class _BeatsAtImports:
    """Finds no module, but takes the search for one for a sign of life: files may lie far away."""

    def find_spec(self, *_: object) -> None:
        beat()
