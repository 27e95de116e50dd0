"""The arguments that every command takes, and one line for a fault in them."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from hpcgnn import console
from hpcgnn.errors import USAGE_ERROR, CollectiveExit
from hpcgnn.spmd import is_first

TRUST_CODE = (
    "import the modules of the run, where model.name, exchange.method or train.task is "
    "module:NAME; their code runs with your rights"
)
"""The help of the option of commands that open saved models."""


class CommandParser(argparse.ArgumentParser):
    """A parser with ``-v`` and ``-q``, whose errors are one line each.

    The first process of a launcher alone prints them, and the help.

    Parameters
    ----------
    command
        The words behind ``hpcgnn``, such as ``analyse report``.
    description
        What it does.
    intermixed
        Whether words may stand between options.
    more
        As of `argparse.ArgumentParser`. Beside an epilog, lines are kept as they are written.
    """

    def __init__(
        self,
        command: str = "",
        description: str | None = None,
        *,
        intermixed: bool = False,
        **more: Any,
    ) -> None:
        # Parsers of subcommands get theirs from argparse.
        more.setdefault("prog", f"hpcgnn {command}")
        if "epilog" in more:
            more.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(description=description, **more)
        self._intermixed = intermixed
        choice = self.add_mutually_exclusive_group()
        for flags, level, meaning in (
            (("-v", "--verbose"), logging.DEBUG, "say more of what goes on"),
            (("-q", "--quiet"), logging.WARNING, "only warnings, errors and results"),
        ):
            choice.add_argument(*flags, action=_Verbosity, nargs=0, const=level, help=meaning)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Return the arguments that the words of a command give."""
        return self.parse_intermixed_args(words) if self._intermixed else self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        """End the command with one line; the usage, of up to 15, is what --help shows."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; see {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End all ranks, which have read the same arguments."""
        if message:
            self._print_message(message, sys.stderr)
        raise CollectiveExit(status)

    def _print_message(self, message: str, file: Any = None) -> None:
        if is_first(os.environ):
            super()._print_message(message, file)


class _Verbosity(argparse.Action):
    def __call__(self, *_: Any) -> None:
        console.show_from(self.const)


def comma_separated(text: str) -> tuple[str, ...]:
    """Return the words of an argument such as ``A,B``, for argparse."""
    return tuple(text.split(","))
