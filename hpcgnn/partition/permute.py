"""Write a store whose rows and columns are ordered by a partition, part after part.

Every rank reads its rows a block at a time, renumbers nodes and columns, and sends them to the rank
of their new position, which keeps them in a scratch file. Nodes of one part in one old block are
consecutive in the new order too, so a block writes a few long runs. From the scratch files each
rank writes its rows, sorted. The store appears either complete or not at all, and does not depend
on the number of ranks. Memory is a few arrays of length n / P and blocks of fixed size.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import sparse

from hpcgnn import watchdog
from hpcgnn.comm import ONE_PROCESS, RankGroup, RowMap
from hpcgnn.console import Progress
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.pattern import BLOCK_BYTES, row_blocks
from hpcgnn.storage import (
    SPARSE_FEATURES,
    CSRBlock,
    EdgeColumns,
    EdgeData,
    GraphStore,
    NodeBlock,
    ShareSizes,
    SortedRows,
    SpillFile,
    StoreWriter,
    row_positions,
)
from hpcgnn.storage.by_ranks import open_store
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

NODE_ARRAYS = {
    "features": "append_features",
    "labels": "append_labels",
    "original_id": "append_original_id",
    "graph": "append_graph",
    "types": "append_types",
}
"""The arrays of a `NodeBlock` with a row for each node, and the writer's methods to append them."""

_APPENDERS = NODE_ARRAYS | {"weights": "append_weights"}

STEP_BYTES = 1 << 23
"""Bytes of the store that a rank sends at a time."""

_NO_EDGES = np.empty(0, np.int64)

_SPLIT = "split "
_NAME_BYTES = 64


@dataclass(frozen=True, eq=False)
class NewOrder:
    """The new order of nodes.

    `old` gives the rows that each rank reads, `new` the rows, whole parts, that each rank prepares.
    `row_starts` (K + 1,) int64 are the first new rows of the parts, and `new_id` (num_local of
    `old`,) int64 the new numbers of the nodes that this rank reads.
    """

    old: RowMap
    new: RowMap
    row_starts: Offsets
    new_id: GlobalIndices

    @classmethod
    def of(cls, ranks: RankGroup, old: RowMap, part: LocalIndices, work: Offsets) -> "NewOrder":
        """Return the order of nodes part after part, in the old order inside a part.

        Parts are divided among ranks by `work` (K,).
        """
        counts = np.bincount(part, minlength=len(work)).astype(np.int64)
        sizes = ranks.sum(counts)
        row_starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        order = np.argsort(part, kind="stable")
        first = np.concatenate([[0], np.cumsum(counts)])[part[order]]
        new_id = np.empty(len(part), np.int64)
        free = row_starts[:-1] + ranks.sum_before(counts)
        new_id[order] = free[part[order]] + np.arange(len(part)) - first
        share = np.concatenate([[0], np.cumsum(work + sizes)])
        cuts = np.searchsorted(share, share[-1] * np.arange(1, ranks.size) / ranks.size)
        bounds = row_starts[np.concatenate([[0], cuts, [len(sizes)]]).astype(np.int64)]
        return cls(old, RowMap(bounds, ranks.rank), row_starts, new_id)


def write_partitioned(
    store: GraphStore,
    path: Path,
    partition: Partition,
    *,
    method: str,
    seed: int,
    metrics: Mapping[str, Any] = MappingProxyType({}),
    provenance: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write `store` to `path` in the order of `partition`, as one process; see `write_in_order`."""
    partition.validate()
    rows = RowMap(np.array([0, partition.num_nodes]), 0)
    order = NewOrder.of(ONE_PROCESS, rows, partition.part, partition.sizes())

    def record(writer: StoreWriter) -> None:
        writer.set_partition(order.row_starts, method, seed, metrics)

    write_in_order(ONE_PROCESS, store, path, order, provenance, record)


def write_in_order(
    ranks: RankGroup,
    store: GraphStore,
    path: Path,
    order: NewOrder,
    provenance: Mapping[str, Any],
    record: Callable[[StoreWriter], None],
) -> None:
    """Write `store` to `path` with its nodes in the new order; all ranks write.

    `record` adds the parts. All relations and node data are kept; original ids are composed with
    those of `store`. Raises InputError if the directory of `path` cannot be written or is full.
    """
    with ranks.agree():
        present = node_arrays(store, _read_nodes(store, 0, 1))
    sizes, declare = partial(_sizes, ranks, store, order), partial(_declare, store, present)
    total = 2 * order.old.num_local * (len(store.matrices) + 1)
    with (
        open_store(ranks, path, store.header(provenance), sizes, declare) as writer,
        Progress("permuting", total, "rows", quiet=ranks.rank > 0) as progress,
    ):
        mover = _Mover(ranks, store, order, path.absolute().parent, progress)
        for relation in store.matrices:
            mover.move_relation(relation, writer)
        mover.move_nodes(present, writer)
        mover.move_fields(writer)
        with ranks.agree():
            # Names are in the order of original ids, so each rank copies any range of them.
            copy_names(store, writer, order.old.start, order.old.stop)
            if ranks.rank == 0:
                record(writer)


def _sizes(ranks: RankGroup, store: GraphStore, order: NewOrder) -> ShareSizes:
    old, num_types = order.old, len(store.node_types)
    owners = ranks.owners(order.new, order.new_id)
    counts = np.zeros((len(store.matrices) + num_types, ranks.size), np.int64)
    with ranks.agree():
        for row, relation in enumerate(store.matrices):
            indptr = store.read_indptr(old.start, old.stop, relation)
            np.add.at(counts[row], owners, np.diff(indptr))
        if num_types:
            types = store.read_types(old.start, old.stop)
            assert types is not None
            np.add.at(counts, (len(store.matrices) + types.astype(np.int64), owners), 1)
        names = old.num_local if store.has_names else 0
        name_bytes = store.name_bytes(old.start, old.stop)
    own_counts = ranks.sum(counts)[:, ranks.rank].tolist()
    edges = dict(zip(store.matrices, own_counts, strict=False))
    of_type = tuple(own_counts[len(edges) :])
    features = edges.pop(SPARSE_FEATURES, 0)
    return ShareSizes(order.new.num_local, edges, of_type, names, name_bytes, features=features)


def _declare(store: GraphStore, present: Mapping[str, Array], writer: StoreWriter) -> None:
    for relation in store.matrices:
        writer.append_rows(columns_of(store, relation).no_rows(), relation)
    for name, array in present.items():
        appender(store, writer, name)(array[:0])
    if store.all_fields:
        writer.begin_fields(store.times, store.trajectory_starts, store.time_unit)
    for info in store.all_fields.values():
        writer.append_field(info.name, 0, np.empty((0, info.num_columns), info.dtype), info)
    for kind in store.node_types:
        if kind.dtype is not None:
            writer.append_type_features(kind.name, np.empty((0, kind.num_features), kind.dtype))
    copy_names(store, writer, 0, 0)


class Scratch:
    """An unnamed file of items of one type, written in runs at any place; `InputError` if full."""

    def __init__(self, directory: Path, dtype: Any) -> None:
        self._file, self._dtype = SpillFile(directory), np.dtype(dtype)
        self.item_bytes = self._dtype.itemsize

    def scatter(self, items: Array, runs: Iterable[tuple[int, int]]) -> None:
        """Write consecutive runs of `items`; each run is (first item in the file, length)."""
        items = np.ascontiguousarray(items, self._dtype.base)
        low = 0
        for first, length in runs:
            self._file.put(items[low : low + length], first * self.item_bytes)
            low += length

    def read(self, start: int, stop: int) -> Array:
        """Return the items [start, stop), which must all have been written."""
        return self._file.read(self._dtype, 0, start, stop)


class _Mover:
    """Moves a store's rows to their new ranks, and from there to the writer."""

    def __init__(
        self,
        ranks: RankGroup,
        store: GraphStore,
        order: NewOrder,
        scratch_dir: Path,
        progress: Progress,
    ) -> None:
        self._ranks, self._store, self._order = ranks, store, order
        self._scratch_dir, self._progress = scratch_dir, progress
        self._moved_edges = _NO_EDGES

    def move_relation(self, relation: str, writer: StoreWriter) -> None:
        """Move the adjacency of a relation and the data of its edges."""
        ranks, old, new = self._ranks, self._order.old, self._order.new
        with ranks.agree():
            indptr = self._store.read_indptr(old.start, old.stop, relation)
            edge_columns = columns_of(self._store, relation)
            numbered = len(self._store.edge_fields) > 0 and relation != SPARSE_FEATURES
            first = self._store.num_edges_before(old.start, relation) if numbered else 0
            edge_columns = replace(edge_columns, ordered=numbered)
            entry = entry_type(edge_columns)
            scratch = Scratch(self._scratch_dir, entry)
        owners = ranks.owners(new, self._order.new_id)
        ids, lengths = ranks.exchange(owners, self._order.new_id, np.diff(indptr))
        new_indptr = np.zeros(new.num_local + 1, np.int64)
        new_indptr[ids - new.start + 1] = lengths
        np.cumsum(new_indptr, out=new_indptr)
        blocks = row_blocks(indptr, STEP_BYTES // entry.itemsize)
        for start, stop in ranks.rounds(blocks, lambda: (0, 0)):
            with ranks.agree():
                block, values = self._read(start, stop, relation, edge_columns)
            # Sort into the new order, so that the rows of one part make one run.
            ids = self._order.new_id[start:stop]
            rows = np.argsort(ids)
            ids, positions = ids[rows], row_positions(block.indptr, rows)
            entries = np.empty(len(positions), entry)
            entries["column"] = columns = block.indices[positions]
            if relation != SPARSE_FEATURES:
                entries["column"] = ranks.rows_of(old, columns, self._order.new_id)
            if values is not None:
                entries["value"] = values[positions]
            offsets = np.concatenate([[0], np.cumsum(np.diff(block.indptr)[rows])])
            owners = ranks.owners(new, ids)
            offsets, entries = ranks.exchange_lists(owners, offsets, entries)
            (ids,) = ranks.exchange(owners, ids)
            with ranks.agree():
                scratch.scatter(*_in_runs(ids - new.start, offsets, entries, new_indptr))
            self._progress.advance(stop - start)
        with ranks.agree():
            num_columns = self._store.num_columns(relation)
            numbers = [np.empty(0, np.int64)]
            for sorted_rows in sorted_blocks(new_indptr, scratch, edge_columns, num_columns):
                writer.append_rows(sorted_rows, relation)
                if sorted_rows.data.order is not None:
                    numbers.append(sorted_rows.data.order.astype(np.int64))
                self._progress.advance(sorted_rows.num_rows)
                watchdog.beat()
        if numbered:
            self._moved_edges = self._new_edges(np.concatenate(numbers), first, int(indptr[-1]))

    def _new_edges(self, numbers: GlobalIndices, first: int, count: int) -> GlobalIndices:
        """Return the new number of each edge that this rank reads; `numbers` are in new order."""
        ranks = self._ranks
        counts = [0, *np.cumsum(ranks.gather(count)).tolist()]
        old = RowMap(np.array(counts, np.int64), ranks.rank)
        before = int(ranks.sum_before(np.array([len(numbers)]))[0])
        own = np.arange(before, before + len(numbers))
        old_numbers, new_numbers = ranks.exchange(ranks.owners(old, numbers), numbers, own)
        moved = np.empty(count, np.int64)
        moved[old_numbers - first] = new_numbers
        return moved

    def _read(
        self, start: int, stop: int, relation: str, edge_columns: EdgeColumns
    ) -> tuple[CSRBlock, Array | None]:
        """Return some of this rank's rows of a relation, and the packed data of their edges."""
        store, old = self._store, self._order.old
        first, last = old.start + start, old.start + stop
        block = store.read_adjacency(first, last, relation)
        data = store.read_edge_data(first, last, relation) if edge_columns.has_data else EdgeData()
        if edge_columns.ordered:
            low = store.num_edges_before(first, relation)
            data = replace(data, order=np.arange(low, low + block.num_edges, dtype=np.uint64))
        return block, edge_columns.pack(block.weights, data)

    def move_nodes(self, present: Mapping[str, Array], writer: StoreWriter) -> None:
        """Move the node arrays, of which `present` has examples, and the features of each type."""
        store, ranks, old, new = self._store, self._ranks, self._order.old, self._order.new
        row_in_type, in_type = self._rows_in_types()
        with ranks.agree():
            scratches = {
                name: Scratch(self._scratch_dir, (array.dtype, array.shape[1:]))
                for name, array in present.items()
            }
            by_type = {
                number: Scratch(self._scratch_dir, (kind.dtype, (kind.num_features,)))
                for number, kind in enumerate(store.node_types)
                if kind.dtype is not None
            }
        row_bytes = sum(array[:1].nbytes for array in present.values())
        row_bytes += max((column.item_bytes for column in by_type.values()), default=0)
        for start, stop in ranks.rounds(_even(old.num_local, row_bytes), lambda: (0, 0)):
            with ranks.agree():
                block = _read_nodes(store, old.start + start, old.start + stop)
                arrays = node_arrays(store, block)
            for name, scratch in scratches.items():
                rows, values = self._to_new(slice(start, stop), arrays[name])
                with ranks.agree():
                    scratch.scatter(*_by_row(rows, values))
            for number, scratch in by_type.items():
                nodes = start + np.flatnonzero(block.types == number)
                rows, values = self._to_new(nodes, block.type_features[number])
                with ranks.agree():
                    scratch.scatter(*_by_row(row_in_type[rows], values))
            self._progress.advance(stop - start)
        with ranks.agree():
            for name, scratch in scratches.items():
                _append(scratch, new.num_local, appender(store, writer, name))
            for number, scratch in by_type.items():
                append = partial(writer.append_type_features, store.node_types[number].name)
                _append(scratch, in_type[number], append)
        self._progress.advance(old.num_local)

    def move_fields(self, writer: StoreWriter) -> None:
        """Move the fields step by step; each rank prepares rows that fill whole chunks."""
        store, ranks = self._store, self._ranks
        if store.all_fields:
            with ranks.agree():
                writer.begin_fields(store.times, store.trajectory_starts, store.time_unit)
        for info in store.all_fields.values():
            new, first = self._order.new_id, self._order.old.start
            with ranks.agree():
                own = writer.field_rows(info)
                if info.of_edges:
                    new, first = self._moved_edges, store.num_edges_before(first)
            stops = [0, *ranks.gather(own.stop)]
            prepared = RowMap(np.maximum.accumulate(np.array(stops, np.int64)), ranks.rank)
            for step in range(len(store.times)):
                arranged = np.empty((len(own), info.num_columns), info.dtype)
                blocks = _even(len(new), info.row_bytes)
                for start, stop in ranks.rounds(blocks, lambda: (0, 0)):
                    with ranks.agree():
                        rows = store.read_field(info.name, step, first + start, first + stop)
                    ids = new[start:stop]
                    ids, arrived = ranks.exchange(ranks.owners(prepared, ids), ids, rows)
                    arranged[ids - own.start] = arrived
                with ranks.agree():
                    writer.append_field(info.name, step, arranged, info)

    def _rows_in_types(self) -> tuple[LocalIndices, list[int]]:
        """Return each new node's row among those of its type on this rank, and types' counts."""
        store, old, num_types = self._store, self._order.old, len(self._store.node_types)
        if not num_types:
            return np.empty(0, np.int32), []
        types = np.zeros(self._order.new.num_local, np.uint8)
        for start, stop in self._ranks.rounds(_even(old.num_local, 1), lambda: (0, 0)):
            with self._ranks.agree():
                own_types = store.read_types(old.start + start, old.start + stop)
            assert own_types is not None
            rows, arrived = self._to_new(slice(start, stop), own_types)
            types[rows] = arrived
        row_in_type = np.empty(len(types), np.int32)
        counts = []
        for number in range(num_types):
            of_type = np.flatnonzero(types == number)
            row_in_type[of_type] = np.arange(len(of_type), dtype=np.int32)
            counts.append(len(of_type))
        return row_in_type, counts

    def _to_new(self, rows: Any, values: Array) -> tuple[LocalIndices, Array]:
        """Send values of some own old nodes; return the new local rows and values received."""
        ids, new = self._order.new_id[rows], self._order.new
        ids, arrived = self._ranks.exchange(self._ranks.owners(new, ids), ids, values)
        return new.to_local(ids), arrived


def _append(scratch: Scratch, num_rows: int, append: Callable[[Array], None]) -> None:
    # Append an empty array first, because features keep their columns even without rows.
    append(scratch.read(0, 0))
    for start, stop in _even(num_rows, scratch.item_bytes):
        append(scratch.read(start, stop))
        watchdog.beat()


def _even(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    step = max(1, STEP_BYTES // max(1, row_bytes))
    for start in range(0, num_rows, step):
        yield start, min(start + step, num_rows)


def _by_row(rows: LocalIndices, values: Array) -> tuple[Array, list[tuple[int, int]]]:
    """Return values in the order of their rows, and the runs that they make in a scratch file."""
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    begins = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    counts = np.diff(np.append(begins, len(rows)))
    return values[order], list(zip(rows[begins].tolist(), counts.tolist(), strict=True))


def _in_runs(
    rows: GlobalIndices, offsets: Offsets, entries: Array, indptr: Offsets
) -> tuple[Array, list[tuple[int, int]]]:
    """Return entries and the runs that they make in a scratch file with row offsets `indptr`.

    The entries of the new local `rows` begin at `offsets`.
    """
    first = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    ends = offsets[np.append(first[1:], len(rows))]
    counts = ends - offsets[first]
    return entries, list(zip(indptr[rows[first]].tolist(), counts.tolist(), strict=True))


def _read_nodes(store: GraphStore, start: int, stop: int) -> NodeBlock:
    """Read the data of nodes, without sparse features, which are moved as edges are."""
    return store.read_nodes(start, stop, features=not store.sparse_columns)


def node_arrays(store: GraphStore, block: NodeBlock) -> dict[str, Array]:
    """Return the existing arrays with a row for each node of a block, splits by their names too."""
    arrays = {name: getattr(block, name) for name in NODE_ARRAYS}
    arrays["positions"] = store.read_positions(block.start, block.stop)
    arrays["weights"] = store.read_node_weights(block.start, block.stop)
    for split in store.splits:
        arrays[f"{_SPLIT}{split}"] = store.read_split(block.start, block.stop, split)
    return {name: array for name, array in arrays.items() if array is not None}


def appender(store: GraphStore, writer: StoreWriter, name: str) -> Callable[[Array], None]:
    """Return the function that appends rows of the array `name` of `node_arrays` to a store."""
    if name.startswith(_SPLIT):
        split = name.removeprefix(_SPLIT) if writer.header.splits else ""
        return partial(writer.append_split, name=split)
    if name == "positions":
        return partial(writer.append_positions, box=store.box)
    return getattr(writer, _APPENDERS[name])


def copy_names(store: GraphStore, writer: StoreWriter, start: int, stop: int) -> None:
    """Copy the names, if any, of the original ids `start` to ``stop - 1``."""
    for low, high in _even(stop - start, _NAME_BYTES) if stop > start else ((0, 0),):
        names = store.read_names(start + low, start + high)
        if names is not None:
            writer.append_names(names.offsets, names.data)


def columns_of(store: GraphStore, relation: str) -> EdgeColumns:
    """Return the columns of data that the edges of a relation have."""
    edge_columns = EdgeColumns(store.weighted(relation), store.has_edge_split(relation))
    width, dtype = store.edge_features(relation)
    if dtype is not None:
        edge_columns = replace(edge_columns, num_features=width, dtype=dtype.str)
    width, dtype = store.labels_of_edges(relation)
    if dtype is not None:
        edge_columns = replace(edge_columns, num_labels=width, label_dtype=dtype.str)
    return edge_columns


def entry_type(edge_columns: EdgeColumns) -> np.dtype[Any]:
    """Return the dtype of a moved non-zero: its new column, and its value if it has one."""
    value = edge_columns.record()
    return np.dtype([("column", "<i8")] + ([] if value is None else [("value", value)]))


def sorted_blocks(
    indptr: Offsets, scratch: Scratch, edge_columns: EdgeColumns, num_columns: int
) -> Iterator[SortedRows]:
    """Yield the rows whose non-zeros, of `entry_type`, are in `scratch`, a block at a time."""
    entry = entry_type(edge_columns)
    for start, stop in row_blocks(indptr, BLOCK_BYTES // entry.itemsize):
        entries = scratch.read(int(indptr[start]), int(indptr[stop]))
        local = indptr[start : stop + 1] - indptr[start]
        # Sort positions by column inside each row.
        positions = np.arange(len(entries))
        shape = (stop - start, num_columns)
        rows = sparse.csr_matrix((positions, entries["column"], local), shape=shape)
        rows.sort_indices()
        values = entries["value"][rows.data] if "value" in (entry.names or ()) else None
        yield SortedRows(local, rows.indices.astype(np.int64), *edge_columns.unpack(values))
