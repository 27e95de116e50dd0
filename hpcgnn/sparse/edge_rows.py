"""The edges of a rank's rows with their features.

`EdgeRows` has those of several relations side by side. An `EdgeFeatures` has a row for each entry
of a pattern, numbered over all ranks: a matrix whose values are these numbers says, wherever its
entries go, which features are theirs. An `EdgeTable` keeps every edge of an entry, and is numbered
on its rank alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import Communicator, ProcessGrid, RowMap, RowRequest, agree
from hpcgnn.kernels import scatter_add_rows
from hpcgnn.sparse.assemble import PatternRows, read_adjacency
from hpcgnn.sparse.hidden import EdgesOutside, HiddenEdges, local_rows
from hpcgnn.sparse.local import LocalCSR, LocalMatrix
from hpcgnn.sparse.pieces import pieces_of, row_pieces
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, row_positions
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Offsets


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """Edges of a rank, which owns their targets; two relations may have the same edge.

    `targets` (E,) are local rows, `sources` (E,) global ones, int32 or int64, `features` (E, F) as
    in the store.
    """

    targets: Array
    sources: Array
    features: FloatArray

    def means(self, num_local: int, dtype: DTypeLike) -> FloatArray:
        """Return (num_local, F) the mean features of each row's edges, zeros without any."""
        return mean_rows(self.targets, self.features, num_local, dtype)

    def keys(self, num_rows: int) -> GlobalIndices:
        """Return (E,) ``target · num_rows + source``, int64, which name the edges on this rank."""
        keys: GlobalIndices = self.targets * np.int64(num_rows)
        keys += self.sources
        return keys

    def are_entries(self, pattern: PatternRows) -> bool:
        """Return whether each edge is an entry of the pattern, in its order."""
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
    """Read the features (E, F) of the edges of this rank's rows, maybe none.

    Raises CollectiveInputError when a block does not read.
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
    """Read the edges of this rank's rows, in relations with equally many features, maybe none.

    `scaled` returns what stands in place of the features (E, F) of all edges of a relation.

    Raises CollectiveInputError when a block does not read.
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
    # One relation alone is not copied.
    joined = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return EdgeRows(*joined)


@dataclass(frozen=True, eq=False)
class EdgeEntries:
    """Which of the `num_entries` entries of a rank's rows its edges are.

    One of several edges has the mean of theirs. Where loops have the mean of the edges from other
    nodes to their node, or zeros without any, `loops` (n,) are the entries of loops and `nodes`
    (n,) their rows; the first None: they are like others. Of the edges those `kept` (k,) count,
    which are the entries `positions` (k,) and end at `targets` (k,); all int64.
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
        """Return those of a pattern; `mean_loops` as of `EdgeFeatures.of_pattern`."""
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
        """Return entries that get zeros whatever features edges have."""
        none = np.empty(0, np.int64)
        return cls(num_entries, 0, none, none, none, None, none)

    def features(self, of_edges: FloatArray) -> FloatArray:
        """Return (nnz, F) the features of the entries, of those (E, F) of the edges."""
        kept = of_edges[self.kept]
        table = mean_rows(self.positions, kept, self.num_entries, kept.dtype)
        if self.loops is not None:
            means = mean_rows(self.targets, kept, self.num_local, kept.dtype)
            table[self.loops] = means[self.nodes]
        return table


@dataclass(frozen=True, eq=False)
class EdgeFeatures:
    """Features (nnz, F) of this rank's entries of a pattern; `comm` has a rank a block row.

    Where further features come later, `entries` say whose those of an edge are, in each of so many
    `num_copies`.
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
        """Return the features of a pattern's entries; one of several edges has the mean of theirs.

        With `mean_loops` a loop has the mean of the edges from other nodes to its node, or zeros
        without any, whatever features it has itself: as torch_geometric fills in those that it
        adds. Where `moving`, further features come later.
        """
        entries = EdgeEntries.of_pattern(row_map, pattern, edges, mean_loops=mean_loops)
        counts = grid.layer.allgather(entries.num_entries)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        edge_map, table = RowMap(starts, row_map.block), entries.features(edges.features)
        return cls(grid.layer, edge_map, table, entries if moving else None)

    def with_columns(self, rows: FloatArray) -> "EdgeFeatures":
        """Return more features, those (E, any width) of the edges in the order of the store."""
        assert self.entries is not None, "no further features come"
        copies = np.split(rows.astype(self.features.dtype), self.num_copies)
        more = np.concatenate([self.entries.features(copy) for copy in copies])
        return replace(self, features=np.concatenate([self.features, more], axis=1))

    @property
    def numbers(self) -> Array:
        """The number of each entry of this rank; see `entry_numbers`."""
        return entry_numbers(self.edge_map.start, self.edge_map.stop)

    def copies(self, count: int) -> "EdgeFeatures":
        """Return the features of several copies of the rank's entries, one behind the other."""
        edge_map = RowMap(self.edge_map.starts * count, self.edge_map.block)
        features = np.tile(self.features, (count, 1))
        return replace(self, edge_map=edge_map, features=features, num_copies=count)

    def own(self, block: LocalMatrix) -> LocalCSR:
        """Return a block of this rank's rows with features; its values are numbers of entries."""
        assert isinstance(block, LocalCSR)
        assert block.values is not None
        positions = block.values.astype(np.int64) - self.edge_map.start
        return replace(block, values=None, features=self.features[positions])

    @collective
    def others(self, blocks: Sequence[LocalMatrix]) -> tuple[LocalCSR, ...]:
        """Return blocks of any rank's rows with features, which their owners send."""
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
    """The edges of the entries of a pattern, one entry's behind the other's.

    `features` are (E, F), `starts` (nnz + 1,) int64 the first edge of each entry; None: each is one
    edge.
    """

    features: FloatArray
    starts: Offsets | None = None

    @classmethod
    def of_pattern(cls, row_map: RowMap, pattern: PatternRows, edges: EdgeRows) -> "EdgeTable":
        """Return the edges of the entries of some rows, which are those of `edges`."""
        if edges.are_entries(pattern):
            return cls(edges.features)
        keys = local_rows(pattern) * row_map.num_rows + pattern.columns
        entries = np.searchsorted(keys, edges.keys(row_map.num_rows))
        counts = np.bincount(entries, minlength=len(keys))
        return cls.of_counts(counts, edges.features[np.argsort(entries, kind="stable")])

    @classmethod
    def of_counts(cls, counts: Offsets, features: FloatArray) -> "EdgeTable":
        """Return the table of entries with so many edges each."""
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
        """(nnz,) int64 edges of each entry."""
        return (
            np.ones(len(self.features), np.int64) if self.starts is None else np.diff(self.starts)
        )

    def take(self, entries: GlobalIndices) -> "EdgeTable":
        """Return the edges of some entries, (n,) int64."""
        counts, numbers = self.edges_of(entries)
        return EdgeTable.of_counts(counts, self.features[numbers])

    def copies(self, count: int) -> "EdgeTable":
        """Return the edges of several copies of all entries, one behind the other."""
        return EdgeTable.of_counts(np.tile(self.counts, count), np.tile(self.features, (count, 1)))

    def edges_of(self, entries: GlobalIndices) -> tuple[Offsets, GlobalIndices]:
        """Return how many edges each of some entries has, and their numbers, int64."""
        if self.starts is None:
            return np.ones(len(entries), np.int64), entries
        counts = self.starts[entries + 1] - self.starts[entries]
        return counts, row_positions(self.starts, entries)


def entry_numbers(start: int, stop: int) -> Array:
    """Return numbers as a matrix has them as values: int32, or float64, both of which are exact."""
    narrow = stop <= np.iinfo(np.int32).max
    return np.arange(start, stop, dtype=np.int32 if narrow else np.float64)


def mean_rows(places: Array, features: FloatArray, count: int, dtype: DTypeLike) -> FloatArray:
    """Return (count, F) the means of the features of each place, zeros where there are none."""
    sums = np.zeros((count, features.shape[1]), dtype)
    shares = np.zeros(count, np.int32)
    for piece in pieces_of(len(places)):
        rows = places[piece].astype(np.int32)
        scatter_add_rows(np.ascontiguousarray(features[piece], dtype), rows, sums)
        np.add.at(shares, rows, 1)
    sums /= np.maximum(shares, 1)[:, None].astype(dtype)
    return sums
