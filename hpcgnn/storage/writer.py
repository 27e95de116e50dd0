"""Writing a store: block rows in order, checks on the way, all or nothing at the end."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage import checks, schema
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.hdf5_writer import HDF5Writer
from hpcgnn.storage.node_writer import NodeWriter
from hpcgnn.storage.relation_writer import RelationWriter
from hpcgnn.storage.schema import StoreHeader

__all__ = ["StoreWriter"]


class StoreWriter(HDF5Writer):
    """Write a store to `path`, whole or not at all; wrong values raise `InputError`."""

    def __init__(self, path: str | os.PathLike[str], header: StoreHeader) -> None:
        super().__init__(path)
        self.header = header
        self._provenance = schema.encode_json("provenance", header.provenance)
        self._relations: dict[str, RelationWriter] = {}
        self._partition: list[Column] = []

    def _begin(self) -> None:
        super()._begin()
        self._nodes = NodeWriter(self.path, self._file, self.header)

    def append_adjacency(
        self,
        indptr_block: ArrayLike,
        indices: ArrayLike,
        weights: ArrayLike | None = None,
        relation: str = "",
    ) -> None:
        """Append the next block rows of a relation.

        `indptr_block` (m + 1,) starts at 0; `indices` (nnz,) are global columns, sorted and unique
        inside a row; `weights` (nnz,) are stored as float32. All blocks of a relation have weights
        or none has. Relations may take turns.
        """
        if relation not in self._relations:
            self._add_relation(relation, weighted=weights is not None)
        self._relations[relation].append(indptr_block, indices, weights)
        self._output.raise_on_error()

    def append_features(self, block: ArrayLike) -> None:
        """Append rows (m, num_features) of float16, float32 or float64, the same in all blocks.

        For a graph without node types; see `append_type_features`.
        """
        self._nodes.features(block)
        self._output.raise_on_error()

    def append_types(self, block: ArrayLike) -> None:
        """Append the types (m,) of nodes, positions in the header's `node_types`."""
        self._nodes.types(block)
        self._output.raise_on_error()

    def append_type_features(self, node_type: str, block: ArrayLike) -> None:
        """Append rows (m, F_t) of float16, float32 or float64 of the next m nodes of a type.

        Rows are in the nodes' order; they may come before or after the types. A type that is never
        given any has no features.
        """
        self._nodes.type_features(node_type, block)
        self._output.raise_on_error()

    def append_labels(self, block: ArrayLike) -> None:
        """Append labels: (m,) of -1..num_classes - 1, or (m, num_classes) of 0 and 1."""
        self._nodes.labels(block)
        self._output.raise_on_error()

    def append_split(self, block: ArrayLike) -> None:
        """Append the split (m,) of nodes, values of `Split`."""
        self._nodes.split(block)
        self._output.raise_on_error()

    def append_original_id(self, block: ArrayLike) -> None:
        """Append the numbers (m,) that the nodes had in the user's files; default 0..n - 1."""
        self._nodes.original_id(block)
        self._output.raise_on_error()

    def set_partition(
        self, row_starts: ArrayLike, method: str, seed: int, metrics: Mapping[str, Any]
    ) -> None:
        """Record, once, that part p owns rows `row_starts[p]` to `row_starts[p + 1]` - 1.

        `row_starts` (K + 1,) runs from 0 to num_nodes; parts may be empty. `metrics` must be JSON.
        """
        array = np.asarray(row_starts, dtype=schema.INDPTR_DTYPE)
        fault = checks.fault_in_row_starts(array, self.header.num_nodes)
        if fault:
            raise InputError(f"{self.path}: /partition/row_starts: {fault}")
        schema.check_text("partition method", method)
        column = Column(self._file, "/partition/row_starts", schema.INDPTR_DTYPE)
        column.append(array)
        column.finish()
        group = self._file["/partition"]
        group.attrs["seed"] = np.int64(seed)
        self._set_text(group, "method", method)
        self._set_text(group, "metrics", schema.encode_json("metrics", metrics))
        self._partition = [column]

    def _add_relation(self, relation: str, *, weighted: bool) -> None:
        schema.check_relation(relation)
        if self._relations and "" in {relation, *self._relations}:
            raise InputError(f"{self.path}: give one untyped relation or named ones, not both")
        self._relations[relation] = RelationWriter(
            self.path, self._file, relation, self.header.num_nodes, weighted=weighted
        )

    def _finish(self) -> None:
        if not self._relations:
            raise InputError(f"{self.path}: the graph has no adjacency; give at least one relation")
        columns = [c for relation in self._relations.values() for c in relation.finish()]
        for index, relation in enumerate(self._relations):
            self._file[schema.relation_path(relation)].attrs["index"] = np.int64(index)
        columns += self._nodes.finish() + self._class_names() + self._partition
        self._set_attributes(columns)

    def _class_names(self) -> list[Column]:
        if not self.header.class_names:
            return []
        encoded = np.array([name.encode() for name in self.header.class_names])
        column = Column(self._file, "/classes", encoded.dtype)
        column.append(encoded)
        column.finish()
        return [column]

    def _set_attributes(self, columns: list[Column]) -> None:
        attributes, header = self._file.attrs, self.header
        version = schema.TYPED_FORMAT_VERSION if header.node_types else schema.FORMAT_VERSION
        attributes["format_version"] = np.int64(version)
        attributes["num_nodes"] = np.int64(header.num_nodes)
        attributes["num_classes"] = np.int64(header.num_classes)
        attributes["multi_label"] = np.bool_(header.multi_label)
        attributes["undirected"] = np.bool_(header.undirected)
        described = [(c.path, c.dtype.str, (c.rows, *c.row_shape), c.crc) for c in columns]
        scalars = {key: int(attributes[key]) for key in schema.FINGERPRINT_SCALARS}
        self._set_text(self._file, "fingerprint", schema.fingerprint(scalars, described))
        self._set_text(self._file, "name", header.name)
        self._set_text(self._file, "provenance", self._provenance)
        self._set_text(self._file, "format", schema.FORMAT)
