"""Declare options of configuration sections, and check their values."""

import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from math import inf
from typing import Annotated, Any, TypeAlias, TypeVar

from hpcgnn.errors import InputError, instead_of
from hpcgnn.support import Declares

T = TypeVar("T")

_INTEGERS_END = 1 << 63

_TYPE_NAMES = {
    int: "a whole number",
    float: "a number such as 0.5",
    str: "text",
    bool: "true or false",
}

Declared: TypeAlias = Declares | Mapping[Any, Declares] | Callable[[Any], Declares]
"""Traits of an option's values: of all except the default, of those in a mapping, or a function."""


@dataclass(frozen=True)
class Range:
    """The allowed numbers of an option, as an annotation of its type; `remedy` describes them."""

    holds: Callable[[Any], bool]
    remedy: str


Count = Annotated[int, Range(lambda value: value >= 1, "must be at least 1")]
Natural = Annotated[int, Range(lambda value: value >= 0, "must not be negative")]
Amount = Annotated[float, Range(lambda v: 0 <= v < inf, "must be finite and not negative")]
Positive = Annotated[float, Range(lambda value: 0 < value < inf, "must be positive")]
Share = Annotated[float, Range(lambda value: 0 <= value <= 1, "must lie in [0, 1]")]
Part = Annotated[float, Range(lambda value: 0 < value <= 1, "must lie in (0, 1]")]
Chance = Annotated[float, Range(lambda value: 0 <= value < 1, "must lie in [0, 1)")]
OpenShare = Annotated[float, Range(lambda value: 0 < value < 1, "must lie in (0, 1)")]


def option(
    default: T,
    meaning: str,
    values: Collection[T] = (),
    traits: Declared | None = None,
    only_with: Mapping[str, Collection[str]] | None = None,
    read_with: Mapping[str, Collection[Any]] | None = None,
) -> T:
    """Return a dataclass field with a default and the `meaning` that ``--keys`` shows.

    `values` are the choices, see `check_values`; empty: any. `traits` are those that values need
    and lack. `only_with` maps another option of the section to the values that allow this one to
    differ from its default. `read_with` likewise has the values with which it has an effect, see
    `hpcgnn.config.run_features.unread`.
    """
    data = {"meaning": meaning, "values": values, "traits": traits, "only_with": only_with or {}}
    return field(default=default, metadata={**data, "read_with": read_with or {}})


def require(holds: bool, key: str, value: object, remedy: str) -> None:
    """Raise an `InputError` naming the key, its value and the remedy unless `holds`."""
    if not holds:
        written = list(value) if isinstance(value, tuple) else value
        raise InputError(f"{key} = {written!r}: {remedy}")


def choice(key: str, value: str, choices: Iterable[str]) -> None:
    """Require one of `choices`."""
    names = list(choices)
    if value not in names:
        require(False, key, value, instead_of(str(value), list(map(str, names))))


def check_values(section: str, options: Any, but: Collection[str] = ()) -> None:
    """Check choices, ranges and `only_with` of all options; no choices for those in `but`."""
    for key, values, ranges, only_with in _checks(options.__class__):
        name, value = f"{section}.{key.name}", getattr(options, key.name)
        if values and key.name not in but:
            choice(name, value, values)
        for within in ranges:
            require(within.holds(value), name, value, within.remedy)
        for other, allowed in only_with.items():
            works = value == key.default or getattr(options, other) in allowed
            require(works, name, value, f"needs {section}.{other}={' or '.join(allowed)}")


@cache
def _checks(section: type) -> list[tuple[Field[Any], Collection[Any], tuple[Range, ...], Any]]:
    """Return the options of a section that are checked: choices, ranges, and `only_with`."""
    hints = typing.get_type_hints(section, include_extras=True)
    checks = (
        (
            key,
            key.metadata.get("values", ()),
            getattr(hints[key.name], "__metadata__", ()),
            key.metadata.get("only_with", {}),
        )
        for key in fields(section)
    )
    return [check for check in checks if any(check[1:])]


def known(name: str, names: Collection[str], what: str) -> None:
    """Raise an `InputError` that lists `names` unless `name` is one of them."""
    if name not in names:
        raise InputError(f"unknown {what}: {name!r}; {instead_of(name, names)}")


def typed(key: str, value: Any, hint: Any) -> Any:
    """Return a TOML value as the type `hint`, integers also as floats; raises `InputError`."""
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(typed(key, value, item) for value in values)
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
        expected = " or ".join(_TYPE_NAMES.get(kind, kind.__name__) for kind in kinds)
        raise InputError(f"{key} = {value!r}: expected {expected}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{key} = {value!r}: is not valid UTF-8; choose another name"
            ) from None
    return value
