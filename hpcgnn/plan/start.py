"""Start of the command: what is forked for rehearsals imports beside what plans."""

import argparse
import importlib
import multiprocessing
from multiprocessing import forkserver

FORK = multiprocessing.get_context("forkserver")
"""Imports are made once, by a process that does nothing else; its forks hold nothing of others."""


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    FORK.set_forkserver_preload(["hpcgnn.plan.rehearsal"])
    forkserver.ensure_running()
    planning = importlib.import_module("hpcgnn.plan.command")
    return int(planning.main(options))
