"""Reading what belongs to single nodes, as slabs, checked as they are read."""

from collections.abc import Callable
from pathlib import Path

from hpcgnn.storage import checks
from hpcgnn.storage.blocks import NodeBlock
from hpcgnn.storage.datasets import damaged, read_slab
from hpcgnn.storage.layout import Layout
from hpcgnn.storage.typed_nodes import read_type_features
from hpcgnn.typing import Array, FloatArray

__all__ = ["NodeReader", "check_rows"]


def check_rows(start: int, stop: int, num_nodes: int) -> None:
    """Raise `ValueError` unless `start` to `stop` is a range of rows."""
    if not 0 <= start <= stop <= num_nodes:
        raise ValueError(f"rows {start} to {stop} are not within 0 to {num_nodes}")


class NodeReader:
    """The node data of an open store; a kind of data that it lacks reads as None."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self._path, self._layout = path, layout
        self._num_nodes: int = layout.attributes["num_nodes"]

    def read_nodes(self, start: int, stop: int) -> NodeBlock:
        """Return all data of the nodes."""
        features = self._column("features", start, stop, checks.fault_in_features)
        original_id = self._column("original_id", start, stop, None)
        assert original_id is not None
        labels, split = self.read_labels(start, stop), self.read_split(start, stop)
        types = self.read_types(start, stop)
        by_type: tuple[FloatArray, ...] = ()
        if types is not None:
            layout = self._layout
            by_type = read_type_features(
                self._path, layout.datasets, layout.node_types, start, types
            )
        return NodeBlock(start, stop, features, labels, split, original_id, types, by_type)

    def read_types(self, start: int, stop: int) -> Array | None:
        """Return the types of the nodes."""

        def fault_in_types(rows: Array, first: int) -> str | None:
            return checks.fault_in_types(rows, len(self._layout.node_types), first)

        return self._column("type", start, stop, fault_in_types)

    def read_labels(self, start: int, stop: int) -> Array | None:
        """Return the labels of the nodes."""
        num_classes: int = self._layout.attributes["num_classes"]

        def fault_in_labels(rows: Array, first: int) -> str | None:
            return checks.fault_in_labels(rows, num_classes, first)

        return self._column("labels", start, stop, fault_in_labels)

    def read_split(self, start: int, stop: int) -> Array | None:
        """Return the split of the nodes."""
        return self._column("split", start, stop, checks.fault_in_split)

    def _column(
        self,
        name: str,
        start: int,
        stop: int,
        find_fault: Callable[[Array, int], str | None] | None,
    ) -> Array | None:
        check_rows(start, stop, self._num_nodes)
        dataset = self._layout.datasets.get(f"/nodes/{name}")
        if dataset is None:
            return None
        rows = read_slab(self._path, dataset, start, stop)
        fault = None if find_fault is None else find_fault(rows, start)
        if fault is not None:
            raise damaged(self._path, dataset.name, fault)
        return rows
