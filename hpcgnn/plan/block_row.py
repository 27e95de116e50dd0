"""Block rows of a matrix that one process holds whole."""

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.partition import row_positions
from hpcgnn.sparse import DistCSR, LocalCSR
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask, Offsets


class BlockRows:
    """The block rows that ranks would hold; each takes time in proportion to its own entries.

    Parameters
    ----------
    whole
        A matrix over all nodes, or restricted to some, whose one block has all rows.
    starts
        (blocks + 1,) int64 first nodes of the block rows.
    """

    def __init__(self, whole: DistCSR, starts: Offsets) -> None:
        matrix, num_nodes = whole.diagonal, whole.row_map.num_rows
        self._whole, self._starts = whole, starts
        self._column_nodes = _all_or(whole.column_nodes, matrix.shape[1])
        # Rows of a matrix by relation are numbered relation after relation, all nodes in each.
        row_nodes = _all_or(whole.row_nodes, matrix.shape[0])
        self._relations, self._nodes = np.divmod(row_nodes, max(num_nodes, 1))
        owners = RowMap(starts, 0).owner(self._nodes)
        # Rows of a block in the order of the whole matrix: relation by relation.
        self._order = np.argsort(owners, kind="stable")
        self._bounds = np.searchsorted(owners[self._order], np.arange(len(starts)))
        stored = _all_or(matrix.rows, len(matrix.indptr) - 1)
        self._stored = np.full(matrix.shape[0], -1, np.int64)
        self._stored[stored] = np.arange(len(stored))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, block: int) -> DistCSR:
        """Return the block row that rank `block` would hold."""
        return self.cut(block)[0]

    def cut(self, block: int) -> tuple[DistCSR, Offsets]:
        """Return a block row, and where the entries of its remote part are stored in the whole."""
        matrix, row_map = self._whole.diagonal, RowMap(self._starts, block)
        rows = self._order[self._bounds[block] : self._bounds[block + 1]]
        stored = self._stored[rows]
        picked = stored[stored >= 0]
        counts = np.zeros(len(rows), np.int64)
        counts[stored >= 0] = matrix.indptr[picked + 1] - matrix.indptr[picked]
        entries = row_positions(matrix.indptr, picked)
        columns = matrix.indices[entries]
        values = None if matrix.values is None else matrix.values[entries]
        # Columns of the whole matrix may be some of the nodes; a rank's are a range of them all the
        # same, for nodes increase.
        low, high = np.searchsorted(self._column_nodes, [row_map.start, row_map.stop])
        local = (columns >= low) & (columns < high)
        indptr = np.concatenate([[0], np.cumsum(counts)])
        ghosts, ghost_numbers = np.unique(columns[~local], return_inverse=True)
        own = (columns[local] - low).astype(np.int32)
        shape = len(counts), int(high - low)
        restricted = self._whole.row_nodes is not None
        local_rows = self._relations[rows] * row_map.num_local + self._nodes[rows] - row_map.start
        pattern = DistCSR(
            row_map,
            kept_rows(indptr, local, own, values, shape, compact=restricted),
            kept_rows(
                indptr, ~local, ghost_numbers.astype(np.int32), values, (shape[0], len(ghosts))
            ),
            self._column_nodes[ghosts],
            local_rows.astype(np.int32) if restricted else None,
            (self._column_nodes[low:high] - row_map.start).astype(np.int32) if restricted else None,
            self._whole.num_relations,
        )
        return pattern, entries[~local]

    def pushed_to(self, block: int, pushed: Mask) -> tuple[GlobalIndices, GlobalIndices]:
        """Return the entries that all other ranks leave to one, by the rows of these ranks.

        Parameters
        ----------
        block
            The rank.
        pushed
            (non-zeros of the whole,) the entries that owners of rows leave to owners of columns.

        Returns
        -------
        rows, nodes
            (entries,) int64 each: rows of the matrix of all ranks, and columns.
        """
        matrix, row_map = self._whole.diagonal, RowMap(self._starts, block)
        low, high = np.searchsorted(self._column_nodes, [row_map.start, row_map.stop])
        chosen = np.flatnonzero(pushed & (matrix.indices >= low) & (matrix.indices < high))
        rows = matrix.entry_rows()[chosen]
        relations, nodes = self._relations[rows], self._nodes[rows]
        owners = row_map.owner(nodes)
        # Ranks number the rows of their own nodes relation by relation.
        first, sizes = self._starts[owners], np.diff(self._starts)[owners]
        found = first * self._whole.num_relations + relations * sizes + nodes - first
        order = np.argsort(found, kind="stable")
        return found[order], self._column_nodes[matrix.indices[chosen[order]]]


def kept_rows(
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
