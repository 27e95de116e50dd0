"""Find configuration keys in the words of a command, before torch and MPI are loaded."""

import contextlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def given(words: Sequence[str], section: str, name: str) -> Iterator[Any]:
    """Yield the values that words give to ``section.name``; the last one has precedence.

    A word is a TOML file, a run directory with one, or an override. Unreadable words yield nothing;
    the command itself reports them later.
    """
    # Overrides come last, since they have precedence.
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
    """Return an override's text as a TOML value, or the text itself if it is not TOML."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


COMMON: Mapping[str, tuple[str, str]] = {
    "graph.store": ("web.4.h5", "a graph in as many parts as ranks, or more"),
    "run.dir": ("runs/web", "folder of results; the same folder resumes"),
    "train.task": ("links", "full, sampled, links, edges, graphs, fields"),
    "model.name": ("gat", "the model"),
    "model.hidden": ("256", "its width"),
    "model.num_layers": ("3", "its depth"),
    "model.dropout": ("0.2", "more against over-fitting"),
    "train.epochs": ("200", "passes over the training nodes"),
    "train.learning_rate": ("0.003", "less if the loss jumps"),
    "graph.relations": ("cites", "edges to use, of those in the store"),
    "exchange.method": ("joint", "which rows travel; or auto"),
    "run.threads": ("2", "of each rank"),
}
"""Frequent keys, each with an example of a value and a description."""

EXAMPLES = "\n".join(f"  {f'{key}={value}':<33}{about}" for key, (value, about) in COMMON.items())
"""A line of help for each key of `COMMON`."""
