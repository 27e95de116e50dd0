"""The types of edges between the nodes of a program graph."""

import enum

__all__ = ["EDGE_NAMES", "EdgeType"]


class EdgeType(enum.IntEnum):
    """A forward type; the model adds the reverse of each, so that it sees twice as many.

    Tokens that stand for variables point back at earlier uses; what is computed points at what it
    is computed from.
    """

    CHILD = 0
    NEXT_TOKEN = 1
    LAST_READ = 2
    LAST_WRITE = 3
    LAST_LEXICAL_USE = 4
    COMPUTED_FROM = 5
    RETURNS_TO = 6
    FORMAL_ARG_NAME = 7
    GUARDED_BY = 8
    GUARDED_BY_NEGATION = 9


EDGE_NAMES = tuple(
    each.name.replace("_", " ").title().replace(" ", "") for each in sorted(EdgeType)
)
"""Child, NextToken, LastRead, ... in the order of their numbers."""
