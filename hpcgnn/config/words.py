"""Keys and values in the words of a command, before torch and MPI are there."""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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


COMMON: Mapping[str, tuple[str, str]] = {
    "graph.store": ("web.4.h5", "a graph in as many parts as ranks, or more"),
    "run.dir": ("runs/web", "where results go; the same again goes on"),
    "train.task": ("links", "full, sampled, links, edges, graphs, fields"),
    "model.name": ("gat", "the model"),
    "model.hidden": ("256", "its width"),
    "model.num_layers": ("3", "its depth"),
    "model.dropout": ("0.2", "more where it over-fits"),
    "train.epochs": ("200", "passes over the training nodes"),
    "train.learning_rate": ("0.003", "less where the loss jumps"),
    "graph.relations": ("cites", "edges to use, of those in the store"),
    "exchange.method": ("joint", "which rows travel; or auto"),
    "run.threads": ("2", "of each rank"),
}
"""Key -> an example of a value, and what it is."""

EXAMPLES = "\n".join(f"  {f'{key}={value}':<33}{about}" for key, (value, about) in COMMON.items())
"""A line for each of them."""
