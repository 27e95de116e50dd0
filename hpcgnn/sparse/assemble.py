"""Assemble this rank's rows of one adjacency matrix from the relations of a store.

``A[i, j] != 0`` means that node i aggregates from node j; an edge src -> dst of a store lies in row
dst.

Rows are read, sent and united some entries at a time, with 4-byte columns if they fit, so that the
additional memory does not grow with the number of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import ProcessGrid, RowMap, agree, allreduce_max, redistribute
from hpcgnn.sparse.pieces import row_pieces
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore, first_of_each
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Offsets


@dataclass(frozen=True, eq=False)
class PatternRows:
    """Rows of one rank with global columns.

    `indptr` (num_local + 1,) int64 starts at 0. `columns` (nnz,) are increasing and unique in a
    row; int32 if all fit, else int64. `weights` (nnz,) are float32, or None if all weights are one.
    """

    indptr: Offsets
    columns: Array
    weights: FloatArray | None


@collective
def read_adjacency(
    grid: ProcessGrid,
    store: GraphStore,
    row_map: RowMap,
    relations: Sequence[str] = (),
    *,
    undirected: bool = False,
    self_loops: bool = False,
) -> PatternRows:
    """Read this rank's rows of the union of `relations` (empty: all).

    An edge in several relations counts once, with its largest weight. `undirected` adds the reverse
    of every edge (weight: the larger of the two directions), `self_loops` a loop of weight one to
    every node without one. Raises `CollectiveInputError` if a relation is unknown or a block cannot
    be read.
    """
    with agree(grid.world):
        read = [_read_relation(store, row_map, name) for name in relations or store.relations]
    if undirected and not store.undirected:
        read += [_arrived(grid, row_map, rows) for rows in tuple(read)]
    elif len(read) == 1 and not self_loops:
        return read[0]
    return unite(row_map, read, self_loops=self_loops)


@collective
def reverse_rows(grid: ProcessGrid, row_map: RowMap, pattern: PatternRows) -> PatternRows:
    """Return this rank's rows of the transpose."""
    return unite(row_map, [_arrived(grid, row_map, pattern)])


def _column_type(row_map: RowMap) -> DTypeLike:
    return np.int32 if row_map.num_rows <= np.iinfo(np.int32).max else np.int64


def _read_relation(store: GraphStore, row_map: RowMap, name: str) -> PatternRows:
    indptr = store.read_indptr(row_map.start, row_map.stop, name)
    columns = np.empty(int(indptr[-1]), _column_type(row_map))
    weights = np.empty(len(columns), np.float32) if store.weighted(name) else None
    for rows in row_pieces(indptr):
        block = store.read_adjacency(row_map.start + rows.start, row_map.start + rows.stop, name)
        piece = slice(indptr[rows.start], indptr[rows.stop])
        columns[piece] = block.indices
        if weights is not None:
            weights[piece] = block.weights
    return PatternRows(indptr, columns, weights)


@collective
def _arrived(grid: ProcessGrid, row_map: RowMap, pattern: PatternRows) -> PatternRows:
    """Return this rank's rows of the reverse of all edges, with columns in any order."""
    pieces = list(row_pieces(pattern.indptr))
    rounds = np.array([len(pieces)], np.int64)
    # Replicas have equal rows, so every layer can reverse its own copy.
    allreduce_max(grid.layer, rounds)
    pieces += [slice(0, 0)] * (int(rounds[0]) - len(pieces))
    arrivals = [_send(grid, row_map, pattern, piece) for piece in pieces]
    counts = np.zeros(row_map.num_local, np.int64)
    for rows, *_ in arrivals:
        counts += np.bincount(rows, minlength=row_map.num_local)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    columns = np.empty(int(indptr[-1]), _column_type(row_map))
    weights = None if pattern.weights is None else np.empty(len(columns), pattern.weights.dtype)
    free = indptr[:-1].copy()
    arrivals.reverse()
    while arrivals:
        rows, *values = arrivals.pop()
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        starts = np.flatnonzero(first_of_each(rows))
        lengths = np.diff(np.append(starts, len(rows)))
        # An entry's position is the first free one of its row, plus its rank among new entries.
        positions = np.repeat(free[rows[starts]] - starts, lengths) + np.arange(len(rows))
        free[rows[starts]] += lengths
        columns[positions] = values[0][order]
        if weights is not None:
            weights[positions] = values[1][order]
    return PatternRows(indptr, columns, weights)


@collective
def _send(
    grid: ProcessGrid, row_map: RowMap, pattern: PatternRows, piece: slice
) -> tuple[Array, ...]:
    """Send the reverses of some rows; return rows (local, int32), columns and weights received."""
    indptr = pattern.indptr[piece.start : piece.stop + 1]
    entries = slice(indptr[0], indptr[-1])
    columns = pattern.columns[entries]
    rows = np.arange(piece.start, piece.stop, dtype=np.int64) + row_map.start
    arrays = [columns, np.repeat(rows, np.diff(indptr)).astype(columns.dtype)]
    if pattern.weights is not None:
        arrays.append(pattern.weights[entries])
    arrived, *values = redistribute(grid.layer, row_map.owner(columns), *arrays)
    return row_map.to_local(arrived), *values


def unite(row_map: RowMap, read: Sequence[PatternRows], *, self_loops: bool = False) -> PatternRows:
    """Return the union of rows with columns in any order; duplicates get the largest weight."""
    dtypes = [rows.weights.dtype for rows in read if rows.weights is not None]
    offsets = sum((rows.indptr for rows in read), start=np.zeros(row_map.num_local + 1, np.int64))
    if self_loops:
        offsets = offsets + np.arange(row_map.num_local + 1)
    # Allocated for the case without duplicates, and shrunk at the end.
    columns = np.empty(int(offsets[-1]), _column_type(row_map))
    weights = np.empty(len(columns), np.result_type(*dtypes)) if dtypes else None
    counts = np.zeros(row_map.num_local, np.int64)
    end = 0
    for piece in row_pieces(offsets):
        keys, values = _sorted_piece(row_map, read, piece, weighted=bool(dtypes))
        if self_loops:
            keys, values = _with_self_loops(row_map, piece, keys, values)
        rows, entry_columns = np.divmod(keys, row_map.num_rows)
        counts[piece] = np.bincount(rows, minlength=piece.stop - piece.start)
        columns[end : end + len(keys)] = entry_columns
        if weights is not None and values is not None:
            weights[end : end + len(keys)] = values
        end += len(keys)
    for array in (columns, weights):
        if array is not None:
            array.resize(end, refcheck=False)
    return PatternRows(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), columns, weights)


def _sorted_piece(
    row_map: RowMap, read: Sequence[PatternRows], piece: slice, *, weighted: bool
) -> tuple[GlobalIndices, FloatArray | None]:
    """Return keys ``(row - first row) num_rows + column``, increasing and unique, and weights."""
    first = np.arange(piece.stop - piece.start, dtype=np.int64) * row_map.num_rows
    keys: list[GlobalIndices] = []
    weights: list[FloatArray] = []
    for rows in read:
        indptr = rows.indptr[piece.start : piece.stop + 1]
        entries = slice(indptr[0], indptr[-1])
        keys.append(np.repeat(first, np.diff(indptr)) + rows.columns[entries])
        if weighted:
            unit_weights = np.ones(len(keys[-1]), np.float32)
            weights.append(unit_weights if rows.weights is None else rows.weights[entries])
    key = np.concatenate(keys)
    if (key[1:] > key[:-1]).all():
        return key, np.concatenate(weights) if weighted else None
    if not weighted:
        # Sorting is many times faster than np.unique, which hashes.
        key.sort()
        return key[first_of_each(key)], None
    order = np.argsort(key, kind="stable")
    key, weight = key[order], np.concatenate(weights)[order]
    firsts = np.flatnonzero(first_of_each(key))
    return key[firsts], np.maximum.reduceat(weight, firsts)


def _with_self_loops(
    row_map: RowMap, piece: slice, keys: GlobalIndices, weights: FloatArray | None
) -> tuple[GlobalIndices, FloatArray | None]:
    """Insert the missing self loops into sorted keys, which is cheaper than sorting again."""
    # The key of the loop of row i, counted from the first row of the piece.
    loops = np.arange(piece.stop - piece.start, dtype=np.int64) * (row_map.num_rows + 1)
    loops += piece.start + row_map.start
    positions = np.searchsorted(keys, loops)
    present = np.zeros(len(loops), np.bool_)
    inside = positions < len(keys)
    present[inside] = keys[positions[inside]] == loops[inside]
    positions = positions[~present]
    if weights is not None:
        weights = np.insert(weights, positions, 1)
    return np.insert(keys, positions, loops[~present]), weights
