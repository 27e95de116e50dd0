"""The choices that a conversion of programs takes."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["GRANULARITIES", "Granularity", "ProgramOptions"]

Granularity = Literal["function", "definition", "file"]
GRANULARITIES: tuple[Granularity, ...] = ("function", "definition", "file")


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """What becomes an instance.

    Parameters
    ----------
    granularity
        The snippet around a hole: its outermost function, the outermost top-level statement
        (a class with all its methods, say), or the whole file.
    steps
        Nodes from which no candidate is reached in so many steps are dropped.
    functions_per_file, holes_per_function
        At most so many; 0: all.
    max_candidates
        The nearest variables that a hole offers, at least 2.
    max_nodes
        Larger graphs are dropped.
    num_buckets
        Sub-tokens are hashed into so many, at most 65,536.
    valid_share, test_share
        Shares of the files of seen packages.
    unseen_share
        Share of the files that whole packages are kept for, none of which is trained on.
    seed
        Of every choice by chance.
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
