"""The operating system's account of a process: CPU seconds, and what it waited for."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_NANO = 1e-9
_STOLEN = 8
"""Index of the stolen ticks in the first line of /proc/stat."""


@dataclass(frozen=True)
class Usage:
    """Counts since the process began, over all its threads.

    `queued_s` are seconds in which its first thread was ready to run, but the cores were busy; None
    if the kernel does not count them. `major_faults` are pages that were read from disk, including
    swap. `yielded` and `preempted` count voluntary and involuntary context switches. `stolen_s` are
    CPU seconds of the whole virtual machine that its host gave to others; None if unknown.
    """

    wall_s: float
    cpu_s: float
    queued_s: float | None
    major_faults: int
    yielded: int
    preempted: int
    stolen_s: float | None

    @classmethod
    def now(cls) -> "Usage":
        """Return the current counts of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            wall_s=time.perf_counter(),
            cpu_s=used.ru_utime + used.ru_stime,
            queued_s=_queued_s(),
            major_faults=used.ru_majflt,
            yielded=used.ru_nvcsw,
            preempted=used.ru_nivcsw,
            stolen_s=_stolen_s(),
        )

    def until_now(self) -> dict[str, float | int | None]:
        """Return how much each count has grown since, and ``cores``: how many it may use."""
        now = Usage.now()
        added = {
            name: None if value is None or before is None else value - before
            for name, before in vars(self).items()
            for value in [getattr(now, name)]
        }
        return {**added, "cores": len(os.sched_getaffinity(0))}


def _queued_s() -> float | None:
    try:
        waited_ns = int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        # The kernel may be built without it.
        return None
    return waited_ns * _NANO


def _stolen_s() -> float | None:
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    return int(words[_STOLEN]) / os.sysconf("SC_CLK_TCK") if len(words) > _STOLEN else None
