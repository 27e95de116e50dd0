"""The arguments of ``hpcgnn train``."""

import argparse

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes

DESCRIPTION = """Train a node model on a partitioned store. Start it on every rank:
  srun python -m hpcgnn.train CONFIG.toml graph.store=G.h5 run.dir=DIR
The number of ranks is at most the number of parts of the store."""

EPILOG = """exit status: 0 trained; 2 a fault of the input, one line tells which; 75 stopped by
SIGTERM or SIGUSR1 after an epoch, with a checkpoint: start the same command again to go on; 76 a
machine failed the run (a rank made no progress for run.stall_s, or holds other weights than the
others): start it again, too. SIGUSR2 makes a rank write the stacks of its threads.
srun hands both signals to the ranks; Open MPI's mpiexec hands on SIGUSR1, and kills the ranks at
SIGTERM: a killed run goes on from its last checkpoint."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("train", DESCRIPTION, epilog=EPILOG, intermixed=True)
    cli.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG.toml | section.key=value",
        help="a configuration file, and overrides of it (TOML values)",
    )
    cli.add_argument(
        "--keys",
        nargs="?",
        const="",
        metavar="WORD",
        help="list the keys with their defaults; with a word, those that are about it",
    )
    cli.add_argument(
        "--sample-config",
        type=int,
        dest="seed",
        metavar="SEED",
        help="draw the optimiser's settings of program graphs, for a search by an array of jobs",
    )
    cli.add_argument(
        "--large-batch",
        action="store_true",
        help="with --sample-config: the ranges for many supergraphs a step",
    )
    cli.add_argument("--json", action="store_true", help="print the summary as JSON")
    return cli


def check(cli: CommandParser, arguments: argparse.Namespace) -> None:
    """Tell a configuration file from overrides."""
    files = [word for word in arguments.words if "=" not in word]
    if len(files) > 1:
        cli.error(f"more than one configuration file: {' '.join(files)}")
    arguments.config = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]


COMMAND = Command("train", parser, "hpcgnn.train.command:main", Processes.RANKS, check)

if __name__ == "__main__":
    COMMAND.start()
