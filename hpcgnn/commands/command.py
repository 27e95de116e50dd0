"""A command: its arguments, which are read first, and the function that runs with them."""

import argparse
import enum
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from hpcgnn import watchdog
from hpcgnn.commands.arguments import CommandParser, find_object, read_parser, read_table
from hpcgnn.commands.launch import faults_told, run_command, run_mpi_command, stall_limit
from hpcgnn.errors import USAGE_ERROR, InputError
from hpcgnn.spmd import collective, is_first, num_launched, rank_of

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm as Communicator


class Processes(enum.Enum):
    """How many processes a command runs in."""

    ONE = "one process, without MPI"
    ANY = "the ranks of a launcher; without one, one process without MPI"
    RANKS = "the ranks of an MPI world"


@dataclass(frozen=True)
class Command:
    """A command.

    `name` are the words after ``hpcgnn``. `parser` returns its parser; its imports are loaded
    before MPI starts, and for ``--help``. `target` is ``module:function``, loaded after the
    arguments have been read. It takes the arguments and, unless `processes` is ONE, the
    communicator (None without a launcher), and returns an exit status, or None for 0. `subcommands`
    are commands with one more word in their name and their own arguments.
    """

    name: str
    parser: Callable[[], CommandParser]
    target: str
    processes: Processes
    subcommands: Sequence["Command"] = ()

    def start(self, words: Sequence[str] | None = None) -> NoReturn:
        """Run the command with arguments, those of the process by default, and exit.

        An input error prints one line and exits with status 2.
        """
        words = sys.argv[1:] if words is None else words
        if (named := self._named(words)) is not self:
            named.start(words[1:])
        launched = num_launched(os.environ)
        if self.processes is Processes.RANKS or (self.processes is Processes.ANY and launched > 1):
            # A rank may already hang in an import, or in MPI's start.
            watchdog.start(f"hpcgnn {self.name}", rank_of(os.environ))
            watchdog.set_limit(stall_limit(words))
            with faults_told(self.name):
                options = self.parse(words)
            run_mpi_command(self.name, lambda comm: self._run(options, comm))
        run_command(self.name, lambda: self.call(words))

    @collective
    def call(self, words: Sequence[str] | None = None, comm: "Communicator | None" = None) -> int:
        """Run the command on the ranks of `comm`, or as one process; return its exit status."""
        words = sys.argv[1:] if words is None else words
        if (named := self._named(words)) is not self:
            return named.call(words[1:], comm)
        return self._run(self.parse(words), comm)

    def _named(self, words: Sequence[str]) -> "Command":
        """Return the subcommand that the first word names, or this command."""
        names = {command.name: command for command in self.subcommands}
        return names.get(f"{self.name} {words[0]}", self) if words else self

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Read the arguments; ``--help`` and errors end the process."""
        return self.parser().read(words)

    @collective
    def _run(self, options: argparse.Namespace, comm: "Communicator | None") -> int:
        is_one = self.processes is Processes.ONE
        if is_one and (launched := num_launched(os.environ)) > 1:
            if not is_first(os.environ):
                raise SystemExit(USAGE_ERROR)
            raise InputError(
                f"{launched} ranks: hpcgnn {self.name} is one process; start it without a launcher "
                "or, in a shell that srun started with several tasks, with srun --overlap -n 1"
            )
        module, _, function = self.target.partition(":")
        watchdog.set_place("import", "")
        main = getattr(importlib.import_module(module), function)
        watchdog.set_place("start", "import")
        return int((main(options) if is_one else main(options, comm)) or 0)


def find_command(name: str) -> Any:
    """Return a command, declared in the file ``name.toml`` or in a module of `commands`."""
    if not (table := read_table(name)):
        return find_object(f"hpcgnn.commands.{name}:COMMAND")
    processes = Processes[table["processes"].upper()]
    subcommands = [find_command(words) for words in table.get("subcommands", ())]
    return Command(name, partial(read_parser, name), table["target"], processes, subcommands)
