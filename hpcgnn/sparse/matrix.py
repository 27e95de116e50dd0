"""A sparse matrix distributed by block rows, each split into own and remote columns.

A rank's block row has a diagonal part (columns of its own nodes) and a remote part (columns of
other ranks, compressed to the ghosts that occur). Rows without ghost columns are *interior*: their
products need no communication. The remote part stores boundary rows only, so nodes need no
renumbering.

Rows and columns are all nodes of a rank or some of them: a matrix restricted to an active set has
`row_nodes` and `column_nodes`, and multiplies compact arrays with the rows of those nodes only.
"""

from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.sparse.local import Kinds, LocalCSR
from hpcgnn.sparse.pieces import counts_before, distinct, pieces_of
from hpcgnn.storage import first_of_each
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class DistCSR:
    """One rank's block row.

    `diagonal` (rows, columns) are entries in own columns, `remote` (rows, num_ghosts) those of
    boundary rows in other ranks' columns; `ghosts` are the increasing global nodes, int64, of these
    columns. `row_nodes` and `column_nodes` are increasing int32 local nodes, or None for all. With
    several relations there is a block of rows for each: relation r's row of node i is ``r num_local
    + i``, and `row_nodes` are such rows. `symmetric` promises that the matrix of all ranks equals
    its transpose, values included. If only the rows of a symmetric matrix are scaled, by factors,
    `turned_factors` are the column factors (columns,) and (num_ghosts,) of its transpose, which is
    otherwise the same.
    """

    row_map: RowMap
    diagonal: LocalCSR
    remote: LocalCSR
    ghosts: GlobalIndices
    row_nodes: LocalIndices | None = None
    column_nodes: LocalIndices | None = None
    num_relations: int = 1
    symmetric: bool = False
    turned_factors: tuple[FloatArray, FloatArray] | None = None

    @classmethod
    def from_rows(
        cls,
        row_map: RowMap,
        indptr: Offsets,
        columns: Array,
        values: FloatArray | None = None,
        num_relations: int = 1,
    ) -> "DistCSR":
        """Split this rank's rows, given with global columns.

        `indptr` (num_relations * num_local + 1,) int64 starts at 0; `columns` (nnz,) are int32 or
        int64, `values` (nnz,) float32 or float64, or None for ones. Raises `ValueError` if they do
        not fit each other or `row_map`.
        """
        num_rows = num_relations * row_map.num_local
        if len(indptr) != num_rows + 1 or indptr[-1] != len(columns):
            raise ValueError(
                f"{num_rows} rows need {num_rows + 1} offsets ending at "
                f"{len(columns)}, not {len(indptr)} ending at {indptr[-1]}"
            )
        if len(columns) and not 0 <= columns.min() <= columns.max() < row_map.num_rows:
            raise ValueError(f"columns must lie in [0, {row_map.num_rows})")
        local = row_map.is_local(columns)
        offsets = counts_before(indptr, local)
        # Save memory: work in place and keep int32, as these arrays are as long as the result.
        inside = columns[local]
        inside -= row_map.start
        diagonal = LocalCSR(
            offsets,
            inside.astype(np.int32, copy=False),
            None if values is None else values[local],
            (num_rows, row_map.num_local),
        )
        np.logical_not(local, out=local)
        outside = columns[local]
        remote_offsets = indptr - offsets
        ghosts, numbers = _number_ghosts(row_map, outside)
        boundary = np.flatnonzero(np.diff(remote_offsets)).astype(np.int32)
        remote = LocalCSR(
            np.append(remote_offsets[boundary], remote_offsets[-1]),
            numbers,
            None if values is None else values[local],
            (num_rows, len(ghosts)),
            boundary,
        )
        return cls(row_map, diagonal, remote, ghosts, num_relations=num_relations)

    def with_values(self, diagonal: FloatArray | None, remote: FloatArray | None) -> "DistCSR":
        """Return the same pattern with other values; index arrays are shared."""
        parts = self.diagonal.with_values(diagonal), self.remote.with_values(remote)
        return replace(self, diagonal=parts[0], remote=parts[1])

    def with_factors(
        self,
        rows: FloatArray | None,
        columns: FloatArray | None,
        ghosts: FloatArray | None,
    ) -> "DistCSR":
        """Return the same pattern with entries that are products of row and column factors."""
        parts = self.diagonal.with_factors(rows, columns), self.remote.with_factors(rows, ghosts)
        return replace(self, diagonal=parts[0], remote=parts[1])

    def telling_relations(self) -> "DistCSR":
        """Return the same matrix with the relation of each row in its parts; arrays are shared."""
        if self.num_relations == 1:
            return self
        rows = (
            np.arange(self.shape[0], dtype=np.int32) if self.row_nodes is None else self.row_nodes
        )
        kinds = Kinds(self.num_relations, rows // np.int32(max(self.row_map.num_local, 1)))
        own, remote = (replace(part, kinds=kinds) for part in (self.diagonal, self.remote))
        return replace(self, diagonal=own, remote=remote)

    def by_node(self) -> "DistCSR":
        """Return the pattern with one row for all relations of a node."""
        rows = np.arange(self.shape[0]) if self.row_nodes is None else self.row_nodes
        nodes, numbers = np.unique(rows % max(self.row_map.num_local, 1), return_inverse=True)
        own, remote = (
            _renumbered(part, numbers, len(nodes)) for part in (self.diagonal, self.remote)
        )
        numbered = nodes.astype(np.int32), self.column_nodes
        return DistCSR(self.row_map, own, remote, self.ghosts, *numbered)

    def relations_of(self, targets: GlobalIndices) -> LocalIndices:
        """Return the relations, int32, of rows of the whole matrix, owned by any rank."""
        owners = self.result_map.owner(targets)
        nodes = np.diff(self.row_map.starts)[owners]
        local = targets - self.result_map.starts[owners]
        return (local // np.maximum(nodes, 1)).astype(np.int32)

    @property
    def result_map(self) -> RowMap:
        """The owners of the rows of the whole matrix."""
        return RowMap(self.row_map.starts * self.num_relations, self.row_map.block)

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows and columns."""
        return self.diagonal.shape

    @property
    def nnz(self) -> int:
        """Stored entries of this rank's rows."""
        return self.diagonal.nnz + self.remote.nnz

    @property
    def num_boundary(self) -> int:
        """Number of local nodes that read ghosts, in a matrix over all nodes."""
        return len(np.unique(self.remote.entry_rows() % max(self.row_map.num_local, 1)))

    def row_positions(self) -> LocalIndices | None:
        """Return the own row, int32, of each row of the whole matrix, -1 for none; None for all."""
        return positions_of(self.row_nodes, self.result_map.num_local)

    def column_positions(self) -> LocalIndices | None:
        """Return the column (num_local,) int32 of each local node, -1 for none; None for all."""
        return positions_of(self.column_nodes, self.row_map.num_local)


def positions_of(nodes: LocalIndices | None, num_local: int) -> LocalIndices | None:
    """Return the inverse of a list of nodes: (num_local,) int32, -1 where a node is not listed."""
    if nodes is None:
        return None
    positions = np.full(num_local, -1, np.int32)
    positions[nodes] = np.arange(len(nodes), dtype=np.int32)
    return positions


def _renumbered(part: LocalCSR, numbers: Array, num_rows: int) -> LocalCSR:
    """Return the pattern with row i renumbered to ``numbers[i]`` and duplicates merged."""
    width = max(part.shape[1], 1)
    entries = distinct(numbers[part.entry_rows()].astype(np.int64) * width + part.indices)
    rows, columns = np.divmod(entries, width)
    stored, counts = np.unique(rows, return_counts=True)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    listed = None if len(stored) == num_rows else stored.astype(np.int32)
    return LocalCSR(indptr, columns.astype(np.int32), None, (num_rows, part.shape[1]), listed)


def _number_ghosts(row_map: RowMap, columns: Array) -> tuple[GlobalIndices, LocalIndices]:
    """Return the distinct columns in order, int64, and the index of each column among them.

    An int32 array `columns` is overwritten with the indices.
    """
    narrow = columns.dtype == np.int32
    numbers = columns if narrow else np.empty(len(columns), np.int32)
    if row_map.num_rows <= 8 * len(columns):
        # Marking is faster than sorting unless the columns are few compared with all nodes.
        marked = np.zeros(row_map.num_rows, np.bool_)
        for piece in pieces_of(len(columns)):
            marked[columns[piece]] = True
        ghosts = np.flatnonzero(marked)
        number = np.empty(row_map.num_rows, np.int32)
        number[ghosts] = np.arange(len(ghosts), dtype=np.int32)
        for piece in pieces_of(len(columns)):
            numbers[piece] = number[columns[piece]]
        return ghosts, numbers
    ordered = np.sort(columns)
    ghosts = ordered[first_of_each(ordered)]
    for piece in pieces_of(len(columns)):
        numbers[piece] = np.searchsorted(ghosts, columns[piece])
    return ghosts.astype(np.int64), numbers
