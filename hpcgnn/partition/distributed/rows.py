"""The rows of the pattern that each rank reads, and the nets that their nodes are pins of."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Communicator, RowMap, RowRequest, agree, redistribute
from hpcgnn.partition.blocks import BLOCK_BYTES, row_blocks
from hpcgnn.partition.pattern import Indices, choose_relations
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.typing import GlobalIndices, Offsets


@dataclass(frozen=True, eq=False)
class Rows:
    """The block row of a rank: the columns of each of its rows, global, increasing in a row.

    Attributes
    ----------
    row_map
        Who reads which rows of the store.
    indptr, columns
        (num_local + 1,) int64 and (non-zeros,) int32 or int64.
    symmetric
        Whether the whole pattern equals its transpose.
    """

    row_map: RowMap
    indptr: Offsets
    columns: Indices
    symmetric: bool

    @property
    def row_of_entry(self) -> GlobalIndices:
        """The global row of each non-zero."""
        rows = np.arange(self.row_map.start, self.row_map.stop)
        return np.repeat(rows, np.diff(self.indptr))


@collective
def read_rows(
    comm: Communicator, store: GraphStore, relations: Sequence[str], undirected: bool
) -> Rows:
    """Read this rank's rows of the union of `relations`, about equally many non-zeros on each rank.

    With `undirected` the transpose is added. Raises CollectiveInputError for an unknown relation.
    """
    with agree(comm):
        chosen = choose_relations(store, relations)
        starts = _cut(store, chosen, comm.size)
        row_map = RowMap(starts, comm.rank)
        indptr, columns = _read_union(store, chosen, row_map)
    if undirected and not store.undirected:
        indptr, columns = _with_transpose(comm, row_map, indptr, columns)
    return Rows(row_map, indptr, columns, undirected or store.undirected)


def _cut(store: GraphStore, relations: Sequence[str], num_blocks: int) -> Offsets:
    """Return the first row of each block, int64[num_blocks + 1]; a row counts as a non-zero."""

    def before(row: int) -> int:
        return row + sum(store.num_edges_before(row, each) for each in relations)

    total = before(store.num_nodes)
    starts = np.zeros(num_blocks + 1, np.int64)
    starts[-1] = store.num_nodes
    for block in range(1, num_blocks):
        # A binary search reads a few offsets where all of them would not fit into memory.
        low, high = int(starts[block - 1]), store.num_nodes
        while low < high:
            middle = (low + high) // 2
            if before(middle) * num_blocks < total * block:
                low = middle + 1
            else:
                high = middle
        starts[block] = low
    return starts


def _read_union(
    store: GraphStore, relations: Sequence[str], row_map: RowMap
) -> tuple[Offsets, Indices]:
    first, last = row_map.start, row_map.stop
    kind = np.int32 if store.num_nodes <= np.iinfo(np.int32).max else np.int64
    indptr = sum(store.read_indptr(first, last, each) for each in relations)
    lengths, found = np.zeros(row_map.num_local, np.int64), []
    for start, stop in row_blocks(np.asarray(indptr), BLOCK_BYTES // 32):
        blocks = [store.read_adjacency(first + start, first + stop, each) for each in relations]
        if len(blocks) == 1:
            union_indptr, union = blocks[0].indptr, blocks[0].indices
        else:
            rows = np.concatenate(
                [np.repeat(np.arange(stop - start), np.diff(b.indptr)) for b in blocks]
            )
            read = np.concatenate([each.indices for each in blocks])
            union_indptr, union = _coalesce(rows, read, stop - start)
        lengths[start:stop] = np.diff(union_indptr)
        found.append(union.astype(kind))
    columns: Indices = np.concatenate([np.empty(0, kind), *found])
    return np.concatenate([[0], np.cumsum(lengths)]), columns


def _coalesce(
    rows: GlobalIndices, columns: GlobalIndices, num_rows: int
) -> tuple[Offsets, GlobalIndices]:
    """Return a CSR pattern of entries, sorted and unique in each row."""
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (np.diff(rows) != 0) | (np.diff(columns) != 0)
    counts = np.bincount(rows[fresh], minlength=num_rows)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), columns[fresh]


@collective
def _with_transpose(
    comm: Communicator, row_map: RowMap, indptr: Offsets, columns: Indices
) -> tuple[Offsets, Indices]:
    rows = np.repeat(np.arange(row_map.start, row_map.stop), np.diff(indptr))
    theirs, mine = redistribute(comm, row_map.owner(columns.astype(np.int64)), columns, rows)
    both_rows = np.concatenate([rows, theirs.astype(np.int64)]) - row_map.start
    both = np.concatenate([columns, mine.astype(columns.dtype)])
    return _coalesce(both_rows, both, row_map.num_local)


@dataclass(frozen=True, eq=False)
class Pins:
    """The nets that the nodes of this rank's rows are pins of.

    Net ``kinds * j`` is row j of the dense operand, which the owner of node j sends to the parts of
    its pins; with two kinds, net ``2 j + 1`` is the partial sum of row j, which they send to it.

    Attributes
    ----------
    row_map
        Who keeps the nodes, and with each node its nets.
    indptr, nets
        (num_local + 1,) int64 and (pins,) int32 or int64, increasing for each node.
    kinds
        1, or 2 where partial sums are pushed.
    weights
        (num_local,) int64 non-zeros of each row; 1 for an empty row that is read, 0 for a node
        without any edge.
    """

    row_map: RowMap
    indptr: Offsets
    nets: Indices
    kinds: int
    weights: Offsets

    @property
    def net_map(self) -> RowMap:
        """Who keeps which nets."""
        return RowMap(self.row_map.starts * self.kinds, self.row_map.block)

    @property
    def num_pins(self) -> int:
        """Pins on this rank."""
        return len(self.nets)


@collective
def fetch_pins(comm: Communicator, rows: Rows) -> Pins:
    """Return a net for each column: what the aware exchange moves. Loops move nothing."""
    indptr: Offsets = rows.indptr
    columns: Indices = rows.columns
    apart = rows.row_of_entry != columns
    if not apart.all():
        before = np.concatenate([[0], np.cumsum(apart)])
        indptr, columns = before[indptr], columns[apart]
    return Pins(rows.row_map, indptr, columns, 1, _weights(comm, rows))


@collective
def joint_pins(comm: Communicator, rows: Rows) -> Pins:
    """Return the nets that the price of the joint exchange is made of.

    A non-zero belongs to the push net of its row where the row has more non-zeros than the column,
    else to the fetch net of its column. Loops belong to none.
    """
    row_map = rows.row_map
    row, column = rows.row_of_entry, rows.columns.astype(np.int64)
    apart = row != column
    row, column = row[apart], column[apart]
    wanted, place, counts = np.unique(column, return_inverse=True, return_counts=True)
    request = RowRequest.make(comm, row_map, wanted)
    length = request.rows(request.add_back(counts.astype(np.int64)))[place]
    mine = np.bincount(row - row_map.start, minlength=row_map.num_local)
    push = mine[row - row_map.start] > length
    (pins, nets) = redistribute(comm, row_map.owner(column[push]), column[push], 2 * row[push] + 1)
    pins = np.concatenate([row[~push], pins])
    nets = np.concatenate([2 * column[~push], nets])
    indptr, nets = _coalesce(pins - row_map.start, nets, row_map.num_local)
    fits = 2 * row_map.num_rows <= np.iinfo(np.int32).max
    narrow: Indices = nets.astype(np.int32) if fits else nets
    return Pins(row_map, indptr, narrow, 2, _weights(comm, rows))


@collective
def _weights(comm: Communicator, rows: Rows) -> Offsets:
    wanted = np.unique(rows.columns).astype(np.int64)
    read = RowRequest.make(comm, rows.row_map, wanted).add_back(np.ones(len(wanted), np.int64))
    return np.maximum(np.diff(rows.indptr), read > 0)
