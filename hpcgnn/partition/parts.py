"""The result of partitioning: which part owns each node."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.typing import GlobalIndices, LocalIndices, Offsets

__all__ = ["Partition"]


@dataclass(frozen=True)
class Partition:
    """A part number for every node.

    Attributes
    ----------
    part
        int32[n], values in [0, num_parts); a part may be empty.
    num_parts
        Number of parts, at least 1.
    winner
        The candidate that it was refined from, where the partitioner compares candidates.
    """

    part: LocalIndices
    num_parts: int
    winner: str | None = None

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes."""
        return int(self.part.size)

    def validate(self) -> None:
        """Check shape, dtype and range; raise ValueError naming the first wrong node."""
        if self.num_parts < 1:
            raise ValueError(f"num_parts is {self.num_parts}: at least 1 is needed")
        if self.part.ndim != 1 or self.part.dtype != np.int32:
            raise ValueError(f"part is {self.part.dtype}{self.part.shape}: int32[n] is needed")
        wrong = np.flatnonzero((self.part < 0) | (self.part >= self.num_parts))
        if wrong.size:
            node = int(wrong[0])
            raise ValueError(f"node {node} is in part {self.part[node]} of {self.num_parts}")

    def sizes(self) -> Offsets:
        """Return the number of nodes of each part, int64[K]."""
        return np.bincount(self.part, minlength=self.num_parts).astype(np.int64)

    def permutation(self) -> GlobalIndices:
        """Return the old node at each new position, int64[n].

        Parts follow each other in order; inside a part the old order stays.
        """
        return np.argsort(self.part, kind="stable").astype(np.int64, copy=False)

    def row_starts(self) -> Offsets:
        """Return the first new row of each part and n at the end, int64[K + 1]."""
        starts = np.zeros(self.num_parts + 1, np.int64)
        np.cumsum(self.sizes(), out=starts[1:])
        return starts
