"""Start of the command: training is imported once, by the process whose forks rehearse."""

import argparse
import importlib
import sys

from hpcgnn.plan.forks import FORK, serve


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    fresh = "torch" not in sys.modules
    planning = importlib.import_module("hpcgnn.plan.command")
    if fresh:
        serve()
    else:
        # Who imported torch before may have threads, which no fork has.
        FORK.set_forkserver_preload(["hpcgnn.plan.rehearsal"])
    return int(planning.main(options))
