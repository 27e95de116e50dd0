"""From the relations of a store to this rank's rows of one adjacency matrix.

``A[i, j] != 0`` means that node i aggregates from node j; an edge src -> dst of a store lies in row
dst.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import ProcessGrid, RowMap, agree, redistribute
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask, Offsets


@dataclass(frozen=True, eq=False)
class PatternRows:
    """Rows of one rank with global columns, increasing and unique in a row.

    Parameters
    ----------
    indptr
        (num_local + 1,) int64 from 0.
    columns
        (nnz,) int64 global.
    weights
        (nnz,) float32, or None when every edge weighs one.
    """

    indptr: Offsets
    columns: GlobalIndices
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
    """Read this rank's rows of the union of `relations`.

    Parameters
    ----------
    grid
        The ranks; each reads its own block row only.
    store
        An open store.
    row_map
        Rows of this rank.
    relations
        Names of relations to unite; empty means all. An edge in several relations counts once; its
        weight is then the largest.
    undirected
        Add the reverse of every edge (weight: the larger of the two directions).
    self_loops
        Add an edge of weight one to every node without a self loop.

    Raises
    ------
    InputError
        On every rank, when a relation is unknown or a block does not read.
    """
    with agree(grid.world):
        entries = [_read_relation(store, row_map, name) for name in relations or store.relations]
        weighted = any(weights is not None for _, _, weights in entries)
        rows = np.concatenate([rows for rows, _, _ in entries])
        columns = np.concatenate([columns for _, columns, _ in entries])
        weights = _join_weights(entries) if weighted else None
    sorted_already = len(entries) == 1
    if undirected and not store.undirected:
        rows, columns, weights = _with_reverse(grid, row_map, rows, columns, weights)
        sorted_already = False
    if not sorted_already:
        rows, columns, weights = _sort_unique(row_map, rows, columns, weights)
    if self_loops:
        rows, columns, weights = _with_self_loops(row_map, rows, columns, weights)
    return _as_rows(row_map, rows, columns, weights)


def sorted_rows(
    row_map: RowMap, rows: GlobalIndices, columns: GlobalIndices, weights: FloatArray | None
) -> PatternRows:
    """Return entries of this rank's rows, given in any order, as rows; equals unite."""
    return _as_rows(row_map, *_sort_unique(row_map, rows, columns, weights))


_Entries = tuple[GlobalIndices, GlobalIndices, FloatArray | None]


def _read_relation(store: GraphStore, row_map: RowMap, name: str) -> _Entries:
    block = store.read_adjacency(row_map.start, row_map.stop, name)
    rows = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    return np.repeat(rows, np.diff(block.indptr)), block.indices, block.weights


def _as_rows(
    row_map: RowMap, rows: GlobalIndices, columns: GlobalIndices, weights: FloatArray | None
) -> PatternRows:
    counts = np.bincount(rows - row_map.start, minlength=row_map.num_local)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return PatternRows(indptr, columns, weights)


def _join_weights(entries: list[_Entries]) -> Array:
    return np.concatenate(
        [np.ones(len(rows), np.float32) if w is None else w for rows, _, w in entries]
    )


def _with_reverse(
    grid: ProcessGrid,
    row_map: RowMap,
    rows: GlobalIndices,
    columns: GlobalIndices,
    weights: FloatArray | None,
) -> _Entries:
    arrays = (columns, rows) if weights is None else (columns, rows, weights)
    # Replicas hold equal rows, so every layer can reverse its own copy.
    arrived = redistribute(grid.layer, row_map.owner(columns), *arrays)
    rows = np.concatenate([rows, arrived[0]])
    columns = np.concatenate([columns, arrived[1]])
    if weights is not None:
        weights = np.concatenate([weights, arrived[2]])
    return rows, columns, weights


def _with_self_loops(
    row_map: RowMap, rows: GlobalIndices, columns: GlobalIndices, weights: FloatArray | None
) -> _Entries:
    """Insert the missing self loops into sorted entries, which is cheaper than sorting again."""
    has_loop = np.zeros(row_map.num_local, np.bool_)
    has_loop[rows[rows == columns] - row_map.start] = True
    missing = np.flatnonzero(~has_loop)
    # Entries before the loop of a row: all of earlier rows, and its own with smaller columns.
    before = np.searchsorted(rows, missing + row_map.start)
    lower = np.bincount(rows[columns < rows] - row_map.start, minlength=row_map.num_local)
    places = before + lower[missing]
    missing += row_map.start
    if weights is not None:
        weights = np.insert(weights, places, 1)
    return np.insert(rows, places, missing), np.insert(columns, places, missing), weights


def _sort_unique(
    row_map: RowMap, rows: GlobalIndices, columns: GlobalIndices, weights: FloatArray | None
) -> _Entries:
    # One int64 key an entry: fewer than 2^31 local rows times num_rows stays below 2^63.
    keys = (rows - row_map.start) * row_map.num_rows + columns
    if weights is None:
        # Sorting is many times faster than np.unique, which hashes.
        keys.sort()
        keys = keys[_first_of_equals(keys)]
    else:
        order = np.argsort(keys, kind="stable")
        first = np.flatnonzero(_first_of_equals(keys[order]))
        keys = keys[order][first]
        weights = np.maximum.reduceat(weights[order], first) if len(first) else weights
    local, columns = np.divmod(keys, max(row_map.num_rows, 1))
    return local + row_map.start, columns, weights


def _first_of_equals(ordered: GlobalIndices) -> Mask:
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first
