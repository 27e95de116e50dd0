"""Start the planning command; rehearsals are forks of this process, which imports training once."""

import argparse
import importlib
import sys

from hpcgnn.plan.forks import FORK, serve

_REHEARSAL = "hpcgnn.plan.rehearsal"


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if "torch" not in sys.modules:
        # Serve forks before importing planning itself, which ranks would not have in memory.
        importlib.import_module(_REHEARSAL)
        serve()
    else:
        # torch was imported earlier, so this process may have threads, which forks would lack.
        FORK.set_forkserver_preload([_REHEARSAL])
    planning = importlib.import_module("hpcgnn.plan.command")
    return int(planning.main(options))
