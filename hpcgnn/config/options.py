"""Fields of configuration sections, and the checks of their values."""

import typing
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Any, TypeVar

from hpcgnn.errors import InputError, instead_of

T = TypeVar("T")

_INTEGERS_END = 1 << 63


def option(default: T, meaning: str) -> T:
    """Return a dataclass field with a default and the text that ``--keys`` shows."""
    return field(default=default, metadata={"meaning": meaning})


def require(holds: bool, key: str, value: object, remedy: str) -> None:
    """Raise an `InputError` naming the key, its value and the remedy unless `holds`."""
    if not holds:
        raise InputError(f"{key} = {value!r}: {remedy}")


def choice(key: str, value: str, choices: Iterable[str]) -> None:
    """Require one of `choices`."""
    names = list(choices)
    require(value in names, key, value, f"choose one of {', '.join(names)}")


def known(name: str, names: Collection[str], what: str) -> None:
    """Raise an `InputError` that says which `names` there are unless `name` is one of them."""
    if name not in names:
        raise InputError(f"unknown {what}: {name!r}; {instead_of(name, names)}")


def typed(key: str, value: Any, hint: Any) -> Any:
    """Return a value of TOML as the type `hint`, an integer as a float too; else raise."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(typed(key, each, item) for each in values)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{key} = {value!r}: expected a table, [{key}]")
        return dict(value)
    if isinstance(value, int) and abs(value) >= _INTEGERS_END:
        raise InputError(f"{key}: an integer of {value.bit_length()} bits is too large")
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    kinds = typing.get_args(hint) or (hint,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        due = " or ".join(each.__name__ for each in kinds)
        raise InputError(f"{key} = {value!r}: expected {due}, not {type(value).__name__}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{key} = {value!r}: is not valid UTF-8; choose another name"
            ) from None
    return value
