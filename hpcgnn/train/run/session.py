"""When, where and with what a run ran: the description of each start of it."""

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
"""The code of a process is that of its start, and git takes as long as a small epoch."""

_PACKAGES = ("torch", "numpy", "scipy", "mpi4py", "h5py")
_LAUNCHERS = (
    ("SLURM_STEP_ID", "srun"),
    ("OMPI_COMM_WORLD_SIZE", "mpiexec (Open MPI)"),
    ("MPI_LOCALNRANKS", "mpiexec (Hydra)"),
    ("PMI_SIZE", "mpiexec (PMI)"),
)


@collective
def describe_session(grid: ProcessGrid, threads: int) -> dict[str, Any]:
    """Describe this start of a run; whole on rank 0, others get an empty description.

    It has ``started`` (UTC, ISO 8601), ``before_s`` (age of the process then: imports and the start
    of MPI, earlier splits of a run over several), ``command``, ``directory`` (where it was given),
    ``commit`` (None outside a checkout), ``versions``, ``hosts`` (of each its ranks, the cores that
    they may use and all, its processor), ``launcher``, ``job`` (of the batch system), ``ranks``,
    ``threads`` (of a rank), ``products`` (who multiplies dense float32); see `ended`.
    """
    machine = platform.node(), os.sched_getaffinity(0), (os.cpu_count(), _processor())
    machines = grid.world.gather(machine, root=0)
    if machines is None:
        return {}
    # Launchers may bind each rank to cores of its own.
    cores: dict[str, set[int]] = defaultdict(set)
    for name, usable, _ in machines:
        cores[name] |= usable
    counts = Counter(name for name, _, _ in machines)
    about = {name: told for name, _, told in machines}
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

    Adds ``ended`` (UTC), ``wall_s`` since ``started``, ``epochs`` that it trained, whether it was
    ``stopped``, ``energy`` of `hpcgnn.trace.energy_of`, and ``setup_s``: the seconds before its
    first epoch by phase, of the rank that needed most in each; `ranks` has those of all.
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
    """Return the age of this process, the start of Python and all imports included."""
    # Behind the name, which may hold spaces: field 22 of /proc/PID/stat, in ticks since boot.
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    ticks = int(fields.rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return max(since_boot - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


def versions() -> dict[str, str]:
    """Return the versions of what takes part in the numbers of a run."""
    return {
        "hpcgnn": hpcgnn.__version__,
        "python": platform.python_version(),
        **{name: version_of(name) for name in _PACKAGES},
        "mpi": mpi_library(),
        "system": f"{platform.system()} {platform.release()}",
    }


def launcher_of(environment: Mapping[str, str]) -> str:
    """Return what started the ranks, by the variables that it set."""
    return next((name for key, name in _LAUNCHERS if key in environment), "none")


def _command() -> list[str]:
    """Return the words that started this process; of ``python -m``, the module's name."""
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
