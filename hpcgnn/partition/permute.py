"""Write a store whose rows and columns follow a partition, part after part.

The nodes of one part that lie in one old block are neighbours in the new order too. So one pass
over the old blocks writes a few long runs each into a scratch file, at their new place, and a
second pass reads the scratch file in order. Memory holds a few arrays of length n and one block,
whatever the size of the graph.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from hpcgnn.console import Progress
from hpcgnn.partition.blocks import BLOCK_BYTES, part_runs, row_blocks, row_positions
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.permute_nodes import NodeMover
from hpcgnn.partition.scratch import Scratch
from hpcgnn.storage import CSRBlock, GraphStore, StoreHeader, StoreWriter
from hpcgnn.typing import Array, GlobalIndices, Offsets

__all__ = ["write_partitioned"]


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
    header = StoreHeader(
        name=store.name,
        num_nodes=store.num_nodes,
        num_classes=store.num_classes,
        multi_label=store.multi_label,
        undirected=store.undirected,
        class_names=store.class_names,
        node_types=tuple(each.name for each in store.node_types),
        provenance=provenance,
    )
    with StoreWriter(path, header) as writer:
        _Permuter(store, writer, partition, path.absolute().parent).run()
        writer.set_partition(partition.row_starts(), method, seed, metrics)


class _Permuter:
    """Moves everything of one store into a writer, in the order of a partition."""

    def __init__(
        self,
        store: GraphStore,
        writer: StoreWriter,
        partition: Partition,
        scratch_dir: Path,
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
            mover = NodeMover(store, self._writer, self._partition, self._scratch_dir)
            mover.run(self._progress)

    def _move_relation(self, relation: str) -> None:
        store, part = self._store, self._partition.part
        indptr = store.read_indptr(0, store.num_nodes, relation)
        new_indptr = np.zeros_like(indptr)
        np.cumsum(np.diff(indptr)[self._order], out=new_indptr[1:])
        cursor = self._partition.row_starts()[:-1].copy()
        weighted = store.weighted(relation)
        entry = np.dtype([("column", np.int64), ("weight", np.float32)] if weighted else np.int64)
        with Scratch(self._scratch_dir, entry) as scratch:
            for start, stop in row_blocks(indptr, BLOCK_BYTES // entry.itemsize):
                block = store.read_adjacency(start, stop, relation)
                rows = np.argsort(part[start:stop], kind="stable")
                runs = [
                    (int(new_indptr[first]), int(new_indptr[first + count] - new_indptr[first]))
                    for first, count in part_runs(part[start:stop], cursor)
                ]
                scratch.scatter(self._entries(block, rows, entry), runs)
                self._progress.advance(stop - start)
            self._write_relation(relation, new_indptr, scratch, weighted)

    def _entries(self, block: CSRBlock, rows: GlobalIndices, entry: Any) -> Array:
        """Return the non-zeros of the block's `rows`, in that order, with new columns."""
        positions = row_positions(block.indptr, rows)
        columns: Array = self._new_id[block.indices[positions]]
        if block.weights is None:
            return columns
        entries: Array = np.empty(columns.size, entry)
        entries["column"], entries["weight"] = columns, block.weights[positions]
        return entries

    def _write_relation(
        self, relation: str, indptr: Offsets, scratch: Scratch, weighted: bool
    ) -> None:
        entry_bytes = 12 if weighted else 8
        for start, stop in row_blocks(indptr, BLOCK_BYTES // entry_bytes):
            entries = scratch.read(int(indptr[start]), int(indptr[stop]))
            columns = entries["column"] if weighted else entries
            weights = entries["weight"] if weighted else None
            local = indptr[start : stop + 1] - indptr[start]
            columns, weights = _sort_rows(local, columns, weights, self._store.num_nodes)
            self._writer.append_adjacency(local, columns, weights, relation)
            self._progress.advance(stop - start)


def _sort_rows(
    indptr: Offsets, columns: GlobalIndices, weights: Array | None, num_columns: int
) -> tuple[GlobalIndices, Array | None]:
    """Sort the columns inside each row of a CSR block, weights along with them."""
    data = np.ones(columns.size, np.int8) if weights is None else weights
    rows = sparse.csr_matrix((data, columns, indptr), shape=(indptr.size - 1, num_columns))
    rows.sort_indices()
    return rows.indices.astype(np.int64), None if weights is None else rows.data
