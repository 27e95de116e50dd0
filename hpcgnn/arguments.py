"""The arguments that every command takes, and one line for a fault in them."""

import argparse
import logging
from typing import Any, NoReturn

from hpcgnn import log
from hpcgnn.errors import USAGE_ERROR


class CommandParser(argparse.ArgumentParser):
    """A parser with ``-v`` and ``-q``, whose errors are one line each.

    Parameters
    ----------
    command
        The words behind ``hpcgnn``, such as ``analyse report``.
    description, more
        As of `argparse.ArgumentParser`.
    """

    def __init__(self, command: str = "", description: str | None = None, **more: Any) -> None:
        # Parsers of subcommands get theirs from argparse.
        more.setdefault("prog", f"hpcgnn {command}")
        super().__init__(description=description, **more)
        choice = self.add_mutually_exclusive_group()
        for flags, level, meaning in (
            (("-v", "--verbose"), logging.DEBUG, "say more of what goes on"),
            (("-q", "--quiet"), logging.WARNING, "only warnings, errors and results"),
        ):
            choice.add_argument(*flags, action=_Verbosity, nargs=0, const=level, help=meaning)

    def error(self, message: str) -> NoReturn:
        """End the command with one line; the usage, of up to 15, is what --help shows."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class _Verbosity(argparse.Action):
    def __call__(self, *_: Any) -> None:
        log.show_from(self.const)
