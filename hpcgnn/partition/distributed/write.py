"""The store in the order of the parts, from the rows that each rank has read.

Every rank reads its rows a block at a time, gives nodes and columns their new numbers, and sends
them to the rank of their new place, which keeps them in a scratch file. From there each rank writes
its rows, sorted: one ordinary store appears, whole or not at all, with the checks and checksums of
any other. Memory is a few arrays of length n / P and blocks of fixed size.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.by_ranks import store_by_ranks
from hpcgnn.comm import (
    Communicator,
    RowMap,
    RowRequest,
    agree,
    allreduce_sum,
    exclusive_sum,
    redistribute,
    redistribute_lists,
)
from hpcgnn.partition.blocks import row_blocks, row_positions
from hpcgnn.partition.permute import (
    appender,
    columns_of,
    copy_names,
    entry_type,
    node_arrays,
    sorted_blocks,
)
from hpcgnn.partition.scratch import Scratch
from hpcgnn.spmd import collective
from hpcgnn.storage import EdgeData, GraphStore, ShareSizes, StoreWriter
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

STEP_BYTES = 1 << 23
"""Bytes of the store that a rank sends at a time."""


@dataclass(frozen=True, eq=False)
class NewOrder:
    """Where the nodes go.

    Attributes
    ----------
    old, new
        Who reads which rows, and who prepares which: whole parts.
    row_starts
        (K + 1,) int64 first new row of each part.
    new_id
        (num_local of `old`,) int64 new number of each node that this rank reads.
    """

    old: RowMap
    new: RowMap
    row_starts: Offsets
    new_id: GlobalIndices

    @classmethod
    @collective
    def of(cls, comm: Communicator, old: RowMap, part: LocalIndices, work: Offsets) -> "NewOrder":
        """Give the nodes their numbers, part after part, in the old order inside a part.

        `work` (K,) says how the parts are divided among the ranks.
        """
        mine = np.bincount(part, minlength=len(work)).astype(np.int64)
        sizes = mine.copy()
        allreduce_sum(comm, sizes)
        row_starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        order = np.argsort(part, kind="stable")
        first = np.concatenate([[0], np.cumsum(mine)])[part[order]]
        new_id = np.empty(len(part), np.int64)
        free = row_starts[:-1] + exclusive_sum(comm, mine)
        new_id[order] = free[part[order]] + np.arange(len(part)) - first
        share = np.concatenate([[0], np.cumsum(work + sizes)])
        cuts = np.searchsorted(share, share[-1] * np.arange(1, comm.size) / comm.size)
        bounds = row_starts[np.concatenate([[0], cuts, [len(sizes)]]).astype(np.int64)]
        return cls(old, RowMap(bounds, comm.rank), row_starts, new_id)


@collective
def write_partitioned(
    comm: Communicator,
    store: GraphStore,
    path: Path,
    order: NewOrder,
    provenance: Mapping[str, Any],
    record: Callable[[StoreWriter], None],
) -> None:
    """Write `store` to `path` with its nodes in the new order; all ranks write.

    `record` adds the parts.
    """
    with agree(comm):
        present = node_arrays(store, store.read_nodes(0, 1))
    sizes = _sizes(comm, store, order)
    declare = partial(_declare, store, present)
    with store_by_ranks(comm, path, store.header(provenance), sizes, declare) as writer:
        mover = _Mover(comm, store, order, path.absolute().parent)
        for relation in store.relations:
            mover.move_relation(relation, writer)
        mover.move_nodes(present, writer)
        with agree(comm):
            # Any names: theirs is the order of the original ids.
            copy_names(store, writer, order.old.start, order.old.stop)
            if comm.rank == 0:
                record(writer)


@collective
def _sizes(comm: Communicator, store: GraphStore, order: NewOrder) -> ShareSizes:
    """Return what this rank will write."""
    old, num_types = order.old, len(store.node_types)
    owners = order.new.owner(order.new_id)
    counts = np.zeros((len(store.relations) + num_types, comm.size), np.int64)
    with agree(comm):
        for row, relation in enumerate(store.relations):
            indptr = store.read_indptr(old.start, old.stop, relation)
            np.add.at(counts[row], owners, np.diff(indptr))
        if num_types:
            types = store.read_types(old.start, old.stop)
            assert types is not None
            np.add.at(counts, (len(store.relations) + types.astype(np.int64), owners), 1)
        names = old.num_local if store.has_names else 0
        name_bytes = store.name_bytes(old.start, old.stop)
    allreduce_sum(comm, counts)
    mine = counts[:, comm.rank].tolist()
    edges = dict(zip(store.relations, mine, strict=False))
    of_type = tuple(mine[len(edges) :])
    return ShareSizes(order.new.num_local, edges, of_type, names, name_bytes)


def _declare(store: GraphStore, present: Mapping[str, Array], writer: StoreWriter) -> None:
    for relation in store.relations:
        writer.append_rows(columns_of(store, relation).no_rows(), relation)
    for name, each in present.items():
        appender(writer, name)(each[:0])
    for kind in store.node_types:
        if kind.dtype is not None:
            writer.append_type_features(kind.name, np.empty((0, kind.num_features), kind.dtype))
    copy_names(store, writer, 0, 0)


class _Mover:
    """Moves one store's rows to their new ranks, and from there to the writer."""

    def __init__(
        self, comm: Communicator, store: GraphStore, order: NewOrder, scratch_dir: Path
    ) -> None:
        self._comm, self._store, self._order = comm, store, order
        self._scratch_dir = scratch_dir

    @collective
    def _steps(self, blocks: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield local (start, stop) of rows to send, equally often on all ranks."""
        mine = list(blocks)
        most = max(self._comm.allgather(len(mine)))
        yield from mine
        for _ in range(most - len(mine)):
            yield 0, 0

    @collective
    def move_relation(self, relation: str, writer: StoreWriter) -> None:
        """Move the adjacency of a relation, and what its edges have."""
        store, comm, old, new = self._store, self._comm, self._order.old, self._order.new
        with agree(comm):
            indptr = store.read_indptr(old.start, old.stop, relation)
            kinds = columns_of(store, relation)
        entry = entry_type(kinds)
        placed, lengths = redistribute(
            comm, new.owner(self._order.new_id), self._order.new_id, np.diff(indptr)
        )
        new_indptr = np.zeros(new.num_local + 1, np.int64)
        new_indptr[placed - new.start + 1] = lengths
        np.cumsum(new_indptr, out=new_indptr)
        with Scratch(self._scratch_dir, entry) as scratch:
            for start, stop in self._steps(row_blocks(indptr, STEP_BYTES // entry.itemsize)):
                with agree(comm):
                    first, last = old.start + start, old.start + stop
                    block = store.read_adjacency(first, last, relation)
                    data = (
                        store.read_edge_data(first, last, relation)
                        if kinds.has_data
                        else EdgeData()
                    )
                    values = kinds.pack(block.weights, data)
                # In the new order, so that the rows of one part make one run.
                ids = self._order.new_id[start:stop]
                rows = np.argsort(ids)
                ids, positions = ids[rows], row_positions(block.indptr, rows)
                columns = block.indices[positions]
                entries = np.empty(len(columns), entry)
                names, place = np.unique(columns, return_inverse=True)
                request = RowRequest.make(comm, old, names)
                entries["column"] = request.rows(self._order.new_id)[place]
                if values is not None:
                    entries["value"] = values[positions]
                lengths = np.concatenate([[0], np.cumsum(np.diff(block.indptr)[rows])])
                owners = new.owner(ids)
                arrived, entries = redistribute_lists(comm, owners, lengths, entries)
                (ids,) = redistribute(comm, owners, ids)
                rows = ids - new.start
                with agree(comm):
                    scratch.scatter(*_in_runs(rows, arrived, entries, new_indptr))
            with agree(comm):
                for sorted_rows in sorted_blocks(new_indptr, scratch, kinds, store.num_nodes):
                    writer.append_rows(sorted_rows, relation)
                    watchdog.beat()

    @collective
    def move_nodes(self, present: Mapping[str, Array], writer: StoreWriter) -> None:
        """Move all that nodes have: first what each has, then the features of each type.

        `present` has an example of each array that nodes have.
        """
        store, old = self._store, self._order.old
        row_bytes = sum(array[:1].nbytes for array in present.values())
        types = np.zeros(self._order.new.num_local, np.uint8)
        with ExitStack() as stack:
            scratches = {
                name: stack.enter_context(Scratch(self._scratch_dir, each.dtype, each.shape[1:]))
                for name, each in present.items()
            }
            for start, stop in self._steps(_even(old.num_local, row_bytes)):
                with agree(self._comm):
                    block = store.read_nodes(old.start + start, old.start + stop)
                    arrays = node_arrays(store, block)
                for name, scratch in scratches.items():
                    places, rows = self._to_new(slice(start, stop), arrays[name])
                    with agree(self._comm):
                        scratch.scatter(*_by_place(places, rows))
                    if name == "types":
                        types[places] = rows
            for name, scratch in scratches.items():
                num_rows = self._order.new.num_local
                self._append(scratch, num_rows, present[name], appender(writer, name))
        for number, kind in enumerate(store.node_types):
            if kind.dtype is not None:
                self._move_type(number, types, writer)

    @collective
    def _move_type(self, number: int, types: Array, writer: StoreWriter) -> None:
        """Move the features of one type, whose nodes in the new order are those in `types`."""
        store, old, kind = self._store, self._order.old, self._store.node_types[number]
        mine = types == number
        rank = np.cumsum(mine) - 1
        sample = np.empty((1, kind.num_features), kind.dtype)
        with Scratch(self._scratch_dir, kind.dtype, (kind.num_features,)) as scratch:
            for start, stop in self._steps(_even(old.num_local, sample.nbytes)):
                with agree(self._comm):
                    block = store.read_nodes(old.start + start, old.start + stop)
                assert block.types is not None
                chosen = start + np.flatnonzero(block.types == number)
                places, rows = self._to_new(chosen, block.type_features[number])
                with agree(self._comm):
                    scratch.scatter(*_by_place(rank[places], rows))
            append = partial(writer.append_type_features, kind.name)
            self._append(scratch, int(np.count_nonzero(mine)), sample, append)

    @collective
    def _to_new(self, chosen: Any, rows: Array) -> tuple[LocalIndices, Array]:
        """Send a row for each of some own old nodes; return new local places and their rows."""
        ids = self._order.new_id[chosen]
        ids, arrived = redistribute(self._comm, self._order.new.owner(ids), ids, rows)
        return self._order.new.to_local(ids), arrived

    @collective
    def _append(
        self, scratch: Scratch, num_rows: int, sample: Array, append: Callable[[Array], None]
    ) -> None:
        with agree(self._comm):
            for start, stop in _even(num_rows, sample[:1].nbytes):
                append(scratch.read(start, stop))
                watchdog.beat()


def _even(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, STEP_BYTES // max(1, row_bytes))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def _by_place(places: LocalIndices, rows: Array) -> tuple[Array, list[tuple[int, int]]]:
    """Return rows and the runs that they make in a scratch file, in the order of their places."""
    order = np.argsort(places, kind="stable")
    places = places[order]
    begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    counts = np.diff(np.append(begins, len(places)))
    return rows[order], list(zip(places[begins].tolist(), counts.tolist(), strict=True))


def _in_runs(
    rows: GlobalIndices, arrived: Offsets, entries: Array, indptr: Offsets
) -> tuple[Array, list[tuple[int, int]]]:
    """Return entries and the runs that they make in a scratch file whose rows are `indptr`.

    `arrived` says where the entries of each of the new local `rows` begin.
    """
    first = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    ends = arrived[np.append(first[1:], len(rows))]
    counts = ends - arrived[first]
    return entries, list(zip(indptr[rows[first]].tolist(), counts.tolist(), strict=True))
