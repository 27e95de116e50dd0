"""The adjacency of one relation of a store that is being written."""

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage import checks, schema
from hpcgnn.storage.datasets import Column
from hpcgnn.typing import Array

__all__ = ["RelationWriter"]


class RelationWriter:
    """Check and append the block rows of one relation; all errors are `InputError`."""

    def __init__(
        self, path: Path, file: h5py.File, relation: str, num_nodes: int, *, weighted: bool
    ) -> None:
        self._path, self._num_nodes = path, num_nodes
        self._group = schema.relation_path(relation)
        self._indptr = Column(file, f"{self._group}/indptr", schema.INDPTR_DTYPE)
        self._indices = Column(file, f"{self._group}/indices", schema.index_dtype(num_nodes))
        self._weights = (
            Column(file, f"{self._group}/weights", schema.WEIGHTS_DTYPE) if weighted else None
        )
        self._indptr.append(np.zeros(1, schema.INDPTR_DTYPE))

    def append(
        self, indptr_block: ArrayLike, indices: ArrayLike, weights: ArrayLike | None
    ) -> None:
        """Append block rows; see `StoreWriter.append_adjacency`."""
        indptr, columns = np.asarray(indptr_block), np.asarray(indices)
        self._check_pattern(indptr, columns)
        if (weights is not None) != (self._weights is not None):
            raise self._fault("weights", "are given for some rows only; give them for all or none")
        if weights is not None and self._weights is not None:
            self._append_weights(self._weights, np.asarray(weights), len(columns))
        first = self._indices.rows
        self._indices.append(columns.astype(self._indices.dtype, copy=False))
        self._indptr.append(indptr[1:].astype(schema.INDPTR_DTYPE) + first)

    def finish(self) -> list[Column]:
        """Complete the datasets and return them."""
        rows = self._indptr.rows - 1
        if rows != self._num_nodes:
            raise self._fault("indptr", f"{rows} rows were written for {self._num_nodes} nodes")
        columns = [self._indptr, self._indices]
        if self._weights is not None:
            columns.append(self._weights)
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
        for name, fault in (
            ("indptr", checks.fault_in_offsets(indptr, row)),
            ("indices", checks.fault_in_columns(indices, self._num_nodes)),
        ):
            if fault:
                raise self._fault(name, fault)
        fault = checks.fault_in_order(indptr, indices, row)
        if fault:
            raise self._fault("indices", fault)

    def _append_weights(self, column: Column, weights: Array, expected: int) -> None:
        if weights.shape != (expected,) or weights.dtype.kind not in "iuf":
            raise self._fault(
                "weights",
                f"have shape {weights.shape} and type {weights.dtype}; give numbers ({expected},)",
            )
        with np.errstate(over="ignore"):
            # What overflows becomes infinite, and is refused as that.
            values = weights.astype(schema.WEIGHTS_DTYPE)
        fault = checks.fault_in_weights(values)
        if fault:
            raise self._fault("weights", fault)
        column.append(values)

    def _fault(self, name: str, text: str) -> InputError:
        return InputError(f"{self._path}: {self._group}/{name}: {text}")
