"""Block rows of a matrix that one process holds whole."""

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.partition import row_positions
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets


def block_row(whole: DistCSR, row_map: RowMap) -> DistCSR:
    """Return the block row that the rank of `row_map` would hold.

    Parameters
    ----------
    whole
        A matrix over all nodes, or restricted to some, whose one block has all rows.
    row_map
        Owners of all nodes.
    """
    matrix, num_nodes = whole.diagonal, whole.row_map.num_rows
    row_nodes = _all_or(whole.row_nodes, matrix.shape[0])
    column_nodes = _all_or(whole.column_nodes, matrix.shape[1])
    # Rows of a matrix by relation are numbered relation after relation, all nodes in each.
    relations, nodes = np.divmod(row_nodes, max(num_nodes, 1))
    mine = row_map.is_local(nodes)
    # Rows of the block in the order of the whole matrix: relation by relation.
    numbers = np.cumsum(mine) - 1
    stored = _all_or(matrix.rows, len(matrix.indptr) - 1)
    picked = np.flatnonzero(mine[stored])
    counts = np.zeros(int(mine.sum()), np.int64)
    counts[numbers[stored[picked]]] = np.diff(matrix.indptr)[picked]
    entries = row_positions(matrix.indptr, picked)
    columns = matrix.indices[entries]
    values = None if matrix.values is None else matrix.values[entries]
    # Columns of the whole matrix may be some of the nodes; a rank's are a range of them all the
    # same, for nodes increase.
    low, high = np.searchsorted(column_nodes, [row_map.start, row_map.stop])
    local = (columns >= low) & (columns < high)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    ghosts, ghost_numbers = np.unique(columns[~local], return_inverse=True)
    own = (columns[local] - low).astype(np.int32)
    shape = len(counts), int(high - low)
    restricted = whole.row_nodes is not None
    local_rows = relations[mine] * row_map.num_local + nodes[mine] - row_map.start
    return DistCSR(
        row_map,
        _rows_of(indptr, local, own, values, shape, compact=restricted),
        _rows_of(indptr, ~local, ghost_numbers.astype(np.int32), values, (shape[0], len(ghosts))),
        column_nodes[ghosts],
        local_rows.astype(np.int32) if restricted else None,
        (column_nodes[low:high] - row_map.start).astype(np.int32) if restricted else None,
        whole.num_relations,
    )


def _rows_of(
    indptr: Offsets,
    kept: Array,
    indices: LocalIndices,
    values: FloatArray | None,
    shape: tuple[int, int],
    *,
    compact: bool = True,
) -> LocalCSR:
    """Return the kept entries of rows; `compact` stores the rows that have any."""
    # Kept entries before each row's first: the offsets of the rows, without a loop over them.
    ends = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])[indptr]
    chosen = None if values is None else values[kept]
    if not compact:
        return LocalCSR(ends, indices, chosen, shape)
    occupied = np.flatnonzero(np.diff(ends))
    offsets = np.append(ends[occupied], ends[-1])
    return LocalCSR(offsets, indices, chosen, shape, occupied.astype(np.int32))


def _all_or(some: LocalIndices | None, count: int) -> GlobalIndices:
    return np.arange(count, dtype=np.int64) if some is None else some.astype(np.int64)
