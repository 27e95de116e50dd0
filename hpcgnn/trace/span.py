"""A span as its user sees it."""

from collections.abc import Sequence
from typing import Self, TypeAlias

__all__ = ["NO_SPAN", "Peers", "Span"]

Peers: TypeAlias = Sequence[Sequence[int]]
"""One ``(peer, rows, bytes)`` for each rank that this rank sends to."""


class Span:
    """A stretch of time, used as a context manager; this one is recorded by nobody."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def add(self, *, rows: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Count `rows` and `bytes` that became known inside the span."""


NO_SPAN = Span()
"""The only span of a recorder that is off: without state, so it can be shared and nested."""
