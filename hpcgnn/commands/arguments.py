"""Read the arguments of commands, declared in a TOML file for each, with one-line errors.

``NAME.toml`` has the parameters of `argparse.ArgumentParser.add_argument` under
``arguments.FLAGS``, except for:

type
    A key of `TYPES`, or ``module:function``.
choices, default
    Values, or a reference ``module:NAME`` to them.
each_of
    The allowed words of a comma-separated argument, or references ``module:NAME`` to them.
least
    The smallest allowed number.
group
    The title of its group in the help.

``kinds.NAME`` are subcommands with their own ``arguments``; ``about`` is their help, and all other
entries are defaults, like those in ``defaults``. Of the arguments in an ``exclusive`` list at most
one may be given, of those in a ``one_of`` list exactly one. ``examples`` are commands for the end
of the help. Defaults other than None are appended to the help of their argument. In texts
``{module:NAME}`` is replaced by names, and ``{about module:NAME}`` by a line for each item of a
mapping with its ``about``.
"""

import argparse
import importlib
import logging
import os
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from textwrap import fill
from typing import Any, NoReturn

from hpcgnn import console
from hpcgnn.config.command_line import COMMON
from hpcgnn.errors import ELSEWHERE, USAGE_ERROR, CollectiveExit, instead_of, meant_by
from hpcgnn.spmd import is_first

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_REFERENCE = re.compile(r"\{(about )?(hpcgnn[\w.]*:\w+)\}")


class CommandParser(argparse.ArgumentParser):
    """A parser with ``-v`` and ``-q`` and one-line errors.

    Only the first process of a launcher prints errors and the help. `command` are the words after
    ``hpcgnn``, such as ``analyse report``. If `intermixed`, positional words may come between
    options. `settings` are those of argparse; with an epilog, line breaks are kept.
    """

    def __init__(
        self,
        command: str = "",
        description: str | None = None,
        *,
        intermixed: bool = False,
        **settings: Any,
    ) -> None:
        # argparse sets `prog` for parsers of subcommands.
        settings.setdefault("prog", f"hpcgnn {command}")
        if "epilog" in settings:
            settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(description=description, **settings)
        self._intermixed = intermixed
        choice = self.add_mutually_exclusive_group()
        for flags, level, meaning in (
            (("-v", "--verbose"), logging.DEBUG, "print more about what goes on"),
            (("-q", "--quiet"), logging.WARNING, "print only warnings, errors and results"),
        ):
            choice.add_argument(*flags, action=_Verbosity, nargs=0, const=level, help=meaning)

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command."""
        return self.parse_intermixed_args(words) if self._intermixed else self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        """End the command with one line, without the usage, which may take 15 lines."""
        _, unknown, words = message.partition("unrecognized arguments: ")
        if unknown and (meant := self._meant_by(*words.split(" ")[:2])):
            message += f"; did you mean {meant}?"
        message += " see" if message.endswith("?") else "; see"
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message} {self.prog} --help\n")

    def _meant_by(self, word: str, value: str = "VALUE") -> str:
        """Return the option or key that an unknown word may stand for, "" for none."""
        if not word.startswith("-") and "=" not in word:
            return ""
        name = word.lstrip("-").partition("=")[0]
        options = {flag.lstrip("-"): flag for flag in self._option_string_actions}
        if option := meant_by(name, options):
            return options[option[0]]
        keys = (*COMMON, *(key for key in ELSEWHERE if "." in key)) if self._intermixed else ()
        return " or ".join(f"{key}={value}" for key in dict.fromkeys(meant_by(name, keys)))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            remedy = instead_of(str(value), list(map(str, action.choices)))
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {remedy}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End all ranks, which have read the same arguments."""
        if message:
            self._print_message(message, sys.stderr)
        # The help must be printed before status 0 says so.
        sys.stdout.flush()
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


def counts(text: str) -> tuple[int, ...]:
    """Return the positive numbers of an argument such as ``1,2``, for argparse."""
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers such as 1,2,4") from None
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text}: numbers must be at least 1")
    return numbers


def memory_bytes(text: str) -> int:
    """Return the bytes of an argument such as ``4GiB``, or ``512`` in MiB, for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?)?", text.strip(), re.IGNORECASE)
    size = 0 if match is None else int(float(match[1]) * _UNITS[(match[2] or "M").upper()])
    if size == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: write a size such as 4GiB or 3500M")
    return size


TYPES: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "path": Path,
    "words": comma_separated,
    "counts": counts,
    "bytes": memory_bytes,
}


@cache
def read_table(command: str) -> Mapping[str, Any]:
    """Return the content of a command's file; empty if it has none."""
    file = files("hpcgnn.commands") / "options" / f"{command.replace(' ', '_')}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def read_parser(command: str) -> CommandParser:
    """Return the parser that the file of a command declares."""
    table = read_table(command)
    about, epilog = (_wrapped(_filled(table.get(key, ""))) for key in ("description", "epilog"))
    examples = "".join(f"\n  {example}" for example in table["examples"])
    end = f"examples:{examples}\n\n{epilog}".strip()
    cli = CommandParser(command, about, epilog=end, intermixed=table.get("intermixed", False))
    cli.set_defaults(**table.get("defaults", {}))
    _add_arguments(cli, table)
    if "kinds" in table:
        kinds = cli.add_subparsers(title="kinds", metavar="KIND", required=True)
        for name, entry in table["kinds"].items():
            kind = kinds.add_parser(name, help=entry["about"], description=entry["about"])
            kind.set_defaults(**{key: entry[key] for key in entry.keys() - {"about", "arguments"}})
            _add_arguments(kind, entry)
    return cli


def _add_arguments(cli: argparse.ArgumentParser, table: Mapping[str, Any]) -> None:
    groups: dict[str, Any] = {}
    for required, key in ((False, "exclusive"), (True, "one_of")):
        for flags in table.get(key, ()):
            groups |= dict.fromkeys(flags, cli.add_mutually_exclusive_group(required=required))
    for flags, settings in table.get("arguments", {}).items():
        options = dict(settings)
        title = options.pop("group", None)
        if title is not None and title not in groups:
            groups[title] = cli.add_argument_group(title)
        groups.get(title or flags, cli).add_argument(*flags.split(), **_argument(options))


def _argument(options: dict[str, Any]) -> dict[str, Any]:
    kind, allowed, least = (options.pop(key, None) for key in ("type", "each_of", "least"))
    if kind == "flag":
        options["action"] = "store_true"
    elif allowed is not None:
        options["type"] = _each_of([name for value in allowed for name in _names(value)])
    elif kind is not None:
        read = TYPES[kind] if kind in TYPES else find_object(kind)
        options["type"] = read if least is None else _at_least(least, read)
    if isinstance(choices := options.get("choices"), str):
        options["choices"] = _names(choices)
    default = options.get("default")
    if options.get("action") == "append":
        options["default"] = []
    elif isinstance(default, str) and ":" in default:
        options["default"] = find_object(default)
    elif isinstance(default, list):
        options["default"] = tuple(name for value in default for name in _names(value))
    for key, between in (("metavar", ","), ("help", ", ")):
        if key in options:
            options[key] = _filled(options[key], between)
    if (default := options.get("default")) not in (None, "", [], ()):
        form = "g" if isinstance(default, float) else ""
        default_text = ",".join(default) if isinstance(default, tuple) else f"{default:{form}}"
        options["help"] = f"{options.get('help', '')} (default: {default_text})".strip()
    return options


def _wrapped(text: str) -> str:
    """Rewrap the lines of a text, except indented ones."""
    blocks = groupby(text.split("\n"), lambda line: line[:1] in ("", " "))
    return "\n".join(
        "\n".join(lines) if verbatim else fill(" ".join(lines), 79) for verbatim, lines in blocks
    )


def _about(key: str, text: str) -> str:
    return fill(text, 79, initial_indent=f"  {key:<17}", subsequent_indent=" " * 19)


def find_object(reference: str) -> Any:
    """Return the object ``module:NAME``."""
    module, _, name = reference.partition(":")
    return attrgetter(name)(importlib.import_module(module))


def _names(reference: str) -> list[str]:
    return list(find_object(reference)) if ":" in reference else [reference]


def _filled(text: str, between: str = ", ") -> str:
    def name(match: re.Match[str]) -> str:
        value = find_object(match[2])
        if match[1]:
            return "\n".join(_about(key, option.about) for key, option in value.items())
        return str(value) if isinstance(value, str | int | float) else between.join(value)

    return _REFERENCE.sub(name, text)


def _each_of(choices: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        words = comma_separated(text)
        for word in words:
            if word not in choices:
                raise argparse.ArgumentTypeError(f"{word!r}: {instead_of(word, choices)}")
        return words

    return names


def _at_least(least: int, read: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = read(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text}: at least {least}")
        return value

    number.__name__ = read.__name__
    return number
