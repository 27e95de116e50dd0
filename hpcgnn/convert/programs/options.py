"""Options of the conversion of programs, and reproducible random choices."""

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Granularity = Literal["function", "definition", "file"]
GRANULARITIES: tuple[Granularity, ...] = ("function", "definition", "file")


def _choice(default: Any, about: str, least: int | None = 0) -> Any:
    return field(default=default, metadata={"about": about, "least": least})


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Options that decide which instances are made; the metadata of each field describes it.

    `granularity` is the snippet around a hole: its outermost function, its top-level statement (a
    class with all its methods, for example), or the whole file.
    """

    granularity: Granularity = "definition"
    steps: int = _choice(
        8, "steps of message passing; nodes that reach no candidate in so many are dropped"
    )
    functions_per_file: int = _choice(3, "functions with holes in a file, 0: all")
    holes_per_function: int = _choice(1, "holes in a function, 0: all")
    max_candidates: int = _choice(8, "variables that a hole offers", least=2)
    max_nodes: int = _choice(18_582, "larger graphs are dropped", least=2)
    num_buckets: int = _choice(8192, "buckets of hashed sub-tokens", least=1)
    valid_share: float = _choice(0.1, "files of seen packages for validation")
    test_share: float = _choice(0.1, "files of seen packages for testing")
    unseen_share: float = _choice(0.15, "files, in whole packages, that are kept apart")
    seed: int = _choice(0, "seed of all random choices", least=None)


NUMBERS = tuple(option for option in fields(ProgramOptions) if option.metadata)
"""The options that are numbers."""


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return f"--{name.replace('_', '-')}"


def draw(*parts: object) -> int:
    """Return 64 pseudo-random bits that depend only on `parts`."""
    text = "\0".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
