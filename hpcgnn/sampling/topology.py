"""The graph that samplers walk."""

from dataclasses import dataclass, field

import numpy as np

from hpcgnn.kernels.arguments import require_array
from hpcgnn.sampling import _sampling
from hpcgnn.typing import LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class Topology:
    """A CSR pattern, checked once and never copied: it may be a mapped file or shared memory.

    `indptr` (N + 1,) int64 starts at 0; `indices` (E,) int32 ascend strictly in each row; anything
    else is a ValueError. Walks go from a row to its columns and start at the nodes below `roots`,
    or at any node if it is None.
    """

    indptr: Offsets
    indices: LocalIndices
    roots: int | None = None
    native: _sampling.Topology = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_array("indptr", self.indptr, 1, ("int64",))
        require_array("indices", self.indices, 1, ("int32",))
        object.__setattr__(
            self, "native", _sampling.Topology(self.indptr, self.indices, self.num_roots)
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.indptr) - 1

    @property
    def num_roots(self) -> int:
        """Number of nodes that walks can start at."""
        return self.num_nodes if self.roots is None else self.roots

    @property
    def num_entries(self) -> int:
        """Number of entries, E; an undirected edge between two nodes is two entries."""
        return len(self.indices)

    def degrees(self) -> Offsets:
        """Return (N,) int64 the number of entries in each row."""
        return np.diff(self.indptr)

    def entry_rows(self) -> LocalIndices:
        """Return (E,) int32 the row of each entry."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int32), self.degrees())
