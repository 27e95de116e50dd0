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
from hpcgnn.typing import Array

__all__ = ["NodeWriter"]

ID_STEP = 1 << 20


def nothing_wrong(rows: Array, start: int) -> None:
    """Accept any values."""


class NodeWriter:
    """Check and append features, labels, split and original ids; all errors are `InputError`."""

    def __init__(self, path: Path, file: h5py.File, header: StoreHeader) -> None:
        self._path, self._file, self._header = path, file, header
        self._columns: dict[str, Column] = {}

    def features(self, block: ArrayLike) -> None:
        """Append features (m, f)."""
        array = np.asarray(block)
        dtype = array.dtype.newbyteorder("<")
        if array.ndim != 2 or array.shape[1] == 0 or dtype not in schema.FEATURE_DTYPES:
            wanted = "a matrix of float16, float32 or float64 with at least one column"
            raise self._misfit("features", array, wanted)
        self._append("features", array, dtype, checks.fault_in_features)

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
        for name, column in self._columns.items():
            if column.rows != num_nodes:
                raise self._fault(name, f"has {column.rows} rows for {num_nodes} nodes")
        if self._header.num_classes and "labels" not in self._columns:
            classes = self._header.num_classes
            raise self._fault("labels", f"is missing, but num_classes is {classes}")
        for column in self._columns.values():
            column.finish()
        return list(self._columns.values())

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
