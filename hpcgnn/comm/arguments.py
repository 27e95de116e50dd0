"""Command-line arguments under MPI: every rank parses, rank 0 alone speaks."""

import argparse
from typing import Any

from mpi4py import MPI

__all__ = ["RankArgumentParser"]


class RankArgumentParser(argparse.ArgumentParser):
    """An argument parser whose help and errors are printed once.

    Not collective: all ranks have the same arguments, so all end alike.
    """

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)
