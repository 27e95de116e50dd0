"""Reading and writing configurations: TOML, overrides, and errors that name the nearest key."""

import dataclasses
import difflib
import json
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError
from hpcgnn.train.config import Config

__all__ = ["config_from_tables", "describe_keys", "dump_toml", "load_config"]

_SECTIONS: Mapping[str, type] = types.MappingProxyType(dict(typing.get_type_hints(Config)))


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration.

    Not collective.

    Parameters
    ----------
    path
        A TOML file; None starts from the defaults.
    overrides
        ``section.key=value`` with a TOML value; a bare word is a string.

    Raises
    ------
    InputError
        On an unreadable file, a syntax error, an unknown or ill-typed key (naming the nearest one),
        or a value out of range.
    """
    tables: dict[str, dict[str, Any]] = {}
    if path is not None:
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"configuration {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"configuration {path} is not valid TOML: {error}") from error
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise InputError(f"override {override!r}: write section.key=value")
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise InputError(f"configuration {path}: {section} must be a table, [{section}]")
        table[name] = _parse_value(text.strip())
    return config_from_tables(tables)


def config_from_tables(tables: Mapping[str, Any]) -> Config:
    """Build a configuration from a mapping of sections.

    Not collective.

    Raises
    ------
    InputError
        As in `load_config`.
    """
    sections = {}
    for section, table in tables.items():
        _known(section, _SECTIONS, "section")
        if not isinstance(table, Mapping):
            raise InputError(f"{section} must be a table, [{section}], not {table!r}")
        sections[section] = dict(table)
    built = {}
    for section, kind in _SECTIONS.items():
        hints = typing.get_type_hints(kind)
        values = {}
        for key, value in sections.get(section, {}).items():
            _known(key, hints, f"key in [{section}]")
            values[key] = _typed(f"{section}.{key}", value, hints[key])
        built[section] = kind(**values)
    return Config(**built)


def dump_toml(config: Config) -> str:
    """Return the resolved configuration as TOML that `load_config` reads back equal."""
    lines = []
    for section in dataclasses.fields(config):
        lines.append(f"[{section.name}]")
        table = dataclasses.asdict(getattr(config, section.name))
        lines += [f"{key} = {_dump_value(value)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def describe_keys() -> list[tuple[str, str, str]]:
    """Return (section.key, default, meaning) of every key."""
    rows = []
    for section, kind in _SECTIONS.items():
        for each in dataclasses.fields(kind):
            default = json.dumps(each.default)
            rows.append((f"{section}.{each.name}", default, each.metadata["meaning"]))
    return rows


def _dump_value(value: Any) -> str:
    # The JSON form of a bool, number, string or list is TOML as well, but for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _known(name: str, known: Mapping[str, Any], what: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise InputError(f"unknown {what}: {name!r}; did you mean {near[0]!r}?")


def _typed(key: str, value: Any, hint: Any) -> Any:
    origin = typing.get_origin(hint)
    if origin is tuple:
        item = typing.get_args(hint)[0]
        values = value if isinstance(value, list | tuple) else [value]
        return tuple(_typed(key, each, item) for each in values)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise InputError(f"{key} = {value!r}: expected {hint.__name__}, not {type(value).__name__}")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{key} = {value!r}: is not valid UTF-8; choose another name"
            ) from None
    return value
