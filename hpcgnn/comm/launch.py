"""Start and end of an MPI command: a sane world, one line for a fault, no rank left hanging."""

import os
import sys
import traceback
from collections.abc import Callable

from mpi4py import MPI

from hpcgnn.comm.collective import CollectiveInputError
from hpcgnn.console import USAGE_ERROR, one_line
from hpcgnn.errors import InputError

__all__ = ["check_world", "run_mpi_command"]

_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
_LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "SLURM_PROCID")


def check_world(environment: dict[str, str], world_size: int) -> None:
    """Refuse a world of one rank where the launcher started several processes.

    Not collective.

    A launcher that speaks another process-management interface than the MPI library (a wrong ``srun
    --mpi``) starts N processes that each form a world of size 1, and would train the same model N
    times into the same directory.

    Raises
    ------
    InputError
        Names the variable that tells the number of processes, and the remedy.
    """
    if world_size != 1:
        return
    names = list(_LAUNCHER_SIZES)
    if not any(name in environment for name in names[:2]):
        # Under mpiexec this variable counts mpiexec's own daemons, not ranks.
        names.append("SLURM_STEP_NUM_TASKS")
    for name in names:
        value = environment.get(name, "")
        if value.isdigit() and int(value) > 1:
            raise InputError(
                f"{name}={value}, but this process is alone in its MPI world: the launcher and the "
                "MPI library do not understand each other; with srun choose --mpi=pmix (Open MPI) "
                "or --mpi=pmi2 (MPICH), see `srun --mpi=list`, or start with the MPI's own mpiexec"
            )


def is_first(environment: dict[str, str]) -> bool:
    """Return whether the launcher counts this process as its first, or does not count it.

    Not collective: processes that are each alone in their world cannot ask each other.
    """
    ranks = [environment[name] for name in _LAUNCHER_RANKS if name in environment]
    return all(rank == "0" for rank in ranks)


def run_mpi_command(name: str, main: Callable[[MPI.Intracomm], int]) -> None:
    """Run `main(COMM_WORLD)` and exit with its status; an error ends every rank.

    Collective.

    A `CollectiveInputError` is reported by rank 0 in one line, and all ranks exit with status 2. An
    `InputError` of a single rank is reported by that rank, which then aborts the job with status 2;
    anything else is a defect: the rank prints its traceback and aborts with status 1.
    """
    world = MPI.COMM_WORLD
    try:
        check_world(dict(os.environ), world.size)
        status = main(world)
    except CollectiveInputError as error:
        if world.rank == 0:
            sys.stderr.write(f"hpcgnn {name}: error: {one_line(error)}\n")
        status = USAGE_ERROR
    except InputError as error:
        if world.size > 1 or is_first(dict(os.environ)):
            sys.stderr.write(f"hpcgnn {name}: error: {one_line(error)}\n")
            sys.stderr.flush()
        if world.size > 1:
            world.Abort(USAGE_ERROR)
        status = USAGE_ERROR
    except SystemExit:
        raise
    except BaseException:
        _abort(world)
    sys.stdout.flush()
    sys.stderr.flush()
    raise SystemExit(status)


def _abort(world: MPI.Comm) -> None:
    prefix = f"[rank {world.rank}] "
    text = "".join(prefix + line + "\n" for line in traceback.format_exc().splitlines())
    sys.stderr.write(text)
    sys.stderr.flush()
    if world.size > 1:
        world.Abort(1)
    raise SystemExit(1)
