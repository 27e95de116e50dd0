"""Write the adjacency of one relation, or sparse features, row by row with checks."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage.datasets import Column, MakeColumn
from hpcgnn.storage.graph import checks, schema
from hpcgnn.storage.graph.blocks import SortedRows
from hpcgnn.typing import Array


class RelationWriter:
    """Check and append the block rows of one relation; all errors are `InputError`.

    `shape` is the number of rows and columns of the relation.
    """

    def __init__(
        self,
        path: Path,
        column: MakeColumn,
        relation: str,
        shape: tuple[int, int],
        kinds: Mapping[str, checks.Kind],
    ) -> None:
        self._path, self._kinds = path, kinds
        self._num_nodes, self._num_columns = shape
        self._group = schema.relation_path(relation)
        self._column = column
        self._indptr = column(f"{self._group}/indptr", schema.INDPTR_DTYPE, ())
        self._indices = column(f"{self._group}/indices", schema.index_dtype(self._num_columns), ())
        if self._indptr.rows == 0:
            self._indptr.append(np.zeros(1, schema.INDPTR_DTYPE))
        self._first_row = self._indptr.rows
        self._data: dict[str, Column] = {}

    @property
    def has_data(self) -> bool:
        """Whether the edges have features, a split or labels."""
        return bool(self._data.keys() - {"weights"})

    def append(self, rows: SortedRows) -> None:
        """Append block rows; see `StoreWriter.append_rows`."""
        indptr, columns = np.asarray(rows.indptr), np.asarray(rows.indices)
        self._check_pattern(indptr, columns)
        for name, values in (
            ("weights", rows.weights),
            ("features", rows.data.features),
            ("split", rows.data.split),
            ("labels", rows.data.labels),
        ):
            self._append_data(name, values, len(columns))
        first = self._indices.rows
        self._indices.append(columns.astype(self._indices.dtype, copy=False))
        self._indptr.append(indptr[1:].astype(schema.INDPTR_DTYPE) + first)

    def finished(self) -> int:
        """Return the number of non-zeros; raises if rows are missing."""
        rows = self._indptr.rows - 1
        if rows != self._num_nodes:
            raise self._fault("indptr", f"{rows} rows were written for {self._num_nodes} nodes")
        return self._indices.rows

    def finish(self) -> list[Column]:
        """Complete the datasets and return them."""
        self.finished()
        columns = [self._indptr, self._indices, *self._data.values()]
        for column in columns:
            column.finish()
        return columns

    def _check_pattern(self, indptr: Array, indices: Array) -> None:
        for name, array in (("indptr", indptr), ("indices", indices)):
            if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
                kind = f"has shape {array.shape} and type {array.dtype}"
                raise self._fault(name, f"{kind}; give integers (m,)")
        if len(indptr) < 1 or indptr[0] != 0 or indptr[-1] != len(indices):
            raise self._fault("indptr", f"must run from 0 to the block's {len(indices)} non-zeros")
        row = self._indptr.rows - 1
        if row + len(indptr) - 1 > self._num_nodes:
            raise self._fault("indptr", f"more rows were given than the {self._num_nodes} nodes")
        if fault := checks.fault_in_offsets(indptr, row):
            raise self._fault("indptr", fault)
        fault = checks.fault_in_columns(indices, self._num_columns)
        if fault := fault or checks.fault_in_order(indptr, indices, row):
            raise self._fault("indices", fault)

    def _append_data(self, name: str, block: ArrayLike | None, expected: int) -> None:
        column, kind = self._data.get(name), self._kinds[name]
        is_new = column is None and self._indptr.rows == self._first_row
        if (block is None) != (column is None) and not is_new:
            raise self._fault(name, "is given for some rows only; give it for all or none")
        if block is None:
            return
        values = np.asarray(block)
        dtype = kind.dtype_of(values)
        if column is None and dtype is not None:
            path = f"{self._group}/{name}"
            column = self._data[name] = self._column(path, dtype, values.shape[1:])
        if column is None or dtype != column.dtype or values.shape != (expected, *column.row_shape):
            shape = f"has shape {values.shape} and type {values.dtype}"
            raise self._fault(name, f"{shape}; give {kind.expected} for the {expected} edges")
        with np.errstate(over="ignore"):
            # Values that overflow become infinite and are refused below.
            stored = values.astype(dtype, copy=False)
        fault = kind.find_fault(stored if name == "weights" else values, column.rows)
        if fault:
            raise self._fault(name, fault.replace("node", "edge", 1))
        column.append(stored)

    def _fault(self, name: str, text: str) -> InputError:
        return InputError(f"{self._path}: {self._group}/{name}: {text}")
