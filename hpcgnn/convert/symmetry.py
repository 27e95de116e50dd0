"""Find out whether a stream of edges equals its own reverse, in constant memory.

Each edge u -> v adds h(u, v) - h(v, u) to a 64-bit sum, where h is a hash: the sum of a multiset of
edges that contains each edge as often as its reverse is zero, and that of any other is zero with
probability 2^-64.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hpcgnn.kernels.mixing import split_mix
from hpcgnn.typing import Array


class SymmetryCheck:
    """Add edges with `update`; `symmetric` then tells whether every relation equals its reverse."""

    def __init__(self, sums: Mapping[str, int] = MappingProxyType({})) -> None:
        """Go on from the `sums` of a check, by relation."""
        self.sums = dict(sums)

    def update(self, src: Array, dst: Array, weights: Array | None, relation: str = "") -> None:
        """Count edges (m,) with ids below 2^32; the weight is part of an edge."""
        forward, backward = _hash(src, dst, weights), _hash(dst, src, weights)
        change = int(forward.sum()) - int(backward.sum())
        self.sums[relation] = (self.sums.get(relation, 0) + change) % (1 << 64)

    def add(self, other: "SymmetryCheck") -> None:
        """Count the edges of another check as well."""
        for relation, change in other.sums.items():
            self.sums[relation] = (self.sums.get(relation, 0) + change) % (1 << 64)

    @property
    def symmetric(self) -> bool:
        """Whether each edge so far was met as often as its reverse."""
        return not any(self.sums.values())


def _hash(first: Array, second: Array, weights: Array | None) -> NDArray[np.uint64]:
    mixed = split_mix((first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64))
    if weights is not None:
        mixed = split_mix(mixed ^ weights.astype(np.float32).view(np.uint32))
    return mixed
