"""The seconds in which this thread computes, whoever else is on the machine."""

import time
from pathlib import Path


def waited_for_core() -> float:
    """Return the seconds in which this thread could have run, and another had its core.

    A run has its cores alone, and this machine may be busy. 0 where Linux does not count them.
    """
    try:
        _, waited_ns, _ = Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()
    except OSError:
        return 0.0
    return int(waited_ns) / 1e9


def computing_s() -> float:
    """Return seconds of the clock without those of `waited_for_core`."""
    waited = waited_for_core()
    while True:
        now, before = time.perf_counter(), waited
        waited = waited_for_core()
        # A wait between the two would be in one of them alone.
        if waited == before:
            return now - waited
