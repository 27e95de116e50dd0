"""Start and end commands: check the MPI world, print one-line errors, leave no rank hanging."""

import contextlib
import importlib
import math
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hpcgnn.commands.streams import guard_streams
from hpcgnn.config.command_line import given
from hpcgnn.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    USAGE_ERROR,
    CollectiveExit,
    CollectiveInputError,
    InputError,
    exit_on_signals,
    lack_of_memory,
    one_line,
    paths_told,
)
from hpcgnn.spmd import check_world, collective, is_first, world_of_ranks

try:
    # The first native module that is imported.
    from hpcgnn import watchdog
except ImportError:
    sys.stderr.write(
        f"hpcgnn: error: {Path(__file__).parents[1]} is a source tree whose native parts are not "
        "built; start in another folder, where it does not hide an installed hpcgnn, or build it "
        "(docs/install.md)\n"
    )
    raise SystemExit(USAGE_ERROR) from None

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm as Communicator


def start(name: str) -> NoReturn:
    """Run the command ``hpcgnn NAME`` with the arguments of the process, and exit."""
    guard_streams()
    try:
        find_command = importlib.import_module("hpcgnn.commands.command").find_command
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == __name__.partition(".")[0]:
            raise
        sys.stderr.write(
            f"hpcgnn: error: {sys.executable} has no module {package}: start hpcgnn with the "
            "Python that it is installed in, or install it in this one (docs/install.md)\n"
        )
        raise SystemExit(USAGE_ERROR) from None
    raise SystemExit(find_command(name).start())


def run_command(name: str, main: Callable[[], int | None]) -> NoReturn:
    """Run a command as one process and exit with its status; an input error prints one line.

    So does Ctrl-C. Any exception other than `InputError` passes through with its traceback.
    """
    try:
        with faults_told(name), exit_on_signals(), paths_told():
            status = main()
    except KeyboardInterrupt:
        _say_interrupted(name)
        raise SystemExit(EXIT_INTERRUPTED) from None
    raise SystemExit(status or 0)


@contextlib.contextmanager
def faults_told(name: str) -> Iterator[None]:
    """End the process with one line for an input error in the block.

    Standard output is flushed at the end; a failure to do so is an input error as well.
    """
    try:
        yield
        sys.stdout.flush()
    except InputError as error:
        _say(name, error)
        raise SystemExit(USAGE_ERROR) from None


def _say_interrupted(name: str) -> None:
    sys.stderr.write(f"{f'hpcgnn {name}'.rstrip()}: interrupted\n")


def _say(name: str, error: InputError) -> None:
    sys.stderr.write(f"{f'hpcgnn {name}'.rstrip()}: error: {one_line(error)}\n")
    sys.stderr.flush()


def stall_limit(words: Sequence[str]) -> float:
    """Return ``run.stall_s`` from the arguments of a command, in seconds.

    They are read before MPI starts, since a rank may hang there or in an import. Invalid values
    leave the default; the command itself reports them later.
    """
    limit_s = watchdog.DEFAULT_LIMIT_S
    for value in given(words, "run", "stall_s"):
        with contextlib.suppress(ValueError, TypeError):
            limit_s = float(value) if 0 <= float(value) < math.inf else limit_s
    return limit_s


@collective
def run_mpi_command(name: str, main: "Callable[[Communicator], int]") -> NoReturn:
    """Run `main(COMM_WORLD)` and exit with its status; an error ends every rank.

    A `CollectiveInputError` is reported by rank 0 in one line, and all ranks exit with its status.
    An `InputError` of a single rank is reported by that rank, which then aborts the job with status
    2. A `CollectiveExit` ends every rank; any other exit would leave the others waiting, so it
    aborts the job. A rank that runs out of memory reports it in one line and aborts with status 1.
    Anything else is a defect: the rank prints its traceback and aborts with status 1.
    """
    try:
        world = world_of_ranks()
    except InputError as error:
        _say(name, error)
        raise SystemExit(USAGE_ERROR) from None
    watchdog.name_rank(f"hpcgnn {name}", f"{world.rank} of {world.size}")
    watchdog.end_by(world.Abort)
    try:
        with exit_on_signals(), paths_told():
            check_world(os.environ, world.size)
            status = main(world)
            sys.stdout.flush()
    except CollectiveInputError as error:
        if world.rank == 0:
            _say(name, error)
        status = error.status
    except InputError as error:
        if world.size > 1 or is_first(os.environ):
            _say(name, error)
        _end(world, USAGE_ERROR)
        status = USAGE_ERROR
    except CollectiveExit:
        raise
    except KeyboardInterrupt:
        if world.rank == 0:
            _say_interrupted(name)
        _end(world, EXIT_INTERRUPTED)
        status = EXIT_INTERRUPTED
    except SystemExit as end:
        if end.code != EXIT_TERMINATED and world.size > 1:
            _print_traceback(world)
        _end(world, end.code if isinstance(end.code, int) and end.code else 1)
        raise
    except BaseException as error:
        if lack := lack_of_memory(error):
            _say(name, InputError(f"rank {world.rank} {lack}"))
        else:
            _print_traceback(world)
        _end(world, 1)
        status = 1
    with contextlib.suppress(InputError):
        sys.stdout.flush()
    sys.stderr.flush()
    watchdog.set_place("the end of MPI", name)
    raise SystemExit(status)


def _end(world: "Communicator", status: int) -> None:
    if world.size > 1:
        world.Abort(status)


def _print_traceback(world: "Communicator") -> None:
    prefix = f"[rank {world.rank}] "
    text = "".join(prefix + line + "\n" for line in traceback.format_exc().splitlines())
    sys.stderr.write(f"{prefix}fails on {platform.node()}\n{text}")
    sys.stderr.flush()
