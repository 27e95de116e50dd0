"""Options of the conversion of programs, and reproducible random choices."""

import hashlib
from dataclasses import dataclass
from typing import Literal

Granularity = Literal["function", "definition", "file"]
GRANULARITIES: tuple[Granularity, ...] = ("function", "definition", "file")


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Options that decide which instances are made; ``hpcgnn convert programs --help`` has each.

    `granularity` is the snippet around a hole: its outermost function, its top-level statement (a
    class with all its methods, for example), or the whole file.
    """

    granularity: Granularity = "definition"
    steps: int = 8
    functions_per_file: int = 3
    holes_per_function: int = 1
    max_candidates: int = 8
    max_nodes: int = 18_582
    num_buckets: int = 8192
    valid_share: float = 0.1
    test_share: float = 0.1
    unseen_share: float = 0.15
    seed: int = 0


def draw(*parts: object) -> int:
    """Return 64 pseudo-random bits that depend only on `parts`."""
    text = "\0".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
