"""What a command says while it runs: lines on standard error, and in the log of a run.

One logger of the standard library, named ``hpcgnn``, so that a program around it may add handlers
of its own. Results are no messages: they go to standard output.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from hpcgnn.errors import InputError, one_line, printable

LOGGER = logging.getLogger("hpcgnn")
"""Levels: DEBUG with ``-v``, INFO by default, WARNING with ``-q``."""


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is now: notebooks and tests change it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _RunLog(logging.FileHandler):
    """Lines with their time in UTC, also those that standard error does not show."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._path = path
        form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(message)s", "%Y-%m-%dT%H:%M:%S")
        form.converter = time.gmtime
        self.setFormatter(form)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Go on without the log: a disk without space is the checkpoint's to complain of."""
        LOGGER.removeHandler(self)
        warn(f"{self._path}: cannot be written ({sys.exception()}); the run goes on without it")


_ON_SCREEN = _StandardError()


def _set_up() -> None:
    LOGGER.setLevel(logging.DEBUG)
    LOGGER.propagate = False
    _ON_SCREEN.setLevel(logging.INFO)
    LOGGER.addHandler(_ON_SCREEN)


_set_up()


def show_from(level: int) -> None:
    """Show lines of `level` (of `logging`) and above on standard error from now on."""
    _ON_SCREEN.setLevel(level)


def shows(level: int) -> bool:
    """Return whether standard error shows lines of a level."""
    return level >= _ON_SCREEN.level


def detail(text: str) -> None:
    """Write a line that ``-v`` shows, and a run's log has in any case."""
    LOGGER.debug("%s", printable(text))


def report(text: str) -> None:
    """Write a line about what goes on; ``-q`` hides it."""
    LOGGER.info("%s", printable(text))


def warn(text: str) -> None:
    """Write a line that also ``-q`` shows: something is not as it was asked for."""
    LOGGER.warning("%s", printable(text))


@contextlib.contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Add all lines to the end of a file, and the fault that ends the block, if one does.

    Raises
    ------
    InputError
        When the file cannot be opened.
    """
    try:
        handler = _RunLog(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; choose another run.dir") from error
    LOGGER.addHandler(handler)
    try:
        yield
    except BaseException as error:
        screen, _ON_SCREEN.level = _ON_SCREEN.level, logging.CRITICAL + 1
        # Standard error has it from who catches it.
        LOGGER.error("%s", f"ended by {type(error).__name__}: {one_line(error)}")
        _ON_SCREEN.level = screen
        raise
    finally:
        LOGGER.removeHandler(handler)
        # A full disk has been told of.
        with contextlib.suppress(OSError):
            handler.close()
