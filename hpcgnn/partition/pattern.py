"""The pattern that is partitioned and measured: of a matrix, or of relations of a store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from hpcgnn.errors import InputError
from hpcgnn.partition import _volpart
from hpcgnn.partition.blocks import BLOCK_BYTES, row_blocks
from hpcgnn.storage import GraphStore
from hpcgnn.typing import Offsets

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
        marks = np.ones(self.indices.size, bool)
        shape = (self.num_nodes, self.num_nodes)
        return sparse.csr_matrix((marks, self.indices, self.indptr), shape=shape)

    @classmethod
    def from_scipy(cls, matrix: Any) -> "CSRGraph":
        """Return the pattern of a square SciPy sparse matrix; explicit zeros count."""
        rows = sparse.csr_matrix(matrix)
        rows.sum_duplicates()
        return cls(rows.indptr.astype(np.int64), rows.indices, rows.shape[0])


def as_pattern(
    adjacency: Any = None, xadj: ArrayLike | None = None, adjncy: ArrayLike | None = None
) -> CSRGraph:
    """Return the checked pattern of a `CSRGraph`, SciPy or torch matrix, or of two CSR arrays.

    Contiguous int64 offsets and int32 or int64 columns are not copied. Raises ValueError naming
    the first fault, TypeError for an adjacency of another kind.
    """
    offsets, columns = _arrays(adjacency, xadj, adjncy)
    indptr = as_integers("the offsets", offsets, np.int64)
    wide = np.asarray(columns).dtype.itemsize > np.dtype(np.int32).itemsize
    indices = as_integers("the columns", columns, np.int64 if wide else np.int32)
    _volpart.check(indptr, indices)
    return CSRGraph(indptr, indices, indptr.size - 1)


def _arrays(adjacency: Any, xadj: ArrayLike | None, adjncy: ArrayLike | None) -> tuple[Any, Any]:
    if adjacency is None:
        if xadj is None or adjncy is None:
            raise ValueError("either adjacency is needed, or xadj and adjncy")
        return xadj, adjncy
    if xadj is not None or adjncy is not None:
        raise ValueError("adjacency excludes xadj and adjncy")
    if isinstance(adjacency, CSRGraph):
        return adjacency.indptr, adjacency.indices
    if isinstance(adjacency, tuple):
        offsets, columns = adjacency
        return offsets, columns
    if sparse.issparse(adjacency):
        _check_square(adjacency.shape)
        rows = adjacency.tocsr()
        return rows.indptr, rows.indices
    if hasattr(adjacency, "crow_indices"):
        _check_square(tuple(adjacency.shape))
        return adjacency.crow_indices().numpy(), adjacency.col_indices().numpy()
    raise TypeError(
        f"adjacency is a {type(adjacency).__name__}: a CSRGraph, a SciPy sparse matrix, a torch "
        "CSR tensor or a tuple (offsets, columns) is needed"
    )


def _check_square(shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"adjacency has shape {shape}: it must be square")


def as_integers(what: str, values: ArrayLike, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Return `values` as a contiguous vector of `dtype`; raise ValueError where one does not fit.

    Raises ValueError for anything but a vector of integers.
    """
    weights = np.asarray(values)
    if weights.size == 0 and weights.ndim == 1:
        return np.empty(0, dtype)
    if weights.ndim != 1 or weights.dtype.kind not in "iu":
        raise ValueError(f"{what}: {weights.dtype}{weights.shape} is not a vector of integers")
    limits = np.iinfo(dtype)
    if not np.can_cast(weights.dtype, dtype) and (
        int(weights.max()) > limits.max or int(weights.min()) < limits.min
    ):
        raise ValueError(f"{what}: a value does not fit into {np.dtype(dtype)}")
    return np.ascontiguousarray(weights, dtype)


def choose_relations(store: GraphStore, relations: Sequence[str]) -> tuple[str, ...]:
    """Return the chosen relations of `store`; none chosen means all.

    Raises InputError for a name that the store does not hold.
    """
    for name in relations:
        if name not in store.relations:
            names = ", ".join(store.relations) if store.relations != ("",) else "none (untyped)"
            raise InputError(f"{store.path}: no relation '{name}'; its relations: {names}")
    return tuple(relations) or store.relations


def read_pattern(
    store: GraphStore, relations: Sequence[str] = (), undirected: bool = False
) -> CSRGraph:
    """Read the union pattern of `relations` (none named: all), with its transpose if `undirected`.

    Memory is a few times the pattern's own. Raises InputError for an unknown relation.
    """
    names = choose_relations(store, relations)
    graph = _read_relation(store, names[0])
    if len(names) == 1 and (store.undirected or not undirected):
        return graph
    union = graph.to_scipy()
    for relation in names[1:]:
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
