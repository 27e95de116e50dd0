"""Read and write configurations: TOML, overrides, and errors that suggest the nearest key."""

import dataclasses
import functools
import json
import tomllib
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcgnn.config.command_line import value_of
from hpcgnn.config.config import Config
from hpcgnn.config.options import known, typed
from hpcgnn.errors import InputError, instead_of, meant_by

_SECTIONS: Mapping[str, type] = dict(typing.get_type_hints(Config))
_REPLACED = {
    ("train", "activations"): (None, "train.precision=bfloat16 has replaced it, for all rows"),
    ("train", "weight_decay_layers"): (
        "all",
        "write train.weight_decay=0 and train.weight_decays=['layers.0.*=NUMBER'], with node types "
        "'inputs.*=NUMBER' too; in the config.toml of a run likewise",
    ),
}
"""Keys of earlier versions, with the value that has no effect, and what replaces others."""

_NAMES = ("graph.split", "train.splits")
_hints = functools.cache(typing.get_type_hints)

OWN_CODE = (("model", "name"), ("exchange", "method"), ("train", "task"))
"""Keys whose values may name a user's module, which is imported when the configuration is read."""


def config_of(words: Sequence[str], before: Sequence[str] = ()) -> Config:
    """Read the configuration from words of a command line: a file, and ``section.key=value``.

    Overrides take precedence over the file and over those in `before`. Raises `InputError` as
    `load_config` does, and for more than one file.
    """
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        named = " ".join(files)
        raise InputError(f"more than one configuration file: {named}; give one, and KEY=VALUE")
    overrides = [*before, *(word for word in words if "=" in word)]
    return load_config(files[0] if files else None, overrides)


def load_config(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    trusted: Collection[str] | None = None,
) -> Config:
    """Read a configuration.

    Raises `InputError` for an unreadable file, a syntax error, an unknown or ill-typed key (naming
    the nearest one), a value out of range, or a module that is not trusted. `path` None starts from
    the defaults. `overrides` are ``section.key=value`` with a TOML value; a bare word is a string.
    Only ``package.module:NAME`` in `trusted` may be imported; None: any.
    """
    tables: dict[str, dict[str, Any]] = {}
    if path is not None:
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except IsADirectoryError:
            inside = Path(path, "config.toml")
            raise InputError(
                f"configuration {path} is a directory; a run directory has {inside}"
            ) from None
        except OSError as error:
            raise InputError(f"configuration {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            remedy = f"; a store is given as graph.store={path}" * (Path(path).suffix == ".h5")
            raise InputError(f"configuration {path} is not valid TOML: {error}{remedy}") from error
    for override in overrides:
        key, equals, text = override.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot:
            nearest = meant_by(key.strip(), all_keys())
            remedy = " or ".join(f"{key}={text}" for key in nearest) or "section.key=value"
            raise InputError(f"override {override!r}: write {remedy}")
        table = tables.setdefault(section, {})
        if not isinstance(table, dict):
            raise InputError(f"configuration {path}: {section} must be a table, [{section}]")
        inner, _, option = name.partition(".")
        if option and _is_table(section, inner):
            table, name = table.setdefault(inner, {}), option
            if not isinstance(table, dict):
                raise InputError(f"override {override!r}: {section}.{inner} is not a table")
        table[name] = value_of(text.strip())
    if trusted is not None:
        refuse_code(str(path), tables, trusted)
    return config_from_tables(tables)


def refuse_code(origin: str, tables: Mapping[str, Any], trusted: Collection[str] = ()) -> None:
    """Refuse a configuration that names a module, before anything is imported.

    Raises `InputError` if a value of `OWN_CODE` has a colon and is not in `trusted`. `origin` names
    the source of the configuration in the message.
    """
    for section, key in OWN_CODE:
        table = tables.get(section)
        value = table.get(key) if isinstance(table, Mapping) else None
        if isinstance(value, str) and ":" in value and value not in trusted:
            remedy = "use another run.dir" if trusted else "if you trust it, give --trust-code"
            raise InputError(
                f"{origin}: {section}.{key} = {value!r} names a module, whose code would run; "
                f"{remedy}"
            )


def config_from_tables(tables: Mapping[str, Any]) -> Config:
    """Build a configuration from a mapping of sections.

    Raises `InputError` as in `load_config`.
    """
    sections = {}
    for section, table in tables.items():
        known(section, _SECTIONS, "section")
        if not isinstance(table, Mapping):
            raise InputError(f"{section} must be a table, [{section}], not {table!r}")
        sections[section] = dict(table)
    built = {}
    for section, kind in _SECTIONS.items():
        hints = _hints(kind)
        values = {}
        for key, value in sections.get(section, {}).items():
            if (section, key) in _REPLACED:
                default, remedy = _REPLACED[section, key]
                if value == default:
                    continue
                raise InputError(f"{section}.{key} is no longer a key: {remedy}")
            full = f"{section}.{key}"
            if key not in hints:
                remedy = instead_of(full, all_keys() if meant_by(full, all_keys()) else hints)
                raise InputError(f"unknown key: {full!r}; {remedy}")
            values[key] = typed(full, names_of(value) if full in _NAMES else value, hints[key])
        built[section] = kind(**values)
    return Config(**built)


def names_of(value: Any) -> Any:
    """Return the names in a value as text; names of splits are often numbers."""
    if isinstance(value, list):
        return [names_of(item) for item in value]
    return str(value) if type(value) is int else value


def dump_toml(config: Config) -> str:
    """Return the resolved configuration as TOML; `load_config` reads it back unchanged."""
    lines = []
    for section in dataclasses.fields(config):
        lines.append(f"[{section.name}]")
        table = dataclasses.asdict(getattr(config, section.name))
        lines += [f"{key} = {dump_value(value)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def describe_keys() -> list[tuple[str, str, str]]:
    """Return (section.key, default, meaning) of every key."""
    rows = []
    for section, kind in _SECTIONS.items():
        for option in dataclasses.fields(kind):
            default = "{}" if option.default is dataclasses.MISSING else json.dumps(option.default)
            rows.append((f"{section}.{option.name}", default, option.metadata["meaning"]))
    return rows


def all_keys() -> list[str]:
    """Return every ``section.key``."""
    return [key for key, _, _ in describe_keys()]


def _is_table(section: str, key: str) -> bool:
    """Tell whether the value of a key is itself a table, like model.options."""
    hints = _hints(_SECTIONS[section]) if section in _SECTIONS else {}
    return typing.get_origin(hints.get(key)) is dict


def dump_value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump_value(k)} = {dump_value(v)}" for k, v in value.items()) + "}"
    # The JSON form of a bool, number, string or list is also TOML, except for this character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
