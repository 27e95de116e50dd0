"""Fields of configuration sections, and the checks of their values."""

from collections.abc import Iterable
from dataclasses import field
from typing import TypeVar

from hpcgnn.errors import InputError

__all__ = ["choice", "option", "require"]

T = TypeVar("T")


def option(default: T, meaning: str) -> T:
    """Return a dataclass field with a default and the text that ``--keys`` shows."""
    made: T = field(default=default, metadata={"meaning": meaning})
    return made


def require(holds: bool, key: str, value: object, remedy: str) -> None:
    """Raise an `InputError` naming the key, its value and the remedy unless `holds`."""
    if not holds:
        raise InputError(f"{key} = {value!r}: {remedy}")


def choice(key: str, value: str, choices: Iterable[str]) -> None:
    """Require one of `choices`."""
    names = list(choices)
    require(value in names, key, value, f"choose one of {', '.join(names)}")
