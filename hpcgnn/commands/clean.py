"""``python -m hpcgnn.clean``: remove temporary files that killed commands have left."""

import argparse

from hpcgnn.commands.launch import start
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import scratch_folders, sweep, temporary_files


def main(options: argparse.Namespace) -> None:
    """Remove leftovers and report them."""
    for folder in options.folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: is not a folder; name those that outputs were written to")
    leftovers = [path for folder in options.folders for path in temporary_files(folder)]
    removed = sweep(leftovers + scratch_folders())
    if options.json:
        print_json({"removed": [str(path) for path in removed]})
        return
    for path in removed:
        report(f"removed {path}")
    report(f"removed {len(removed)} leftovers")


if __name__ == "__main__":
    start("clean")
