"""Write a store whose rows and columns follow a partition, part after part.

The nodes of one part that lie in one old block are neighbours in the new order too. So one pass
over the old blocks writes a few long runs each into a scratch file, at their new place, and a
second pass reads the scratch file in order. Memory holds a few arrays of length n and one block,
whatever the size of the graph. The features of a node type have a scratch file of their own: among
the nodes of that type alone, those of a part and an old block are neighbours in the new order too.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hpcgnn.console import Progress
from hpcgnn.partition.blocks import BLOCK_BYTES, even_blocks, part_runs, row_blocks, row_positions
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.scratch import Scratch
from hpcgnn.storage import (
    CSRBlock,
    EdgeColumns,
    EdgeData,
    GraphStore,
    NodeBlock,
    NodeType,
    SortedRows,
    StoreWriter,
)
from hpcgnn.typing import Array, GlobalIndices, Offsets

NODE_ARRAYS = {
    "features": "append_features",
    "labels": "append_labels",
    "original_id": "append_original_id",
    "graph": "append_graph",
    "types": "append_types",
}
"""The arrays of a `NodeBlock` with a row for each node, and what appends them to a writer."""

_SPLIT = "split "
_NAME_BYTES = 64


def write_partitioned(
    store: GraphStore,
    path: Path,
    partition: Partition,
    *,
    method: str,
    seed: int,
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> None:
    """Write `store` to `path` with its nodes in the order of `partition`.

    All relations and node data are kept; original ids are composed with those of `store`.
    `method`, `seed` and `metrics` are recorded with the parts. Raises InputError when the
    directory of `path` cannot be written or is full.
    """
    partition.validate()
    with StoreWriter(path, store.header(provenance)) as writer:
        _Permuter(store, writer, partition, path.absolute().parent).run()
        writer.set_partition(partition.row_starts(), method, seed, metrics)


def node_arrays(store: GraphStore, block: NodeBlock) -> dict[str, Array]:
    """Return what there is with a row for each node of a block: splits by their names."""
    arrays = {name: getattr(block, name) for name in NODE_ARRAYS}
    for split in store.splits:
        arrays[f"{_SPLIT}{split}"] = store.read_split(block.start, block.stop, split)
    return {name: array for name, array in arrays.items() if array is not None}


def appender(writer: StoreWriter, name: str) -> Callable[[Array], None]:
    """Return what appends rows of the array `name` of `node_arrays` to a store."""
    if name.startswith(_SPLIT):
        split = name.removeprefix(_SPLIT) if writer.header.splits else ""
        return partial(writer.append_split, name=split)
    found: Callable[[Array], None] = getattr(writer, NODE_ARRAYS[name])
    return found


def copy_names(store: GraphStore, writer: StoreWriter, start: int, stop: int) -> None:
    """Copy names, if there are any: those of the original ids `start` to `stop` - 1."""
    for low, high in even_blocks(stop - start, _NAME_BYTES) if stop > start else ((0, 0),):
        names = store.read_names(start + low, start + high)
        if names is not None:
            writer.append_names(names.offsets, names.data)


def columns_of(store: GraphStore, relation: str) -> EdgeColumns:
    """Return what the edges of a relation have."""
    columns, dtype = store.edge_features(relation)
    kind = "<f4" if dtype is None else dtype.str
    return EdgeColumns(store.weighted(relation), store.has_edge_split(relation), columns, kind)


def entry_type(kinds: EdgeColumns) -> np.dtype[Any]:
    """Return the type of a non-zero on its way: its new column, and its value if it has one."""
    value = kinds.record()
    return np.dtype([("column", "<i8")] + ([] if value is None else [("value", value)]))


@dataclass(frozen=True)
class _TypeRows:
    """The features of one node type on their way: type `number`, next free row of each part."""

    number: int
    kind: NodeType
    scratch: Scratch
    cursor: Offsets

    @property
    def row_bytes(self) -> int:
        assert self.kind.dtype is not None
        return self.kind.num_features * self.kind.dtype.itemsize

    def scatter(self, block: NodeBlock, part: Array) -> None:
        """Put the features of the block's nodes of this type, whose parts are `part`, aside."""
        mine = part[block.types == self.number]
        rows = np.argsort(mine, kind="stable")
        runs = list(part_runs(mine, self.cursor))
        self.scratch.scatter(block.type_features[self.number][rows], runs)


class _Permuter:
    """Moves everything of one store into a writer, in the order of a partition."""

    def __init__(
        self, store: GraphStore, writer: StoreWriter, partition: Partition, scratch_dir: Path
    ) -> None:
        self._store, self._writer, self._partition = store, writer, partition
        self._scratch_dir = scratch_dir
        self._order = partition.permutation()
        self._new_id = np.empty_like(self._order)
        self._new_id[self._order] = np.arange(self._order.size)

    def run(self) -> None:
        """Move all relations, then all node data."""
        store = self._store
        total = store.num_nodes * 2 * (len(store.relations) + 1)
        with Progress("permuting", total, "rows") as self._progress:
            for relation in store.relations:
                self._move_relation(relation)
            self._move_nodes()

    def _move_relation(self, relation: str) -> None:
        store, part = self._store, self._partition.part
        indptr = store.read_indptr(0, store.num_nodes, relation)
        new_indptr = np.zeros_like(indptr)
        np.cumsum(np.diff(indptr)[self._order], out=new_indptr[1:])
        cursor = self._partition.row_starts()[:-1].copy()
        kinds = columns_of(store, relation)
        entry = entry_type(kinds)
        with Scratch(self._scratch_dir, entry) as scratch:
            for start, stop in row_blocks(indptr, BLOCK_BYTES // entry.itemsize):
                block = store.read_adjacency(start, stop, relation)
                rows = np.argsort(part[start:stop], kind="stable")
                runs = [
                    (int(new_indptr[first]), int(new_indptr[first + count] - new_indptr[first]))
                    for first, count in part_runs(part[start:stop], cursor)
                ]
                data = store.read_edge_data(start, stop, relation) if kinds.has_data else EdgeData()
                values = kinds.pack(block.weights, data)
                scratch.scatter(self._entries(block, rows, entry, values), runs)
                self._progress.advance(stop - start)
            self._write_relation(relation, new_indptr, scratch, kinds)

    def _entries(
        self, block: CSRBlock, rows: GlobalIndices, entry: Any, values: Array | None
    ) -> Array:
        """Return the non-zeros of the block's `rows`, in that order, with new columns."""
        positions = row_positions(block.indptr, rows)
        entries: Array = np.empty(positions.size, entry)
        entries["column"] = self._new_id[block.indices[positions]]
        if values is not None:
            entries["value"] = values[positions]
        return entries

    def _write_relation(
        self, relation: str, indptr: Offsets, scratch: Scratch, kinds: EdgeColumns
    ) -> None:
        for rows in sorted_blocks(indptr, scratch, kinds, self._store.num_nodes):
            self._writer.append_rows(rows, relation)
            self._progress.advance(rows.num_rows)

    def _move_nodes(self) -> None:
        present = node_arrays(self._store, self._store.read_nodes(0, 1))
        row_bytes = sum(array[:1].nbytes for array in present.values())
        with ExitStack() as stack:
            scratches = {
                name: stack.enter_context(Scratch(self._scratch_dir, array.dtype, array.shape[1:]))
                for name, array in present.items()
            }
            by_type = self._open_types(stack)
            row_bytes += max((each.row_bytes for each in by_type), default=0)
            self._scatter(scratches, by_type, row_bytes)
            for name, scratch in scratches.items():
                self._append(
                    appender(self._writer, name), scratch, self._store.num_nodes, row_bytes
                )
            for each in by_type:
                self._append_type(each)
            copy_names(self._store, self._writer, 0, self._store.num_nodes)
            self._progress.advance(self._store.num_nodes)

    def _open_types(self, stack: ExitStack) -> list[_TypeRows]:
        kinds = self._store.node_types
        cursors = self._type_cursors() if kinds else {}
        return [
            _TypeRows(
                number,
                kind,
                stack.enter_context(Scratch(self._scratch_dir, kind.dtype, (kind.num_features,))),
                cursors[number],
            )
            for number, kind in enumerate(kinds)
            if kind.dtype is not None
        ]

    def _type_cursors(self) -> dict[int, Offsets]:
        """Return, for each type, the row of each part's first node among the type's new rows."""
        partition, num_types = self._partition, len(self._store.node_types)
        counts = np.zeros((num_types, partition.num_parts), np.int64)
        for start, stop in even_blocks(self._store.num_nodes, 1):
            types = self._store.read_types(start, stop)
            assert types is not None
            keys = types.astype(np.int64) * partition.num_parts + partition.part[start:stop]
            counts += np.bincount(keys, minlength=counts.size).reshape(counts.shape)
        return {number: np.cumsum(row) - row for number, row in enumerate(counts)}

    def _scatter(
        self, scratches: dict[str, Scratch], by_type: list[_TypeRows], row_bytes: int
    ) -> None:
        cursor = self._partition.row_starts()[:-1].copy()
        for start, stop in even_blocks(self._store.num_nodes, row_bytes):
            block = self._store.read_nodes(start, stop)
            part = self._partition.part[start:stop]
            rows = np.argsort(part, kind="stable")
            runs = list(part_runs(part, cursor))
            for name, array in node_arrays(self._store, block).items():
                scratches[name].scatter(array[rows], runs)
            for each in by_type:
                each.scatter(block, part)
            self._progress.advance(stop - start)

    def _append_type(self, rows: _TypeRows) -> None:
        name = rows.kind.name

        def append(block: Array) -> None:
            self._writer.append_type_features(name, block)

        if rows.kind.num_nodes == 0:
            # Without nodes too, the type keeps its columns.
            append(rows.scratch.read(0, 0))
        self._append(append, rows.scratch, rows.kind.num_nodes, rows.row_bytes)

    def _append(
        self, append: Callable[[Array], None], scratch: Scratch, num_rows: int, row_bytes: int
    ) -> None:
        for start, stop in even_blocks(num_rows, row_bytes):
            append(scratch.read(start, stop))


def sorted_blocks(
    indptr: Offsets, scratch: Scratch, kinds: EdgeColumns, num_nodes: int
) -> Iterator[SortedRows]:
    """Yield the rows whose non-zeros, of `entry_type`, stand in `scratch`, a block at a time."""
    entry = entry_type(kinds)
    for start, stop in row_blocks(indptr, BLOCK_BYTES // entry.itemsize):
        entries = scratch.read(int(indptr[start]), int(indptr[stop]))
        local = indptr[start : stop + 1] - indptr[start]
        columns, order = _sort_rows(local, entries["column"], num_nodes)
        values = entries["value"][order] if "value" in (entry.names or ()) else None
        weights, data = kinds.unpack(values)
        yield SortedRows(local, columns, weights, data)


def _sort_rows(
    indptr: Offsets, columns: GlobalIndices, num_columns: int
) -> tuple[GlobalIndices, GlobalIndices]:
    """Return the columns sorted inside each row of a CSR block, and where each of them was."""
    places = np.arange(columns.size)
    rows = sparse.csr_matrix((places, columns, indptr), shape=(indptr.size - 1, num_columns))
    rows.sort_indices()
    return rows.indices.astype(np.int64), rows.data
