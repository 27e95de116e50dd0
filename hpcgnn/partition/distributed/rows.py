"""The rows of the pattern that each rank reads, and the nets that their nodes are pins of."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Communicator, RowMap, RowRequest, agree, all_ranks, redistribute
from hpcgnn.comm.distinct import distinct
from hpcgnn.partition.blocks import row_blocks
from hpcgnn.partition.pattern import Indices, choose_relations
from hpcgnn.spmd import collective
from hpcgnn.storage import GraphStore
from hpcgnn.typing import Array, GlobalIndices, Offsets

_ENTRIES_PER_STEP = 1 << 17


@dataclass(frozen=True, eq=False)
class BlockRow:
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
) -> BlockRow:
    """Read this rank's rows of the union of `relations`, about equally many non-zeros on each rank.

    With `undirected` the transpose is added. Raises CollectiveInputError for an unknown relation.
    """
    with agree(comm):
        names = choose_relations(store, relations)
        starts = _cut(store, names, comm.size)
        row_map = RowMap(starts, comm.rank)
        indptr, columns = _read_union(store, names, row_map)
    if undirected and not store.undirected:
        indptr, columns = _with_transpose(comm, row_map, indptr, columns)
    return BlockRow(row_map, indptr, columns, undirected or store.undirected)


def _cut(store: GraphStore, relations: Sequence[str], num_blocks: int) -> Offsets:
    """Return the first row of each block, int64[num_blocks + 1]; a row counts as a non-zero."""

    def before(row: int) -> int:
        return row + sum(store.num_edges_before(row, relation) for relation in relations)

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
    indptr = sum(store.read_indptr(first, last, relation) for relation in relations)
    indptr = np.asarray(indptr)
    lengths, row = np.zeros(row_map.num_local, np.int64), 0
    columns: Array = np.empty(int(indptr[-1] - indptr[0]), kind)
    for start, stop in row_blocks(indptr, _ENTRIES_PER_STEP):
        blocks = [
            store.read_adjacency(first + start, first + stop, relation) for relation in relations
        ]
        if len(blocks) == 1:
            union_indptr, union = blocks[0].indptr, blocks[0].indices
        else:
            rows = np.concatenate(
                [np.repeat(np.arange(stop - start), np.diff(b.indptr)) for b in blocks]
            )
            read = np.concatenate([block.indices for block in blocks])
            union_indptr, union = _coalesce(rows, read, stop - start)
        lengths[start:stop] = np.diff(union_indptr)
        columns[row : row + len(union)] = union
        row += len(union)
    return np.concatenate([[0], np.cumsum(lengths)]), columns[:row]


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
    theirs, transposed = redistribute(comm, row_map.owner(columns.astype(np.int64)), columns, rows)
    both_rows = np.concatenate([rows, theirs.astype(np.int64)]) - row_map.start
    both = np.concatenate([columns, transposed.astype(columns.dtype)])
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
        (num_local + 1,) int64 and (pins,) int32 or int64.
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
def fetch_pins(comm: Communicator, rows: BlockRow) -> Pins:
    """Return a net for each column: what the aware exchange moves. Loops move nothing."""
    indptr: Offsets = rows.indptr
    columns: Indices = rows.columns
    # As narrow as the columns: this array is as long as they are.
    diagonal = np.arange(rows.row_map.start, rows.row_map.stop).astype(columns.dtype)
    apart = np.repeat(diagonal, np.diff(indptr)) != columns
    if not apart.all():
        before = np.concatenate([[0], np.cumsum(apart)])
        indptr, columns = before[indptr], columns[apart]
    return Pins(rows.row_map, indptr, columns, 1, _weights(comm, rows))


@collective
def joint_pins(comm: Communicator, rows: BlockRow) -> Pins:
    """Return the nets that the price of the joint exchange is made of.

    A non-zero belongs to the push net of its row where the row has more non-zeros than the column,
    else to the fetch net of its column. Loops belong to none.
    """
    row_map = rows.row_map
    fits = 2 * row_map.num_rows <= np.iinfo(np.int32).max
    kind = np.int32 if fits else np.int64
    names = distinct(rows.columns, row_map.num_rows).astype(np.int64)
    width, length = np.zeros(len(names), np.int64), np.zeros(row_map.num_local, np.int64)
    for row, column in _entries(rows):
        width += np.bincount(np.searchsorted(names, column), minlength=len(names))
        length += np.bincount(row - row_map.start, minlength=row_map.num_local)
    request = RowRequest.make(comm, row_map, names)
    width = request.rows(request.add_back(width))
    fetched: list[tuple[Array, Array]] = [(np.empty(0, np.int32), np.empty(0, kind))]
    pushed = fetched.copy()
    # All ranks send equally often, some of them nothing at last.
    own_entries = _entries(rows)
    while not all_ranks(comm, (entries := next(own_entries, None)) is None):
        row, column = entries or (np.empty(0, np.int64), np.empty(0, np.int64))
        push = length[row - row_map.start] > width[np.searchsorted(names, column)]
        pins, nets = redistribute(
            comm, row_map.owner(column[push]), column[push], 2 * row[push] + 1
        )
        pushed.append((row_map.to_local(pins), nets.astype(kind)))
        fetched.append((row_map.to_local(row[~push]), (2 * column[~push]).astype(kind)))
    pins = np.concatenate([nodes for nodes, _ in (*fetched, *pushed)])
    nets = np.concatenate([nets for _, nets in (*fetched, *pushed)])
    del fetched, pushed
    indptr = np.zeros(row_map.num_local + 1, np.int64)
    np.cumsum(np.bincount(pins, minlength=row_map.num_local), out=indptr[1:])
    return Pins(row_map, indptr, nets[np.argsort(pins, kind="stable")], 2, _weights(comm, rows))


def _entries(rows: BlockRow) -> Iterator[tuple[GlobalIndices, GlobalIndices]]:
    """Yield global rows and columns of the non-zeros, without loops, a block of rows at a time."""
    for start, stop in row_blocks(rows.indptr, _ENTRIES_PER_STEP):
        bounds = rows.indptr[start : stop + 1]
        row = np.repeat(np.arange(start, stop) + rows.row_map.start, np.diff(bounds))
        column = rows.columns[bounds[0] : bounds[-1]].astype(np.int64)
        apart = row != column
        yield row[apart], column[apart]


@collective
def _weights(comm: Communicator, rows: BlockRow) -> Offsets:
    requested = distinct(rows.columns, rows.row_map.num_rows).astype(np.int64)
    read = RowRequest.make(comm, rows.row_map, requested).add_back(
        np.ones(len(requested), np.int64)
    )
    return np.maximum(np.diff(rows.indptr), read > 0)
