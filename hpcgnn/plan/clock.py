"""A clock of the time in which this thread has a core, for machines with other load."""

import time
from pathlib import Path


def waited_for_core() -> float:
    """Return the seconds for which this thread was runnable but waited for a core.

    A run has its cores to itself, while this machine may be busy. 0 if Linux does not count them.
    """
    try:
        _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(waited_ns) / 1e9


def computing_s() -> float:
    """Return the seconds of the clock less those of `waited_for_core`."""
    waited = waited_for_core()
    while True:
        now, before = time.perf_counter(), waited
        waited = waited_for_core()
        # Repeat if the thread waited between the two readings, which only one would include.
        if waited == before:
            return now - waited
