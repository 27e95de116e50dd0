"""The per-node datasets of a store that is being written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage import checks, schema
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.schema import StoreHeader
from hpcgnn.storage.typed_nodes import group_by_type
from hpcgnn.typing import Array

__all__ = ["NodeWriter"]

ID_STEP = 1 << 20


def nothing_wrong(rows: Array, start: int) -> None:
    """Accept any values."""


class NodeWriter:
    """Check and append all that belongs to single nodes; all errors are `InputError`."""

    def __init__(self, path: Path, file: h5py.File, header: StoreHeader) -> None:
        self._path, self._file, self._header = path, file, header
        self._columns: dict[str, Column] = {}
        self._type_counts = np.zeros(len(header.node_types), np.int64)

    def features(self, block: ArrayLike) -> None:
        """Append features (m, f) of a graph without node types."""
        if self._header.node_types:
            raise self._fault("features", "the graph has node types; give each type's features")
        self._append_features("features", block)

    def type_features(self, node_type: str, block: ArrayLike) -> None:
        """Append features (m, f) of nodes of one type."""
        if node_type not in self._header.node_types:
            known = ", ".join(map(repr, self._header.node_types)) or "none"
            raise self._fault("features", f"there is no node type {node_type!r}; known: {known}")
        self._append_features(f"features/{node_type}", block)

    def types(self, block: ArrayLike) -> None:
        """Append node types (m,), and the nodes' rows among those of their type."""
        array, num_types = np.asarray(block), len(self._header.node_types)
        if num_types == 0:
            raise self._fault("type", "is given for a graph without node types; name them")
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise self._misfit("type", array, "integers of shape ('n',)")

        def fault(rows: Array, start: int) -> str | None:
            return checks.fault_in_types(rows, num_types, start)

        self._append("type", array, schema.TYPE_DTYPE, fault)
        order, bounds = group_by_type(array, num_types)
        counts = np.diff(bounds)
        rows = np.empty(len(array), schema.ID_DTYPE)
        rows[order] = np.arange(len(array)) + np.repeat(self._type_counts - bounds[:-1], counts)
        self._append("type_row", rows, schema.ID_DTYPE, nothing_wrong)
        self._type_counts += counts

    def labels(self, block: ArrayLike) -> None:
        """Append labels (m,), or (m, num_classes) when multi-label."""
        array, classes = np.asarray(block), self._header.num_classes
        row_shape = (classes,) if self._header.multi_label else ()
        if classes < 1:
            raise self._fault("labels", "are given, but num_classes is 0; give their number")
        if array.dtype.kind not in "iub" or array.ndim == 0 or array.shape[1:] != row_shape:
            wanted = f"integers of shape {('n', *row_shape)} (num_classes={classes})"
            raise self._misfit("labels", array, wanted)
        dtype = schema.MULTI_LABEL_DTYPE if row_shape else schema.LABEL_DTYPE

        def fault(rows: Array, start: int) -> str | None:
            return checks.fault_in_labels(rows, classes, start)

        self._append("labels", array, dtype, fault)

    def split(self, block: ArrayLike) -> None:
        """Append split values (m,)."""
        array = np.asarray(block)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise self._misfit("split", array, "integers of shape ('n',)")
        self._append("split", array, schema.SPLIT_DTYPE, checks.fault_in_split)

    def original_id(self, block: ArrayLike) -> None:
        """Append original ids (m,)."""
        array = np.asarray(block)
        if array.dtype.kind not in "iu" or array.ndim != 1:
            raise self._misfit("original_id", array, "integers of shape ('n',)")
        self._append("original_id", array, schema.ID_DTYPE, nothing_wrong)

    def finish(self) -> list[Column]:
        """Complete the datasets, with ids 0..n - 1 where none were given; return them."""
        num_nodes = self._header.num_nodes
        if "original_id" not in self._columns:
            for start in range(0, num_nodes, ID_STEP):
                self.original_id(np.arange(start, min(start + ID_STEP, num_nodes)))
        if self._header.node_types and "type" not in self._columns:
            raise self._fault("type", "is missing, but the graph has node types")
        self._check_rows()
        if self._header.num_classes and "labels" not in self._columns:
            classes = self._header.num_classes
            raise self._fault("labels", f"is missing, but num_classes is {classes}")
        columns = [*self._columns.values(), *self._described_types()]
        for column in columns:
            column.finish()
        return columns

    def _check_rows(self) -> None:
        num_nodes = self._header.num_nodes
        expected = {
            f"features/{name}": (int(count), f"nodes of type {name!r}")
            for name, count in zip(self._header.node_types, self._type_counts, strict=True)
        }
        for name, column in self._columns.items():
            rows, what = expected.get(name, (num_nodes, "nodes"))
            if column.rows != rows:
                raise self._fault(name, f"has {column.rows} rows for {rows} {what}")

    def _described_types(self) -> list[Column]:
        if not self._header.node_types:
            return []
        texts = np.array([name.encode() for name in self._header.node_types])
        names = Column(self._file, "/node_types/names", texts.dtype)
        names.append(texts)
        counts = Column(self._file, "/node_types/counts", schema.ID_DTYPE)
        counts.append(self._type_counts)
        return [names, counts]

    def _append_features(self, name: str, block: ArrayLike) -> None:
        array = np.asarray(block)
        dtype = array.dtype.newbyteorder("<")
        if array.ndim != 2 or array.shape[1] == 0 or dtype not in schema.FEATURE_DTYPES:
            wanted = "a matrix of float16, float32 or float64 with at least one column"
            raise self._misfit(name, array, wanted)
        self._append(name, array, dtype, checks.fault_in_features)

    def _append(
        self,
        name: str,
        array: Array,
        dtype: np.dtype[Any],
        fault: Callable[[Array, int], str | None],
    ) -> None:
        if name not in self._columns:
            self._columns[name] = Column(self._file, f"/nodes/{name}", dtype, array.shape[1:])
        column = self._columns[name]
        if array.shape[1:] != column.row_shape or dtype != column.dtype:
            wanted = f"{column.dtype} rows of shape {column.row_shape} like the rows before"
            raise self._misfit(name, array, wanted)
        if column.rows + len(array) > self._header.num_nodes:
            total = column.rows + len(array)
            raise self._fault(name, f"has at least {total} rows for {self._header.num_nodes} nodes")
        # Before the cast, which could wrap a wrong value into a right one.
        found = fault(array, column.rows)
        if found:
            raise self._fault(name, found)
        column.append(array.astype(dtype, copy=False))

    def _misfit(self, name: str, array: Array, wanted: str) -> InputError:
        return self._fault(name, f"has shape {array.shape} and type {array.dtype}; give {wanted}")

    def _fault(self, name: str, text: str) -> InputError:
        return InputError(f"{self._path}: /nodes/{name}: {text}")
