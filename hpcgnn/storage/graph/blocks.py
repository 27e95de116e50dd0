"""Blocks of rows in memory: adjacency, edge data, node data and sparse features."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.comm.row_map import spans
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class CSRBlock:
    """Consecutive rows of one relation's adjacency.

    `indptr` is (num_rows + 1,) and starts at 0; `indices` (nnz,) are global columns, sorted and
    unique inside a row; `weights` is (nnz,) float32, or None where all weights are one.
    """

    indptr: Offsets
    indices: GlobalIndices
    weights: FloatArray | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows of the block."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of non-zeros of the block."""
        return len(self.indices)

    def to_scipy(self, num_columns: int) -> Any:
        """Return the block as a (num_rows, num_columns) float32 SciPy CSR matrix."""
        # Most readers of stores do not need SciPy, whose import takes longer than a small graph.
        matrix = import_module("scipy.sparse").csr_matrix
        weights = self.weights
        if weights is None:
            weights = np.ones(self.num_edges, dtype=np.float32)
        shape = (self.num_rows, num_columns)
        return matrix((weights, self.indices, self.indptr), shape=shape)


@dataclass(frozen=True)
class EdgeData:
    """Data of edges other than weights, in the order of a block's non-zeros; None if absent.

    `features` (nnz, F) are float16, float32 or float64; `split` (nnz,) uint8 of `Split` is the role
    of each edge where edges are predicted. `labels` are (nnz, 1) int32 classes with -1 for none,
    (nnz, C) uint8 zeros and ones for multi-label, or (nnz, T) float32 numbers with NaN for missing.
    `order` and `place` (nnz,) uint64 are positions of edges in their input: `order` is for an
    `EdgeBuilder` that gets edges in another order, `place` stays with the edge to look up more data
    of it, see `split_places`. A store has neither.
    """

    features: FloatArray | None = None
    split: Array | None = None
    order: Array | None = None
    labels: Array | None = None
    place: Array | None = None

    def take(self, rows: Any) -> "EdgeData":
        """Return the data of some edges, chosen by a mask, a slice or positions."""
        arrays = (self.features, self.split, self.order, self.labels, self.place)
        return EdgeData(*(None if array is None else array[rows] for array in arrays))


@dataclass(frozen=True)
class SortedRows(CSRBlock):
    """Consecutive rows with the data of their edges, for `StoreWriter.append_rows`."""

    data: EdgeData = EdgeData()


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Consecutive rows of features that are mostly zero.

    `indptr` (m + 1,) int64 starts at 0, `indices` (nnz,) int32 are columns, sorted and unique
    inside a row, `values` (nnz,) float16, float32 or float64.
    """

    indptr: Offsets
    indices: LocalIndices
    values: FloatArray

    def write(self, rows: FloatArray) -> None:
        """Write the values into `rows` (m, F), which are zero."""
        row_of = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        rows[row_of, self.indices] = self.values

    @classmethod
    def joined(cls, parts: "Sequence[SparseRows]") -> "SparseRows":
        """Concatenate the rows of at least one part."""
        lengths = np.concatenate([[0], *(np.diff(part.indptr) for part in parts)])
        columns = zip(*((part.indices, part.values) for part in parts), strict=True)
        return cls(np.cumsum(lengths).astype(np.int64), *map(np.concatenate, columns))

    @classmethod
    def of(cls, rows: FloatArray) -> "SparseRows":
        """Return the non-zeros of dense rows (m, F)."""
        row_of, columns = np.nonzero(rows)
        counts = np.bincount(row_of, minlength=len(rows))
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return cls(indptr, columns.astype(np.int32), rows[row_of, columns])

    def to_store(self, *, ones: bool = False) -> SortedRows:
        """Return the rows in the form that a writer takes; without values if all are `ones`."""
        data = EdgeData() if ones else EdgeData(self.values[:, None])
        return SortedRows(self.indptr, self.indices.astype(np.int64), None, data)


@dataclass(frozen=True)
class NodeType:
    """A node type; `num_features` is 0 and `dtype` None if its nodes have no features."""

    name: str
    num_nodes: int
    num_features: int
    dtype: np.dtype[Any] | None


def names_by_type(names: "Sequence[str]", widths: "Sequence[int]") -> list[tuple[str, ...]]:
    """Return the names of feature columns of each node type; () for all if they do not fit."""
    if len(names) != sum(widths):
        return [()] * len(widths)
    stops = np.cumsum(widths).tolist()
    return [tuple(names[stop - width : stop]) for stop, width in zip(stops, widths, strict=True)]


@dataclass(frozen=True)
class NodeBlock:
    """The data of nodes `start` to `stop` - 1; None where the store has no such data.

    `features` (m, num_features) float16, float32 or float64; `labels` (m,) int32 with -1 for none,
    or (m, num_classes) uint8 when multi-label; `split` (m,) uint8 of `Split`; `original_id` (m,)
    int64.

    In a graph with node types `features` is None, `types` (m,) uint8 are indices into
    `GraphStore.node_types`, and `type_features` has an array (m_t, F_t) for each type t in their
    order, with a row for each of the block's m_t nodes of that type, in the block's order; F_t is 0
    for a type without features. In a graph without types `type_features` is empty.

    In a store of many graphs `graph` (m,) int64 are the numbers of the nodes' graphs, from 0 on.
    Features read as sparse rows are in `sparse`, or for each node type in `sparse_of_types` (None
    for a type without features).
    """

    start: int
    stop: int
    features: FloatArray | None
    labels: Array | None
    split: Array | None
    original_id: GlobalIndices
    types: Array | None = None
    type_features: tuple[FloatArray, ...] = ()
    graph: GlobalIndices | None = None
    sparse: SparseRows | None = None
    sparse_of_types: tuple[SparseRows | None, ...] = ()


def row_positions(indptr: Offsets, rows: Array) -> GlobalIndices:
    """Return the positions int64 of all entries of `rows`, row after row."""
    return spans(indptr[rows], indptr[rows + 1] - indptr[rows])


def group_by_type(types: Array, num_types: int) -> tuple[GlobalIndices, Offsets]:
    """Return the positions (m,) of nodes sorted by type, and the bounds of the types in them.

    `types` (m,) are numbers below `num_types`; the nodes of a type keep their order. The positions
    of type t are at `bounds[t]` to `bounds[t + 1]` - 1; `bounds` is (num_types + 1,).
    """
    order = np.argsort(types, kind="stable")
    bounds = np.zeros(num_types + 1, np.int64)
    np.cumsum(np.bincount(types, minlength=num_types), out=bounds[1:])
    return order, bounds
