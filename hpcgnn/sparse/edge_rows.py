"""The edges of a rank's rows with their features.

`EdgeRows` has the edges of several relations one after the other. `EdgeFeatures` has a row for each
entry of a pattern, numbered over all ranks: a matrix with these numbers as values still knows the
features of its entries after they have moved. `EdgeTable` keeps all edges of an entry, with numbers
local to a rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import Communicator, ProcessGrid, RowMap, RowRequest, agree
from hpcgnn.kernels import scatter_add_rows
from hpcgnn.sparse.assemble import PatternRows, read_adjacency
from hpcgnn.sparse.hide_edges import EdgesOutside, HiddenEdges, local_rows
from hpcgnn.sparse.local import LocalCSR, LocalMatrix
from hpcgnn.sparse.pieces import pieces_of, row_pieces
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, row_positions
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Offsets


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """Edges of a rank, which owns their targets; two relations may have the same edge.

    `targets` (E,) are local rows, `sources` (E,) global rows, int32 or int64, `features` (E, F) are
    those of the store.
    """

    targets: Array
    sources: Array
    features: FloatArray

    def means(self, num_local: int, dtype: DTypeLike) -> FloatArray:
        """Return the mean features (num_local, F) of each row's edges, zeros for rows without."""
        return mean_rows(self.targets, self.features, num_local, dtype)

    def keys(self, num_rows: int) -> GlobalIndices:
        """Return ``target · num_rows + source``, (E,) int64, which identify edges on this rank."""
        keys: GlobalIndices = self.targets * np.int64(num_rows)
        keys += self.sources
        return keys

    def are_entries(self, pattern: PatternRows) -> bool:
        """Return whether the edges are exactly the entries of the pattern, in order."""
        indptr = pattern.indptr
        if len(self.sources) != len(pattern.columns):
            return False
        for rows in row_pieces(indptr):
            piece = slice(indptr[rows.start], indptr[rows.stop])
            counts = np.diff(indptr[rows.start : rows.stop + 1])
            ends = np.repeat(np.arange(rows.start, rows.stop), counts)
            if not np.array_equal(self.sources[piece], pattern.columns[piece]):
                return False
            if not np.array_equal(self.targets[piece], ends):
                return False
        return True


@collective
def read_edge_features(
    grid: ProcessGrid, store: GraphStore, row_map: RowMap, relation: str
) -> FloatArray:
    """Read the features (E, F) of the edges of this rank's rows; F may be 0.

    Raises `CollectiveInputError` if a block cannot be read.
    """
    with agree(grid.world):
        features = store.read_edge_data(row_map.start, row_map.stop, relation).features
        if features is None:
            block = store.read_adjacency(row_map.start, row_map.stop, relation)
            features = np.empty((block.num_edges, 0), np.float32)
    return features


@collective
def read_edge_rows(
    grid: ProcessGrid,
    store: GraphStore,
    row_map: RowMap,
    relations: Sequence[str],
    hidden: HiddenEdges | EdgesOutside | None,
    scaled: Callable[[str, FloatArray], FloatArray] = lambda _, features: features,
) -> EdgeRows:
    """Read the edges of this rank's rows in relations with the same number of features (or none).

    `scaled` returns the scaled features of a relation, given those (E, F) of all its edges.

    Raises `CollectiveInputError` if a block cannot be read.
    """
    parts = []
    for name in relations:
        features = scaled(name, read_edge_features(grid, store, row_map, name))
        pattern = read_adjacency(grid, store, row_map, [name])
        rows = np.arange(row_map.num_local, dtype=np.int32)
        part = np.repeat(rows, np.diff(pattern.indptr)), pattern.columns, features
        if hidden is not None:
            visible = hidden.keeps(pattern)
            part = part[0][visible], part[1][visible], features[visible]
        parts.append(part)
    # Do not copy a single relation.
    joined = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return EdgeRows(*joined)


@dataclass(frozen=True, eq=False)
class EdgeEntries:
    """The map from a rank's edges to the `num_entries` entries of its rows.

    An entry has the mean features of its edges. The edges `kept` (k,) belong to the entries
    `positions` (k,) and the rows `targets` (k,). If loops get the mean of the edges from other
    nodes to their node (zeros if there are none), `loops` (n,) are the entries of loops and `nodes`
    (n,) their rows; if `loops` is None, they are treated like other entries. All are int64.
    """

    num_entries: int
    num_local: int
    kept: GlobalIndices
    positions: GlobalIndices
    targets: GlobalIndices
    loops: GlobalIndices | None
    nodes: GlobalIndices

    @classmethod
    def of_pattern(
        cls, row_map: RowMap, pattern: PatternRows, edges: EdgeRows, *, mean_loops: bool
    ) -> "EdgeEntries":
        """Return the map for a pattern; `mean_loops` as in `EdgeFeatures.of_pattern`."""
        rows = local_rows(pattern)
        keys = rows * row_map.num_rows + pattern.columns
        kept = np.arange(len(edges.targets))
        loops, nodes = None, np.empty(0, np.int64)
        if mean_loops:
            kept = np.flatnonzero(edges.targets + row_map.start != edges.sources)
            loops = np.flatnonzero(rows + row_map.start == pattern.columns)
            nodes = rows[loops]
        targets = edges.targets[kept].astype(np.int64)
        positions = np.searchsorted(keys, edges.keys(row_map.num_rows)[kept])
        return cls(len(keys), row_map.num_local, kept, positions, targets, loops, nodes)

    @classmethod
    def without_edges(cls, num_entries: int) -> "EdgeEntries":
        """Return a map without edges, which gives all entries zeros."""
        none = np.empty(0, np.int64)
        return cls(num_entries, 0, none, none, none, None, none)

    def features(self, of_edges: FloatArray) -> FloatArray:
        """Return the features (nnz, F) of the entries from those (E, F) of the edges."""
        kept = of_edges[self.kept]
        table = mean_rows(self.positions, kept, self.num_entries, kept.dtype)
        if self.loops is not None:
            means = mean_rows(self.targets, kept, self.num_local, kept.dtype)
            table[self.loops] = means[self.nodes]
        return table


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """Features (nnz, F) of this rank's entries of a pattern; `comm` has one rank per block row.

    If features will be added later, `entries` maps edges to entries, in each of `num_copies`.
    """

    comm: Communicator
    edge_map: RowMap
    features: FloatArray
    entries: EdgeEntries | None = None
    num_copies: int = 1

    @classmethod
    @collective
    def of_pattern(
        cls,
        grid: ProcessGrid,
        row_map: RowMap,
        pattern: PatternRows,
        edges: EdgeRows,
        *,
        mean_loops: bool,
        moving: bool = False,
    ) -> "EdgeFeatures":
        """Return the features of a pattern's entries, which are means over each entry's edges.

        With `mean_loops` a loop gets the mean of the edges from other nodes to its node (zeros if
        there are none), even if it has features, like loops that torch_geometric adds. `moving`
        says that features will be added later.
        """
        entries = EdgeEntries.of_pattern(row_map, pattern, edges, mean_loops=mean_loops)
        counts = grid.layer.allgather(entries.num_entries)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        edge_map, table = RowMap(starts, row_map.block), entries.features(edges.features)
        return cls(grid.layer, edge_map, table, entries if moving else None)

    def with_columns(self, rows: FloatArray) -> "EdgeFeatures":
        """Append columns: features (E, any width) of the edges in the order of the store."""
        assert self.entries is not None, "features were not declared as moving"
        copies = np.split(rows.astype(self.features.dtype), self.num_copies)
        more = np.concatenate([self.entries.features(copy) for copy in copies])
        return replace(self, features=np.concatenate([self.features, more], axis=1))

    @property
    def numbers(self) -> Array:
        """The number of each entry of this rank; see `entry_numbers`."""
        return entry_numbers(self.edge_map.start, self.edge_map.stop)

    def copies(self, count: int) -> "EdgeFeatures":
        """Return the features of several copies of the rank's entries, one after the other."""
        edge_map = RowMap(self.edge_map.starts * count, self.edge_map.block)
        features = np.tile(self.features, (count, 1))
        return replace(self, edge_map=edge_map, features=features, num_copies=count)

    def own(self, block: LocalMatrix) -> LocalCSR:
        """Return a block of this rank's rows, whose values are entry numbers, with features."""
        assert isinstance(block, LocalCSR)
        assert block.values is not None
        positions = block.values.astype(np.int64) - self.edge_map.start
        return replace(block, values=None, features=self.features[positions])

    @collective
    def others(self, blocks: Sequence[LocalMatrix]) -> tuple[LocalCSR, ...]:
        """Return blocks of other ranks' rows with features, which their owners send."""
        matrices = [block for block in blocks if isinstance(block, LocalCSR)]
        numbers = [np.empty(0) if matrix.values is None else matrix.values for matrix in matrices]
        joined = np.concatenate([*numbers, np.empty(0)]).astype(np.int64)
        requested, inverse = np.unique(joined, return_inverse=True)
        features = RowRequest.make(self.comm, self.edge_map, requested).rows(self.features)[inverse]
        ends = np.cumsum([len(part) for part in numbers])
        parts = np.split(features, ends[:-1]) if numbers else []
        return tuple(
            replace(block, values=None, features=part)
            for block, part in zip(matrices, parts, strict=True)
        )


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """The edges of the entries of a pattern, entry after entry.

    `features` are (E, F), `starts` (nnz + 1,) int64 the first edge of each entry; None if each
    entry is one edge.
    """

    features: FloatArray
    starts: Offsets | None = None

    @classmethod
    def of_pattern(cls, row_map: RowMap, pattern: PatternRows, edges: EdgeRows) -> "EdgeTable":
        """Sort `edges` by the entries of a pattern that they belong to."""
        if edges.are_entries(pattern):
            return cls(edges.features)
        keys = local_rows(pattern) * row_map.num_rows + pattern.columns
        entries = np.searchsorted(keys, edges.keys(row_map.num_rows))
        counts = np.bincount(entries, minlength=len(keys))
        return cls.of_counts(counts, edges.features[np.argsort(entries, kind="stable")])

    @classmethod
    def of_counts(cls, counts: Offsets, features: FloatArray) -> "EdgeTable":
        """Return the table of entries that have `counts` (nnz,) edges."""
        if bool((counts == 1).all()):
            return cls(features)
        return cls(features, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))

    @property
    def numbers(self) -> Array:
        """The number of each entry; see `entry_numbers`."""
        count = len(self.features) if self.starts is None else len(self.starts) - 1
        return entry_numbers(0, count)

    @property
    def counts(self) -> Offsets:
        """The number of edges of each entry, (nnz,) int64."""
        return (
            np.ones(len(self.features), np.int64) if self.starts is None else np.diff(self.starts)
        )

    def take(self, entries: GlobalIndices) -> "EdgeTable":
        """Return the table of some entries (n,) int64."""
        counts, numbers = self.edges_of(entries)
        return EdgeTable.of_counts(counts, self.features[numbers])

    def copies(self, count: int) -> "EdgeTable":
        """Return the edges of several copies of all entries, one after the other."""
        return EdgeTable.of_counts(np.tile(self.counts, count), np.tile(self.features, (count, 1)))

    def edges_of(self, entries: GlobalIndices) -> tuple[Offsets, GlobalIndices]:
        """Return the number of edges of each of some entries, and all these edges; int64."""
        if self.starts is None:
            return np.ones(len(entries), np.int64), entries
        counts = self.starts[entries + 1] - self.starts[entries]
        return counts, row_positions(self.starts, entries)


def entry_numbers(start: int, stop: int) -> Array:
    """Return entry numbers as values of a matrix: int32, or float64, both of which are exact."""
    narrow = stop <= np.iinfo(np.int32).max
    return np.arange(start, stop, dtype=np.int32 if narrow else np.float64)


def mean_rows(groups: Array, features: FloatArray, count: int, dtype: DTypeLike) -> FloatArray:
    """Return the means (count, F) of the features in each group, zeros for empty groups."""
    sums = np.zeros((count, features.shape[1]), dtype)
    sizes = np.zeros(count, np.int32)
    for piece in pieces_of(len(groups)):
        rows = groups[piece].astype(np.int32)
        scatter_add_rows(np.ascontiguousarray(features[piece], dtype), rows, sums)
        np.add.at(sizes, rows, 1)
    sums /= np.maximum(sizes, 1)[:, None].astype(dtype)
    return sums
