"""The arguments of ``hpcgnn init``."""

from pathlib import Path

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes

DESCRIPTION = """Write a configuration that trains on a store: keys that the store asks for are set,
all others stand as comments with their defaults. Says what to run next. Or, with --jobs, write the
folder jobs: templates of batch jobs, the quickstart, and configurations for the bundled graphs."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("init", DESCRIPTION)
    words = cli.add_mutually_exclusive_group(required=True)
    words.add_argument(
        "store", type=Path, metavar="STORE", nargs="?", help="store to train on (.h5)"
    )
    words.add_argument("--jobs", action="store_true", help="write the folder jobs instead")
    cli.add_argument(
        "-o", "--output", type=Path, metavar="CONFIG.toml", help="default: STORE's name, .toml"
    )
    cli.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/STORE's name")
    return cli


COMMAND = Command("init", parser, "hpcgnn.train.first_config:main", Processes.ONE)

if __name__ == "__main__":
    COMMAND.start()
