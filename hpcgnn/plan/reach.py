"""How much of a graph of which only degrees are known the training loss reaches, layer by layer."""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcgnn.plan.shape import Ends, Entries
from hpcgnn.plan.traffic import PatternKey
from hpcgnn.typing import Array


class Reach:
    """The active sets ``S_0 .. S_L`` of random training nodes, in expectation.

    A node is in ``S_l`` if it trains or has a neighbour in ``S_(l+1)``: neighbours are drawn in
    proportion to their degrees.

    Parameters
    ----------
    training
        (types,) the share of the nodes that trains.
    entries
        Of the matrix.
    depth, last
        L, and how many of the last layers are cut to these sets, see `active_sets`; L = 0: none.
    """

    def __init__(self, training: Array, entries: Sequence[Entries], depth: int, last: int) -> None:
        self._training, self._entries, self.depth = training, entries, depth
        whole = depth - last + (last < depth)
        # Of each set the share of the rows' ends in the next one; None: a set of all nodes.
        self._next: list[list[float] | None] = [None] * (depth + 1)
        for level in range(depth, whole - 1, -1):
            following = [0.0] * len(entries)
            if level < depth:
                following = [self.active(level + 1, each) for each in entries]
            self._next[level] = following

    @property
    def keys(self) -> tuple[PatternKey, ...]:
        """The patterns that are restricted; number l has rows ``S_(l+1)`` and columns ``S_l``."""
        return tuple(
            (place, "in") for place in range(self.depth) if self._next[place + 1] is not None
        )

    def active(self, level: int | None, entries: Entries) -> float:
        """Return the share of some entries that are in rows of a set; None: all nodes."""
        ends = entries.rows
        return float(ends.degrees * ends.counts @ self.of_degrees(level, ends) / max(ends.total, 1))

    def of_degrees(self, level: int | None, ends: Ends) -> Array:
        """Return (classes,) the share of the nodes of some degrees that a set has."""
        return self.of_nodes(level, ends.type, {ends: ends.degrees})

    def of_type(self, level: int | None, kind: int) -> float:
        """Return the share of the nodes of a type that a set has."""
        return float(self.of_nodes(level, kind, {}))

    def of_nodes(self, level: int | None, kind: int, degrees: Mapping[Ends, Array]) -> Array:
        """Return (nodes,) the probability that nodes of a type are in a set.

        Parameters
        ----------
        level
            Of the set; None: all nodes.
        degrees
            (nodes,) each, of some ends; of others they are any.
        """
        following = None if level is None else self._next[level]
        some = next(iter(degrees.values()), np.float64(0))
        if following is None:
            return np.ones_like(some)
        missed = np.full_like(some, 1 - self._training[kind])
        for each, share in zip(self._entries, following, strict=True):
            ends = each.columns
            if ends.type == kind and ends in degrees:
                missed = missed * (1 - share) ** degrees[ends]
            elif ends.type == kind:
                missed = missed * ((1 - share) ** ends.degrees @ ends.counts / ends.counts.sum())
        return np.asarray(1 - missed)
