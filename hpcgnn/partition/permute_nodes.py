"""Move what belongs to single nodes of a store into the order of a partition.

As with edges, a pass over the old blocks writes runs into scratch files and a second one reads them
in order. The features of a node type have a file of their own: among the nodes of that type alone,
those of a part and an old block are neighbours in the new order too.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.partition.blocks import even_blocks, part_runs
from hpcgnn.partition.parts import Partition
from hpcgnn.partition.scratch import Scratch
from hpcgnn.storage import GraphStore, NodeBlock, NodeType, StoreWriter
from hpcgnn.typing import Array, Offsets

__all__ = ["NodeMover"]

NODE_ARRAYS = {
    "features": "append_features",
    "labels": "append_labels",
    "split": "append_split",
    "original_id": "append_original_id",
    "types": "append_types",
}
"""The arrays of a `NodeBlock` with a row for each node, and what appends them to a writer."""


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


class NodeMover:
    """Moves node data from a store to a writer, in the order of a partition."""

    def __init__(
        self, store: GraphStore, writer: StoreWriter, partition: Partition, scratch_dir: Path
    ) -> None:
        self._store, self._writer, self._partition = store, writer, partition
        self._scratch_dir = scratch_dir

    def run(self, progress: Progress) -> None:
        """Move all node data; `progress` advances by twice the number of nodes."""
        first = self._store.read_nodes(0, 1)
        arrays = {name: getattr(first, name) for name in NODE_ARRAYS}
        present = {name: array for name, array in arrays.items() if array is not None}
        row_bytes = sum(array[:1].nbytes for array in present.values())
        with ExitStack() as stack:
            scratches = {
                name: stack.enter_context(Scratch(self._scratch_dir, array.dtype, array.shape[1:]))
                for name, array in present.items()
            }
            by_type = self._open_types(stack)
            row_bytes += max((each.row_bytes for each in by_type), default=0)
            self._scatter(scratches, by_type, row_bytes, progress)
            for name, scratch in scratches.items():
                append = getattr(self._writer, NODE_ARRAYS[name])
                self._append(append, scratch, self._store.num_nodes, row_bytes)
            for each in by_type:
                self._append_type(each)
            progress.advance(self._store.num_nodes)

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
        self,
        scratches: dict[str, Scratch],
        by_type: list[_TypeRows],
        row_bytes: int,
        progress: Progress,
    ) -> None:
        cursor = self._partition.row_starts()[:-1].copy()
        for start, stop in even_blocks(self._store.num_nodes, row_bytes):
            block = self._store.read_nodes(start, stop)
            part = self._partition.part[start:stop]
            rows = np.argsort(part, kind="stable")
            runs = list(part_runs(part, cursor))
            for name, scratch in scratches.items():
                scratch.scatter(getattr(block, name)[rows], runs)
            for each in by_type:
                each.scatter(block, part)
            progress.advance(stop - start)

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
