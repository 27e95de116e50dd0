"""``python -m hpcgnn.clean``: remove what killed commands have left in folders."""

import argparse
from pathlib import Path

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.command import Command, Processes
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.storage.leftovers import scratch_folders, sweep, temporary_files

DESCRIPTION = """Remove the temporary files that killed commands have left beside their outputs in
the given folders, and in TMPDIR on this host. Files that a running command writes stay, and so do
all where the file system has no locks. The next start of the same command does it by itself."""


def parser() -> CommandParser:
    """Return the arguments."""
    cli = CommandParser("clean", DESCRIPTION)
    cli.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="where outputs are")
    cli.add_argument("--json", action="store_true", help="print what was removed as JSON")
    return cli


def main(options: argparse.Namespace) -> None:
    """Remove and say what."""
    for folder in options.folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: is no folder; name those that outputs were written to")
    found = [path for folder in options.folders for path in temporary_files(folder)]
    removed = sweep(found + scratch_folders())
    if options.json:
        print_json({"removed": [str(path) for path in removed]})
        return
    for path in removed:
        report(f"removed {path}")
    report(f"removed {len(removed)} leftovers")


COMMAND = Command("clean", parser, "hpcgnn.commands.clean:main", Processes.ONE)

if __name__ == "__main__":
    COMMAND.start()
