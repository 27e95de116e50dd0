"""Start of the command: training is imported once, by the process whose forks rehearse."""

import argparse
import importlib
import sys

from hpcgnn.plan.forks import FORK, serve

_REHEARSAL = "hpcgnn.plan.rehearsal"


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if "torch" not in sys.modules:
        # Nothing that a rank is without: planning itself comes later.
        importlib.import_module(_REHEARSAL)
        serve()
    else:
        # Who imported torch before may have threads, which no fork has.
        FORK.set_forkserver_preload([_REHEARSAL])
    planning = importlib.import_module("hpcgnn.plan.command")
    return int(planning.main(options))
