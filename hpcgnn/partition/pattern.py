"""The pattern to partition and measure, from a matrix or from relations of a store."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from hpcgnn.comm import ONE_PROCESS, RankGroup, RowMap
from hpcgnn.errors import InputError
from hpcgnn.partition import _volpart
from hpcgnn.storage import GraphStore
from hpcgnn.typing import GlobalIndices, Offsets

Indices: TypeAlias = NDArray[np.int32] | NDArray[np.int64]

BLOCK_BYTES = 1 << 26
"""Most bytes of a streamed block."""

ENTRIES_PER_STEP = 1 << 17
"""Number of non-zeros that are read and rearranged at a time."""


@dataclass(frozen=True)
class CSRGraph:
    """The non-zero pattern of an n x n adjacency; row i lists the nodes that node i reads.

    `indptr` int64[n + 1] starts at 0; `indices` int32[nnz] or int64[nnz] are columns, unique in a
    row; `num_nodes` is n.
    """

    indptr: Offsets
    indices: Indices
    num_nodes: int

    def row_weights(self) -> Offsets:
        """Return the work of each row, int64[n]: its non-zeros, and 1 for an empty row.

        An empty row counts because its node has features and activations too.
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
    the first fault, and TypeError for other types of adjacency.
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


def as_integers(name: str, values: ArrayLike, dtype: type[np.signedinteger[Any]]) -> NDArray[Any]:
    """Return `values` as a contiguous vector of `dtype`; ValueError if they are not integers."""
    weights = np.asarray(values)
    if weights.size == 0 and weights.ndim == 1:
        return np.empty(0, dtype)
    if weights.ndim != 1 or weights.dtype.kind not in "iu":
        raise ValueError(f"{name}: {weights.dtype}{weights.shape} is not a vector of integers")
    limits = np.iinfo(dtype)
    if not np.can_cast(weights.dtype, dtype) and (
        int(weights.max()) > limits.max or int(weights.min()) < limits.min
    ):
        raise ValueError(f"{name}: a value does not fit into {np.dtype(dtype)}")
    return np.ascontiguousarray(weights, dtype)


@dataclass(frozen=True, eq=False)
class BlockRow:
    """The block row of a rank: the columns of each of its rows, global and ascending in a row.

    `row_map` gives each rank's rows; `indptr` (num_local + 1,) is int64, `columns` (non-zeros,)
    int32 or int64. `symmetric` tells whether the whole pattern equals its transpose.
    """

    row_map: RowMap
    indptr: Offsets
    columns: Indices
    symmetric: bool

    def entries(self, most: int) -> Iterator[tuple[GlobalIndices, GlobalIndices]]:
        """Yield global rows and columns of the non-zeros, about `most` at a time."""
        for start, stop in row_blocks(self.indptr, most):
            bounds = self.indptr[start : stop + 1]
            row = np.repeat(np.arange(start, stop) + self.row_map.start, np.diff(bounds))
            yield row, self.columns[bounds[0] : bounds[-1]].astype(np.int64)


def choose_relations(store: GraphStore, relations: Sequence[str]) -> tuple[str, ...]:
    """Return `relations`, or all of `store` if empty; InputError for an unknown name."""
    for name in relations:
        if name not in store.relations:
            names = ", ".join(store.relations) if store.relations != ("",) else "none (untyped)"
            raise InputError(f"{store.path}: no relation '{name}'; its relations: {names}")
    return tuple(relations) or store.relations


def read_pattern(
    store: GraphStore, relations: Sequence[str] = (), undirected: bool = False
) -> CSRGraph:
    """Read the union pattern of `relations` (empty: all), with its transpose if `undirected`.

    Takes a few times the memory of the pattern. Raises InputError for an unknown relation.
    """
    rows = read_rows(ONE_PROCESS, store, relations, undirected)
    return CSRGraph(rows.indptr, rows.columns, store.num_nodes)


def read_rows(
    ranks: RankGroup, store: GraphStore, relations: Sequence[str], undirected: bool
) -> BlockRow:
    """Read this rank's rows of the pattern; ranks get about equally many non-zeros."""
    with ranks.agree():
        names = choose_relations(store, relations)
        row_map = RowMap(_cut(store, names, ranks.size), ranks.rank)
        indptr, columns = _read_union(store, names, row_map)
    if undirected and not store.undirected:
        rows = np.repeat(np.arange(row_map.start, row_map.stop), np.diff(indptr))
        rows = rows.astype(columns.dtype, copy=False)
        owners = ranks.owners(row_map, columns.astype(np.int64, copy=False))
        readers, transposed = ranks.exchange(owners, columns, rows)
        rows = np.concatenate([rows, readers]) - row_map.start
        both = np.concatenate([columns, transposed])
        indptr, columns = _coalesce(rows, both, (row_map.num_local, row_map.num_rows))
    return BlockRow(row_map, indptr, columns, undirected or store.undirected)


def _cut(store: GraphStore, relations: Sequence[str], num_blocks: int) -> Offsets:
    """Return the first row of each block, int64[num_blocks + 1]; a row counts as a non-zero."""

    def before(row: int) -> int:
        return row + sum(store.num_edges_before(row, relation) for relation in relations)

    total = before(store.num_nodes)
    starts = np.zeros(num_blocks + 1, np.int64)
    starts[-1] = store.num_nodes
    rows = range(store.num_nodes)
    for block in range(1, num_blocks):
        # Binary search reads a few offsets only; all of them might not fit into memory.
        least, first = -(-total * block // num_blocks), int(starts[block - 1])
        starts[block] = bisect_left(rows, least, first, key=before)
    return starts


def _read_union(
    store: GraphStore, relations: Sequence[str], row_map: RowMap
) -> tuple[Offsets, Indices]:
    most = sum(
        store.num_edges_before(row_map.stop, name) - store.num_edges_before(row_map.start, name)
        for name in relations
    )
    lengths, row = np.zeros(row_map.num_local, np.int64), 0
    kind = np.int32 if store.num_nodes <= np.iinfo(np.int32).max else np.int64
    columns: NDArray[Any] = np.empty(most, kind)
    for start, indptr, union in union_blocks(store, relations, row_map.start, row_map.stop):
        lengths[start - row_map.start :][: len(indptr) - 1] = np.diff(indptr)
        columns[row : row + len(union)] = union
        row += len(union)
    return np.concatenate([[0], np.cumsum(lengths)]), columns[:row]


def union_blocks(
    store: GraphStore, relations: Sequence[str], first: int, last: int
) -> Iterator[tuple[int, Offsets, Indices]]:
    """Yield rows `first` to ``last - 1`` of the union of relations in blocks.

    A block is its first row, its offsets from 0, and its columns, int32 or int64.
    """
    offsets = sum(store.read_indptr(first, last, relation) for relation in relations)
    for start, stop in row_blocks(np.asarray(offsets), 8 * ENTRIES_PER_STEP):
        blocks = [store.read_adjacency(first + start, first + stop, name) for name in relations]
        union_indptr: Offsets = blocks[0].indptr
        union: Indices = blocks[0].indices
        if len(blocks) > 1:
            rows = [np.repeat(np.arange(b.num_rows), np.diff(b.indptr)) for b in blocks]
            read = np.concatenate([block.indices for block in blocks])
            shape = (stop - start, store.num_nodes)
            union_indptr, union = _coalesce(np.concatenate(rows), read, shape)
        yield first + start, union_indptr, union


def _coalesce(rows: Indices, columns: Indices, shape: tuple[int, int]) -> tuple[Offsets, Indices]:
    """Return a CSR pattern of entries, sorted and unique in each row."""
    pattern = sparse.csr_matrix((np.ones(len(rows), bool), (rows, columns)), shape)
    return pattern.indptr.astype(np.int64), pattern.indices.astype(columns.dtype, copy=False)


def row_blocks(indptr: Offsets, max_entries: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of blocks of at most `max_entries` non-zeros and rows, or of one row."""
    num_rows = indptr.size - 1
    start = 0
    while start < num_rows:
        last = int(np.searchsorted(indptr, indptr[start] + max_entries, side="right")) - 1
        stop = min(max(last, start + 1), start + max_entries, num_rows)
        yield start, stop
        start = stop
