"""The exceptions that a user can cause, and how every command ends.

A fault of the user's is one line. Anything else that escapes is a defect of the project and keeps
its traceback.
"""

import contextlib
import difflib
import signal
from collections.abc import Collection, Iterator, Sequence

USAGE_ERROR = 2
"""Exit status for a fault of the user's input."""

MACHINE_FAULT = 76
"""Exit status of a run that a machine failed, not its input: start the same command again."""

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a command that SIGTERM ended: its files are cleaned up first."""


class InputError(ValueError):
    """The user's input or environment is at fault.

    The message is one line that names the thing (file, field, value) and the remedy.
    """


class StorageFormatError(InputError):
    """A file is not what its name promises: wrong format, version, shape or checksum."""


class CollectiveInputError(InputError):
    """A fault of the user's input that all ranks raise together; rank 0 alone reports it."""

    status = USAGE_ERROR


class MachineError(CollectiveInputError):
    """A fault of a machine, not of the input, which all ranks notice together."""

    status = MACHINE_FAULT


class CollectiveExit(SystemExit):
    """An exit of all ranks together, as after printing help."""


_NEAR = 0.6
"""Likeness of two names, of 1, from which one may have been meant for the other."""

_MOST_NAMES = 32

_LONGEST_MESSAGE = 2000

_NAMED = 3


def instead_of(name: str, names: Collection[str], listed_by: str = "") -> str:
    """Return a remedy for an unknown name: the near one, or else the names there are.

    Parameters
    ----------
    names
        Those that would do.
    listed_by
        The command that lists them when they are too many for a line.
    """
    near = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    if near:
        return f"did you mean {near[0]!r}?"
    if not names:
        return "there are none"
    told = ", ".join(sorted(names)[:_MOST_NAMES])
    if len(names) <= _MOST_NAMES:
        return f"choose one of {told}"
    rest = f"{len(names) - _MOST_NAMES:,} more"
    return f"choose one of {told} or {rest}" + (f" ({listed_by} lists them)" if listed_by else "")


def named(missing: Sequence[object]) -> str:
    """Return what is missing as a list for a message, the first three by name: 5, 6, 7 and 1 more.

    Names that are strings are quoted.
    """
    told = ", ".join(map(repr, missing[:_NAMED]))
    more = len(missing) - _NAMED
    return f"{told} and {more:,} more" if more > 0 else told


def one_line(error: BaseException) -> str:
    """Return the message of `error` without line breaks, its middle left out where it is long."""
    text = printable(" ".join(str(error).split()))
    half = _LONGEST_MESSAGE // 2
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def printable(text: str) -> str:
    """Return text with control characters escaped: names in a file may hold a terminal's orders."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text
    )


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Leave the block by `SystemExit` at SIGTERM, so that half-written files are removed."""

    def leave(number: int, _frame: object) -> None:
        # Launchers repeat it; a second one must not interrupt the cleaning.
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
