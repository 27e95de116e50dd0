"""The pattern that is partitioned and measured: the union of chosen relations of a store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcgnn.errors import InputError
from hpcgnn.partition.blocks import BLOCK_BYTES, row_blocks
from hpcgnn.storage import GraphStore
from hpcgnn.typing import Offsets

__all__ = ["CSRGraph", "choose_relations", "read_pattern"]

Indices: TypeAlias = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True)
class CSRGraph:
    """The non-zero pattern of an n x n adjacency; row i lists the nodes that node i reads.

    Attributes
    ----------
    indptr
        int64[n + 1], starts at 0.
    indices
        int32[nnz] or int64[nnz] columns, unique inside a row.
    num_nodes
        n.
    """

    indptr: Offsets
    indices: Indices
    num_nodes: int

    def row_weights(self) -> Offsets:
        """Return the work of each row: its non-zeros, and 1 for an empty row, int64[n].

        An empty row counts because its node too has features and activations.
        """
        return np.maximum(np.diff(self.indptr), 1)

    def to_scipy(self) -> Any:
        """Return the pattern as a SciPy CSR matrix of bool ones."""
        ones = np.ones(self.indices.size, bool)
        shape = (self.num_nodes, self.num_nodes)
        return sparse.csr_matrix((ones, self.indices, self.indptr), shape=shape)

    @classmethod
    def from_scipy(cls, matrix: Any) -> "CSRGraph":
        """Return the pattern of a square SciPy sparse matrix; explicit zeros count."""
        rows = sparse.csr_matrix(matrix)
        rows.sum_duplicates()
        return cls(rows.indptr.astype(np.int64), rows.indices, rows.shape[0])


def choose_relations(store: GraphStore, relations: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen relations of `store`; none chosen means all.

    Raises InputError for a name that the store does not hold.
    """
    for name in relations:
        if name not in store.relations:
            known = ", ".join(store.relations) if store.relations != ("",) else "none (untyped)"
            raise InputError(f"{store.path}: no relation '{name}'; its relations: {known}")
    return tuple(relations) or store.relations


def read_pattern(
    store: GraphStore, relations: Sequence[str] = (), undirected: bool = False
) -> CSRGraph:
    """Read the union pattern of `relations` (none named: all), with its transpose if `undirected`.

    Memory is a few times the pattern's own. Raises InputError for an unknown relation.
    """
    chosen = choose_relations(store, relations)
    graph = _read_relation(store, chosen[0])
    if len(chosen) == 1 and (store.undirected or not undirected):
        return graph
    union = graph.to_scipy()
    for relation in chosen[1:]:
        union = union + _read_relation(store, relation).to_scipy()
    if undirected and not store.undirected:
        union = union + union.T.tocsr()
    return CSRGraph.from_scipy(union)


def _read_relation(store: GraphStore, relation: str) -> CSRGraph:
    num_nodes = store.num_nodes
    indptr = store.read_indptr(0, num_nodes, relation)
    fits = num_nodes <= np.iinfo(np.int32).max
    size = int(indptr[-1])
    indices: Indices = np.empty(size, np.int32) if fits else np.empty(size, np.int64)
    for start, stop in row_blocks(indptr, BLOCK_BYTES // 8):
        indices[indptr[start] : indptr[stop]] = store.read_adjacency(start, stop, relation).indices
    return CSRGraph(indptr, indices, num_nodes)
