"""What the words of a command give a key, read before torch and MPI are there."""

import contextlib
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def given(words: Sequence[str], section: str, name: str) -> Iterator[Any]:
    """Yield the values that words give to ``section.name``; the last one counts most.

    A word is a file of TOML, a run directory with one, or an override. What does not read gives
    nothing: the command itself will say so, with all there is to check by.
    """
    # What the command line says counts most.
    for word in sorted(words, key=lambda word: "=" in word):
        key, equals, text = word.partition("=")
        if equals:
            if key.strip() == f"{section}.{name}":
                yield value_of(text.strip())
            continue
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            file = Path(word, "config.toml") if Path(word).is_dir() else Path(word)
            if file.suffix == ".toml":
                yield tomllib.loads(file.read_text("utf-8"))[section][name]


def value_of(text: str) -> Any:
    """Return what an override's text means: TOML, or else the text itself, such as a path."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
