"""Put copies of a graph into one matrix, so that one exchange moves the rows of all copies.

A rank with rows 0 .. n - 1 has row ``c n + i`` for node i of copy c; edges join nodes of one copy.
"""

from dataclasses import replace

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.sparse.edge_rows import EdgeFeatures, EdgeTable, entry_numbers
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.typing import Array, GlobalIndices, Offsets


def copies_of(
    matrix: DistCSR,
    copies: int,
    edges: EdgeFeatures | EdgeTable | None,
    starts: Offsets | None = None,
) -> DistCSR:
    """Return the block row of several copies of a matrix over all nodes.

    Each block row has its nodes of all copies, one copy after the other. Block rows are those of
    the matrix, or those that begin at `starts`.

    If there are `edges`, the values are entry numbers; those of each copy follow those of the copy
    before.
    """
    row_map, count = matrix.row_map, matrix.row_map.num_local
    blocks = row_map if starts is None else RowMap(starts, 0)
    entries = [
        (part.entry_rows().astype(np.int64), columns[part.indices], part.values)
        for part, columns in (
            (matrix.diagonal, row_map.start + np.arange(count)),
            (matrix.remote, matrix.ghosts),
        )
    ]
    rows, columns, weights = zip(*entries, strict=True)
    relation, node = np.divmod(np.concatenate(rows), max(count, 1))
    column = np.concatenate(columns)
    numbers = np.arange(copies)[:, None]
    own = _columns(blocks, row_map.start + node, numbers, copies) - copies * row_map.start
    tall = (relation * copies * count + own).reshape(-1)
    order = np.argsort(tall, kind="stable")
    values = None
    if all(part is not None for part in weights):
        values = _values(np.concatenate(weights), copies, edges).reshape(-1)[order]
        if edges is not None:
            values = values.astype(entry_numbers(0, int(values.max(initial=0)) + 1).dtype)
    ends = np.bincount(tall, minlength=matrix.num_relations * copies * count).cumsum()
    wide = RowMap(row_map.starts * copies, row_map.block)
    tall_matrix = DistCSR.from_rows(
        wide,
        np.concatenate([[0], ends]).astype(np.int64),
        _columns(blocks, column, numbers, copies).reshape(-1)[order],
        values,
        matrix.num_relations,
    )
    return replace(tall_matrix, symmetric=matrix.symmetric)


def _columns(row_map: RowMap, column: GlobalIndices, numbers: Array, copies: int) -> GlobalIndices:
    owner = row_map.owner(column)
    start, count = row_map.starts[owner], np.diff(row_map.starts)[owner]
    return copies * start + numbers * count + (column - start)


def _values(values: Array, copies: int, edges: EdgeFeatures | EdgeTable | None) -> Array:
    """Return the values (copies, entries) of each copy's entries."""
    numbers = np.arange(copies)[:, None]
    if edges is None:
        return np.tile(values, (copies, 1))
    first, count = 0, len(edges.numbers)
    if isinstance(edges, EdgeFeatures):
        first = edges.edge_map.start
    return first * copies + numbers * count + (values - first)
