"""Parts of a graph of which only degrees are known: how many nodes of each degree every part has.

Parts are random: which nodes a part has is drawn without replacement, degree by degree, and so
exactly as ``hpcgnn partition --method random`` would. A node of degree d is then needed by a part
with the share s of the nodes unless none of its d neighbours is there: 1 - (1 - s)^d, whatever the
graph is. A part with more ends than others needs more: this is in proportion to its ends.
"""

from functools import cached_property

import numpy as np

from hpcgnn.plan.shape import Ends, Shape
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

_FACTORS = (1, 2654435761, 2246822519, 3266489917, 668265263, 374761393, 4294967291)
"""Primes beyond any number of nodes; multiples of one order the nodes of a part by degree."""


class DrawnParts:
    """Random parts of a shape.

    Nodes are numbered part after part, and in a part type after type.

    Parameters
    ----------
    num_parts
        Of nearly equal numbers of nodes of each type.
    """

    def __init__(self, shape: Shape, num_parts: int) -> None:
        self.num_parts = num_parts
        nodes = np.array([each.num_nodes for each in shape.types], np.int64)
        spread = np.arange(num_parts) < (nodes % num_parts)[:, None]
        self.sizes: Array = nodes[:, None] // num_parts + spread
        """(types, parts) int64 nodes."""
        self.starts: Offsets = np.append(0, np.cumsum(self.sizes.sum(axis=0)))
        self.first: Array = self.starts[:-1] + np.cumsum(self.sizes, axis=0) - self.sizes
        """(types, parts) int64 first nodes."""
        self._ends: dict[Ends, DrawnEnds] = {}
        taken = [0] * len(shape.types)
        rng = np.random.default_rng([num_parts, 1])
        for edges in shape.edges:
            for ends in dict.fromkeys((edges.sources, edges.targets)):
                factor = _FACTORS[taken[ends.type] % len(_FACTORS)]
                taken[ends.type] += 1
                self._ends[ends] = DrawnEnds(ends, self.sizes[ends.type], factor, rng)

    def __getitem__(self, ends: Ends) -> "DrawnEnds":
        """Return how some ends of the shape are spread over the parts."""
        return self._ends[ends]

    def nodes_of(self, kind: int, part: int) -> slice:
        """Return the local numbers of the nodes of a type in a part."""
        first = int(self.first[kind, part] - self.starts[part])
        return slice(first, first + int(self.sizes[kind, part]))


class DrawnEnds:
    """How the nodes of each degree are spread over parts.

    Parameters
    ----------
    sizes
        (parts,) int64 nodes of the type.
    factor
        Orders the nodes of a part: node k is at place ``k factor`` of those by degree.
    """

    def __init__(self, ends: Ends, sizes: Array, factor: int, rng: np.random.Generator) -> None:
        self.ends, self.sizes, self._factor = ends, sizes, factor
        left = ends.counts.copy()
        drawn = np.empty((len(sizes), len(left)), np.int64)
        for part, size in enumerate(sizes):
            # Which nodes of those that are left; the last part has the rest.
            drawn[part] = rng.multivariate_hypergeometric(left, size, method="marginals")
            left -= drawn[part]
        self.drawn: Array = drawn
        """(parts, classes) int64 nodes of each degree."""

    @property
    def of_part(self) -> Array:
        """(parts,) float64 ends of each part."""
        return np.asarray(self.drawn @ self.ends.degrees)

    def degrees_of(self, part: int) -> Array:
        """Return (nodes of the type in the part,) float64 degrees."""
        size = int(self.sizes[part])
        places = np.arange(size) * self._factor % max(size, 1)
        bounds = np.cumsum(self.drawn[part])
        return self.ends.degrees[np.searchsorted(bounds, places, side="right")]

    def reached(
        self, ends: "DrawnEnds", active: float, outside: float, weights: Array | float = 1.0
    ) -> Array:
        """Return (parts j, parts i): nodes of part i that have a neighbour in part j, expected.

        Parameters
        ----------
        ends
            Of the neighbours.
        active
            The share of the neighbours' ends that counts.
        outside
            See `hpcgnn.plan.shape.Edges`; for it the diagonal is not right, and of no use.
        weights
            (classes,) how much the nodes of each degree count.
        """
        power = outside * self.ends.degrees

        def hit(shares: Array) -> Array:
            return np.asarray(1 - (1 - np.minimum(active * shares, 1))[:, None] ** power)

        by_ends = ends.of_part
        found = hit(by_ends / max(by_ends.sum(), 1))
        # Neighbours are distinct nodes; ends that are drawn alike would find hubs twice.
        right, mean = hit(ends.sizes / ends.sizes.sum()).mean(axis=0), found.mean(axis=0)
        found *= np.divide(right, mean, out=np.ones_like(mean), where=mean > 0)
        return np.asarray(np.minimum(found, 1) @ (weights * self.drawn).T)

    @cached_property
    def _cells(self) -> tuple[Array, Offsets, Array]:
        """The sums of ends up to each degree; where each part's nodes of a degree begin."""
        weights = np.cumsum(self.ends.degrees * self.ends.counts)
        by_class = np.append(0, np.cumsum(self.drawn.T.reshape(-1)))
        inside = np.cumsum(self.drawn, axis=1) - self.drawn
        return weights, by_class, inside

    @cached_property
    def _inverses(self) -> Array:
        return np.array([pow(self._factor, -1, int(n)) if n > 1 else 0 for n in self.sizes])

    def draw(
        self, part: int, own: Array, rng: np.random.Generator
    ) -> tuple[LocalIndices, GlobalIndices]:
        """Return the part, and the number among its nodes of the type, of drawn nodes.

        Parameters
        ----------
        part
            Of the neighbour.
        own
            (n,) whether the node is of the same part, or any; the more ends, the likelier.
        """
        weights, by_class, inside = self._cells
        classes, parts = len(self.ends.degrees), len(self.sizes)
        found = np.empty(len(own), np.int64)
        chances = np.cumsum(self.ends.degrees * self.drawn[part])
        for mine, sums in ((False, weights), (True, chances)):
            chosen = np.flatnonzero(own == mine)
            if not len(chosen) or not sums[-1]:
                # A part without such nodes has no neighbours to offer.
                found[chosen] = -1
                continue
            kind = np.searchsorted(sums, rng.random(len(chosen)) * sums[-1], side="right")
            kind = np.minimum(kind, classes - 1)
            first = by_class[kind * parts + (part if mine else 0)]
            many = self.drawn[part][kind] if mine else self.ends.counts[kind]
            found[chosen] = first + rng.integers(0, np.maximum(many, 1))
        cell = np.searchsorted(by_class, found, side="right") - 1
        kind, owner = np.divmod(cell, parts)
        places = inside[owner, kind] + found - by_class[cell]
        number = places * self._inverses[owner] % np.maximum(self.sizes[owner], 1)
        owner[found < 0] = -1
        return owner.astype(np.int32), number
