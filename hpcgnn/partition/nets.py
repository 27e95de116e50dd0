"""Hypergraph nets whose pins are the nodes of a rank's rows; they give a partition's traffic."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import Communicator, RowMap, RowRequest, all_ranks, redistribute
from hpcgnn.comm.row_map import distinct
from hpcgnn.partition.pattern import ENTRIES_PER_STEP, BlockRow, Indices
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, Offsets


@dataclass(eq=False)
class Pins:
    """The nets that have the nodes of this rank's rows as pins.

    Net ``kinds * j`` is row j of the dense operand, which the owner of node j sends to the parts of
    its pins (fetch net). With two kinds, net ``2 j + 1`` is the partial sum of row j, which the
    parts of its pins send to the owner (push net). The owner of a node owns its nets.

    The nets of node v are ``nets[begins[v] : begins[v] + lengths[v]]``; `begins` and `lengths`
    (num_local,) are int64, `nets` (pins,) int32 or int64. `weights` (num_local,) int64 are the
    non-zeros of each row; 1 for an empty row that is read, 0 for a node without any edge. `nets` is
    empty while a `GroupShare` holds the nets.
    """

    row_map: RowMap
    begins: Offsets
    lengths: Offsets
    nets: Indices
    kinds: int
    weights: Offsets

    @property
    def net_map(self) -> RowMap:
        """The owners of nets."""
        return RowMap(self.row_map.starts * self.kinds, self.row_map.block)


@collective
def fetch_pins(comm: Communicator, rows: BlockRow) -> Pins:
    """Return a net for each column, for the aware exchange; loops belong to none."""
    columns: Indices = rows.columns
    lengths = np.diff(rows.indptr)
    for row, column in rows.entries(ENTRIES_PER_STEP):
        lengths[row[row == column] - rows.row_map.start] -= 1
    if (num_pins := int(lengths.sum())) < len(columns):
        columns = np.empty(num_pins, columns.dtype)
        first = 0
        for _, column in _without_loops(rows):
            columns[first : first + len(column)] = column
            first += len(column)
    begins = np.cumsum(lengths) - lengths
    return Pins(rows.row_map, begins, lengths, columns, 1, _weights(comm, rows))


@collective
def joint_pins(comm: Communicator, rows: BlockRow) -> Pins:
    """Return the nets that determine the price of the joint exchange.

    A non-zero belongs to the push net of its row if the row has more non-zeros than the column,
    otherwise to the fetch net of its column. Loops belong to none.
    """
    row_map = rows.row_map
    fits = 2 * row_map.num_rows <= np.iinfo(np.int32).max
    kind = np.int32 if fits else np.int64
    names = distinct(rows.columns, row_map.num_rows).astype(np.int64)
    width, length = np.zeros(len(names), np.int64), np.zeros(row_map.num_local, np.int64)
    for row, column in _without_loops(rows):
        width += np.bincount(np.searchsorted(names, column), minlength=len(names))
        length += np.bincount(row - row_map.start, minlength=row_map.num_local)
    request = RowRequest.make(comm, row_map, names)
    width = request.rows(request.add_back(width))
    fetched: list[tuple[Array, Array]] = [(np.empty(0, np.int32), np.empty(0, kind))]
    pushed = fetched.copy()
    # All ranks send equally often; some send nothing in the last steps.
    own_entries = _without_loops(rows)
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
    lengths = np.bincount(pins, minlength=row_map.num_local)
    begins, nets = np.cumsum(lengths) - lengths, nets[np.argsort(pins, kind="stable")]
    return Pins(row_map, begins, lengths, nets, 2, _weights(comm, rows))


def _without_loops(rows: BlockRow) -> Iterator[tuple[GlobalIndices, GlobalIndices]]:
    for row, column in rows.entries(ENTRIES_PER_STEP):
        apart = row != column
        yield row[apart], column[apart]


@collective
def _weights(comm: Communicator, rows: BlockRow) -> Offsets:
    requested = distinct(rows.columns, rows.row_map.num_rows).astype(np.int64)
    read = RowRequest.make(comm, rows.row_map, requested).add_back(
        np.ones(len(requested), np.int64)
    )
    return np.maximum(np.diff(rows.indptr), read > 0)
