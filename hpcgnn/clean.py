"""``python -m hpcgnn.clean``: remove what killed commands have left in folders."""

from pathlib import Path

from hpcgnn.arguments import CommandParser
from hpcgnn.console import print_json, report, run_command
from hpcgnn.errors import InputError
from hpcgnn.storage.leftovers import scratch_folders, sweep, temporary_files

DESCRIPTION = """Remove the temporary files that killed commands have left beside their outputs in
the given folders, and in TMPDIR on this host. Files that a running command writes stay, and so do
all where the file system has no locks. The next start of the same command does it by itself."""


def main() -> None:
    """Run the command with the arguments of the process."""
    parser = CommandParser("clean", DESCRIPTION)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="where outputs are")
    parser.add_argument("--json", action="store_true", help="print what was removed as JSON")
    options = parser.parse_args()
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


if __name__ == "__main__":
    run_command("clean", main)
