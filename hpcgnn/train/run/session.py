"""Describe each session of a run: when, where and with what software it ran."""

import functools
import os
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hpcgnn
from hpcgnn.autograd.numerics.blas import multiply_by_fastest
from hpcgnn.comm import ProcessGrid, mpi_library
from hpcgnn.console import commit_of, version_of
from hpcgnn.spmd import collective
from hpcgnn.trace import energy_of

_commit_of = functools.cache(commit_of)
"""Cached: a process keeps the code it started with, and git takes as long as a small epoch."""

_PACKAGES = ("torch", "numpy", "scipy", "mpi4py", "h5py")
_LAUNCHERS = (
    ("SLURM_STEP_ID", "srun"),
    ("OMPI_COMM_WORLD_SIZE", "mpiexec (Open MPI)"),
    ("MPI_LOCALNRANKS", "mpiexec (Hydra)"),
    ("PMI_SIZE", "mpiexec (PMI)"),
)


@collective
def describe_session(grid: ProcessGrid, threads: int) -> dict[str, Any]:
    """Describe this session of a run on rank 0; other ranks get an empty description.

    It has ``started`` (UTC, ISO 8601), ``before_s`` (age of the process then: imports, MPI's start,
    earlier splits), ``command``, ``directory`` (where it was given), ``commit`` (None outside a
    checkout), ``versions``, ``hosts`` (each with its ranks, the most ``threads`` of one, the cores
    they may use, all cores and the processor), ``launcher``, ``job`` (its id in the batch system),
    ``ranks``, ``threads`` (of rank 0), ``products`` (the library of dense float32 products); see
    `ended`.
    """
    about_host = os.cpu_count(), _processor()
    machine = platform.node(), os.sched_getaffinity(0), threads, about_host
    machines = grid.world.gather(machine, root=0)
    if machines is None:
        return {}
    # Launchers may bind ranks to different cores: take the union.
    cores: dict[str, set[int]] = defaultdict(set)
    most: dict[str, int] = defaultdict(int)
    for name, usable, own_threads, _ in machines:
        cores[name] |= usable
        most[name] = max(most[name], own_threads)
    counts = Counter(name for name, *_ in machines)
    about = {name: info for name, *_, info in machines}
    return {
        "started": _text(datetime.now(UTC)),
        "before_s": seconds_of_process(),
        "command": _command(),
        "directory": str(Path.cwd()),
        "commit": _commit_of(Path(hpcgnn.__file__).parent.parent),
        "versions": versions(),
        "hosts": [
            {
                "name": name,
                "ranks": ranks,
                "threads": most[name],
                "cores": len(cores[name]),
                **dict(zip(("host_cores", "processor"), about[name], strict=True)),
            }
            for name, ranks in counts.items()
        ],
        "launcher": launcher_of(os.environ),
        "job": os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID"),
        "ranks": grid.size,
        "threads": threads,
        "products": multiply_by_fastest(),
    }


def ended(
    session: Mapping[str, Any], ranks: list[dict[str, Any]], epochs: int, *, stopped: bool
) -> dict[str, Any]:
    """Return a session's description at its end.

    Adds ``ended`` (UTC), ``wall_s`` since ``started``, the ``epochs`` that it trained, whether it
    was ``stopped``, ``energy`` from `hpcgnn.trace.energy_of`, and ``setup_s``: the seconds before
    the first epoch by phase, each of the slowest rank in `ranks`.
    """
    setup = [rank["setup_s"] for rank in ranks]
    phases = sorted({phase for phases_s in setup for phase in phases_s})
    now = datetime.now(UTC)
    return {
        **session,
        "ended": _text(now),
        "wall_s": (now - datetime.fromisoformat(session["started"])).total_seconds(),
        "epochs": epochs,
        "stopped": stopped,
        "energy": energy_of(ranks, session["hosts"]),
        "setup_s": {phase: max(phases_s.get(phase, 0.0) for phases_s in setup) for phase in phases},
    }


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds")


def seconds_of_process() -> float:
    """Return the age of this process in seconds, including the start of Python and all imports."""
    # Field 22 of /proc/PID/stat, in ticks since boot; split after the name, which may have spaces.
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    ticks = int(fields.rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(since_boot - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


def versions() -> dict[str, str]:
    """Return the versions of the software that may affect a run's results."""
    return {
        "hpcgnn": hpcgnn.__version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in _PACKAGES},
        "mpi": mpi_library(),
        "system": f"{platform.system()} {platform.release()}",
    }


def launcher_of(environment: Mapping[str, str]) -> str:
    """Return the launcher of the ranks, recognised by the variables that it set."""
    return next((name for key, name in _LAUNCHERS if key in environment), "none")


def _command() -> list[str]:
    """Return the command line of this process; ``python -m`` keeps the module's name."""
    original = sys.orig_argv[1:]
    if "-m" in original:
        return ["python", *original[original.index("-m") :]]
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
