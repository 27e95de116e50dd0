"""Facts about a rank's host: cores, memory, versions, devices, the batch system."""

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcgnn import __version__
from hpcgnn.comm import MessageProgress, mpi_library
from hpcgnn.console import version_of
from hpcgnn.errors import one_line
from hpcgnn.kernels import available_isas
from hpcgnn.kernels.cuda import GpuUnavailableError, require_gpu
from hpcgnn.trace import Counters

PACKAGES = ("numpy", "torch", "mpi4py", "h5py")

_BATCH = (
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_MEM_PER_NODE",
    "PBS_JOBID",
    "FLUX_JOB_ID",
)


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """Facts about a rank and its host.

    `threads` is OMP_NUM_THREADS or None. `memory_bytes` is that of `memory_bytes()`. `shared_bytes`
    is free in /dev/shm, where ranks of a host share rows; None without it. `isas` are the
    instruction sets that kernels can use here, widest first. `gpu` is the reason why no GPU can be
    used, or empty; `energy` likewise for the energy counters of processors. `moves_messages` tells
    whether a thread can keep messages moving while the rank computes.
    """

    host: str
    system: str
    cores: tuple[int, ...]
    threads: str | None
    memory_bytes: int
    shared_bytes: int | None
    isas: tuple[str, ...]
    gpu: str
    energy: str
    versions: Mapping[str, str]
    mpi: str
    moves_messages: bool
    batch: Mapping[str, str]


def look_around() -> RankFacts:
    """Return the facts about this process and its host."""
    return RankFacts(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        cores=tuple(sorted(os.sched_getaffinity(0))),
        threads=os.environ.get("OMP_NUM_THREADS"),
        memory_bytes=memory_bytes(),
        shared_bytes=_shared_bytes(),
        isas=tuple(available_isas())[::-1],
        gpu=_fault_of(require_gpu),
        energy=_fault_of(Counters),
        versions={
            "hpcgnn": __version__,
            "python": platform.python_version(),
            **{name: version_of(name) for name in PACKAGES},
        },
        mpi=mpi_library(),
        moves_messages=MessageProgress().is_permitted,
        batch={name: os.environ[name] for name in _BATCH if name in os.environ},
    )


def memory_bytes(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the usable memory: the host's, or the least of the limits of control groups.

    `groups` lists this process's control groups, of version 1 or 2, which are below `mounted`. A
    limit of any group around one of them holds too.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, group = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root, name = mounted / controllers, "limit_in_bytes" if controllers else "max"
        inner = root / group.lstrip("/")
        # In a container without a name space of groups only the root of them can be seen.
        for folder in (inner, *inner.parents)[: len(inner.parts) - len(root.parts) + 1]:
            limit = folder / f"memory.{name}"
            text = limit.read_text().strip() if limit.is_file() else ""
            limits += [int(text)] if text.isdigit() else []
    return min(limits)


def _shared_bytes() -> int | None:
    try:
        free = os.statvfs("/dev/shm")
    except OSError:
        return None
    return free.f_bavail * free.f_frsize


def _fault_of(take: Callable[[], object]) -> str:
    try:
        take()
    except (OSError, GpuUnavailableError) as error:
        return one_line(error)
    return ""
