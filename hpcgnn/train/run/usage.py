"""What the operating system says of a process: seconds of its cores, and why it stood still."""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_NANO = 1e-9
_STOLEN = 8
"""Place of the stolen ticks in the first line of /proc/stat."""


@dataclass(frozen=True)
class Usage:
    """Counts since the process began, over all its threads.

    Parameters
    ----------
    wall_s
        Seconds on the clock.
    cpu_s
        Seconds on a core.
    queued_s
        Of its first thread: seconds in which it could have run, but others had the cores; None: not
        counted here.
    major_faults
        Pages that were read from a disk, from swap among others.
    yielded, preempted
        How often it gave a core up, and how often it was taken away.
    stolen_s
        Seconds of cores that the host of a virtual machine gave to others, of the whole machine.
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
        """Ask for the counts of this process."""
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
        """Return what has come to each count since, and ``cores``: how many it may use."""
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
        # Kernels may be built without.
        return None
    return waited_ns * _NANO


def _stolen_s() -> float | None:
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    return int(words[_STOLEN]) / os.sysconf("SC_CLK_TCK") if len(words) > _STOLEN else None
