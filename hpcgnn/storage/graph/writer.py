"""Write a store: rows in order, checked on the way, published at the end."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.files import HDF5Writer
from hpcgnn.storage.format import check_text, encode_json, fingerprint
from hpcgnn.storage.graph import checks, schema
from hpcgnn.storage.graph.blocks import SortedRows, group_by_type
from hpcgnn.storage.graph.fields import FieldColumn, FieldInfo, FieldsWriter, fields_scalars
from hpcgnn.storage.graph.names import NameWriter
from hpcgnn.storage.graph.relation_writer import RelationWriter
from hpcgnn.storage.graph.schema import StoreHeader
from hpcgnn.typing import Array

ID_STEP = 1 << 20


class StoreWriter(HDF5Writer):
    """Write a store to `path`, whole or not at all; wrong values raise `InputError`."""

    def __init__(self, path: str | os.PathLike[str], header: StoreHeader) -> None:
        super().__init__(path)
        self.header = header
        self._provenance = encode_json("provenance", header.provenance)
        self._relations: dict[str, RelationWriter] = {}
        self._sparse: RelationWriter | None = None
        self._nodes: dict[str, Column] = {}
        num_types = len(header.node_types)
        self._kinds = checks.node_kinds(
            header.num_classes, multi_label=header.multi_label, num_types=num_types
        )
        self._type_counts = np.zeros(num_types, np.int64)
        self._partition: list[Column] = []
        self._names: NameWriter | None = None
        self._box: tuple[float, ...] = ()
        self._fields = FieldsWriter(self.path, self._rows_of_field, self._field_column)
        self._id_range = (0, 0)

    def append_rows(self, rows: SortedRows, relation: str = "") -> None:
        """Append the next rows of a relation, or of `SPARSE_FEATURES`.

        Either all blocks of a relation have weights, stored as float32, or none, and likewise for
        their data. Calls for several relations may be interleaved.
        """
        if relation == schema.SPARSE_FEATURES:
            self.append_sparse_features(rows)
            return
        if relation not in self._relations:
            if relation:
                schema.check_link_name("relation", relation)
            if self._relations and "" in {relation, *self._relations}:
                raise InputError(f"{self.path}: give one untyped relation or named ones, not both")
            self._relations[relation] = self._rows_of(relation, self.header.num_nodes)
        self._relations[relation].append(rows)
        self._output.raise_on_error()

    def append_sparse_features(self, rows: SortedRows) -> None:
        """Append the next rows of sparse features, with the header's number of columns.

        Their values (nnz, 1) are the features of `rows.data`; all ones if it has no features.
        """
        columns = self.header.sparse_columns
        if not columns:
            raise self._fault("sparse_features", "are given, but the header has no sparse_columns")
        if self._sparse is None:
            self._sparse = self._rows_of(schema.SPARSE_FEATURES, columns)
        self._sparse.append(rows)
        self._output.raise_on_error()

    def _rows_of(self, relation: str, num_columns: int) -> RelationWriter:
        shape = self.header.num_nodes, num_columns
        kinds = checks.edge_kinds(len(self.header.edge_labels))
        return RelationWriter(self.path, self._column, relation, shape, kinds)

    def append_features(self, block: ArrayLike) -> None:
        """Append rows (m, num_features), float16, float32 or float64, of a graph without types."""
        if self.header.node_types:
            raise self._fault("features", "the graph has node types; give each type's features")
        if self.header.sparse_columns:
            raise self._fault("features", "are dense, but the header declares sparse ones")
        self._append_nodes("features", block)

    def append_types(self, block: ArrayLike) -> None:
        """Append the types (m,) of nodes, indices into the header's `node_types`."""
        num_types = len(self.header.node_types)
        if num_types == 0:
            raise self._fault("type", "is given for a graph without node types; name them")
        array = self._append_nodes("type", block)
        order, bounds = group_by_type(array, num_types)
        counts = np.diff(bounds)
        # A node's row in its type's matrix is the number of earlier nodes of its type.
        rows = np.empty(len(array), schema.ID_DTYPE)
        rows[order] = np.arange(len(array)) + np.repeat(self._type_counts - bounds[:-1], counts)
        self._append_nodes("type_row", rows)
        self._type_counts += counts

    def append_type_features(self, node_type: str, block: ArrayLike) -> None:
        """Append rows (m, F_t) of float16, float32 or float64 of the next m nodes of a type.

        Rows are in the nodes' order; they may come before or after the types. Types for which this
        is never called have no features.
        """
        if node_type not in self.header.node_types:
            names = ", ".join(map(repr, self.header.node_types)) or "none"
            raise self._fault("features", f"there is no node type {node_type!r}; known: {names}")
        self._append_nodes(f"features/{schema.link_name(node_type)}", block)

    def append_labels(self, block: ArrayLike) -> None:
        """Append labels: (m,) of -1..num_classes - 1, or (m, num_classes) of 0 and 1."""
        if self.header.num_classes < 1:
            raise self._fault("labels", "are given, but num_classes is 0; give their number")
        self._append_nodes("labels", block)

    def append_split(self, block: ArrayLike, name: str = "") -> None:
        """Append the split (m,) of nodes, values of `Split`; splits may be interleaved."""
        names = self.header.splits or ("",)
        if name not in names:
            raise self._fault("split", f"there is no split {name!r}; known: {', '.join(names)}")
        self._append_nodes("split" if name == names[0] else f"splits/{name}", block)

    def append_names(self, offsets: ArrayLike, data: ArrayLike) -> None:
        """Append the names of the nodes with the next original ids, see `Names`.

        Names are sorted by their bytes and unique, in a graph with node types within each type,
        type after type. The nodes' original ids are then 0..n - 1, in this order.
        """
        if self._names is None:
            self._names = NameWriter(self.path, self._column, self.header.num_nodes)
        self._names.append(offsets, data)
        self._output.raise_on_error()

    def append_original_id(self, block: ArrayLike) -> None:
        """Append the numbers (m,) of the nodes in the user's files; default 0..n - 1."""
        ids, (low, high) = self._append_nodes("original_id", block), self._id_range
        self._id_range = int(ids.min(initial=low)), int(ids.max(initial=high))

    def append_graph(self, block: ArrayLike) -> None:
        """Append the nodes' graph numbers (m,), from 0 on, in a store of many graphs."""
        self._append_nodes("graph", block)

    def append_positions(self, block: ArrayLike, box: Sequence[float]) -> None:
        """Append coordinates (m, D) of nodes, float64; `box` (D,) are periods, 0 for none."""
        rows = self._append_nodes("positions", block)
        periods = tuple(float(period) for period in box)
        if len(periods) != rows.shape[1] or not np.isfinite(periods).all() or min(periods) < 0:
            raise self._fault(
                "positions", f"box {periods} must have a period for each of {rows.shape[1]} axes"
            )
        if self._box not in ((), periods):
            raise self._fault("positions", f"box was {self._box}, and is {periods}")
        self._box = periods

    def append_weights(self, block: ArrayLike) -> None:
        """Append the nodes' weights (m,) float64 in losses and metrics, such as volumes."""
        self._append_nodes("weights", block)

    def begin_fields(self, times: ArrayLike, trajectory_starts: ArrayLike, unit: str = "") -> None:
        """Set the times (T,) of fields, which increase in each trajectory.

        Steps `trajectory_starts[r]` to `trajectory_starts[r + 1]` - 1 are trajectory r.
        """
        self._fields.begin(times, trajectory_starts, unit)

    def append_field(self, name: str, step: int, block: ArrayLike, info: FieldInfo) -> None:
        """Append the next rows (m, F) of a field at a step: steps in order, NaN for missing.

        A step's rows are `field_rows`. Append fields of edges after all edges. Empty blocks declare
        a field; fields may be interleaved.
        """
        self._fields.append(name, step, block, info)
        self._output.raise_on_error()

    def field_rows(self, info: FieldInfo) -> range:
        """Return the rows of a field that this process appends."""
        return self._fields.column(info.name, info).own

    def _rows_of_field(self, info: FieldInfo) -> int:
        if not info.of_edges:
            return self.header.num_nodes
        if tuple(self._relations) != ("",):
            raise InputError(
                f"{self.path}: {info.path}: fields of edges need a single unnamed relation, whose "
                "edges are written first"
            )
        if not (count := self._num_edges()):
            raise InputError(f"{self.path}: {info.path}: there are no edges")
        return count

    def _num_edges(self) -> int:
        """Return the number of non-zeros of the unnamed relation, which must be complete."""
        return self._relations[""].finished()

    def _field_column(self, info: FieldInfo, shape: tuple[int, int, int]) -> FieldColumn:
        return FieldColumn(self._file, info.path, info.dtype, shape, range(shape[1]))

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
        check_text("partition method", method)
        self._partition = [self._write_column("/partition/row_starts", array)]
        values: dict[str, str | int] = {
            "seed": seed,
            "method": method,
            "metrics": encode_json("metrics", metrics),
        }
        self._set_attributes(self._file["/partition"], values)

    def _append_nodes(self, name: str, block: ArrayLike) -> Array:
        """Append checked rows to the dataset `name` below /nodes; return them as stored."""
        array, kind = np.asarray(block), self._kinds[name.partition("/")[0]]
        dtype = kind.dtype_of(array)
        if dtype is None:
            raise self._misfit(name, array, kind.expected)
        if name not in self._nodes:
            self._nodes[name] = self._column(f"/nodes/{name}", dtype, array.shape[1:])
        column = self._nodes[name]
        if array.shape[1:] != column.row_shape or dtype != column.dtype:
            expected = f"{column.dtype} rows of shape {column.row_shape} like the rows before"
            raise self._misfit(name, array, expected)
        if column.rows + len(array) > self.header.num_nodes:
            total = column.rows + len(array)
            raise self._fault(name, f"has at least {total} rows for {self.header.num_nodes} nodes")
        # Before the cast, which could wrap an invalid value into a valid one.
        fault = kind.find_fault(array, column.rows)
        if fault:
            raise self._fault(name, fault)
        rows = array.astype(dtype, copy=False)
        column.append(rows)
        self._output.raise_on_error()
        return rows

    def _misfit(self, name: str, array: Array, expected: str) -> InputError:
        return self._fault(name, f"has shape {array.shape} and type {array.dtype}; give {expected}")

    def _fault(self, name: str, text: str) -> InputError:
        return InputError(f"{self.path}: /nodes/{name}: {text}")

    def _finish(self) -> None:
        if not self._relations:
            raise InputError(f"{self.path}: the graph has no adjacency; give at least one relation")
        columns = [c for relation in self._relations.values() for c in relation.finish()]
        for index, relation in enumerate(self._relations):
            group = self._file[schema.relation_path(relation)]
            self._set_attributes(group, {"index": index})
        if self.header.sparse_columns:
            if self._sparse is None:
                raise self._fault("sparse_features", "is missing")
            columns += self._sparse.finish()
            group = self._file[schema.relation_path(schema.SPARSE_FEATURES)]
            self._set_attributes(group, {"columns": self.header.sparse_columns})
        columns += self._finish_nodes()
        columns += self._fields.finish(self._file, self._write_column)
        for path, names in (
            ("/classes", self.header.class_names),
            (schema.SPLIT_NAMES, self.header.splits),
            (schema.EDGE_LABELS, self.header.edge_labels),
            (schema.FEATURE_NAMES, self.header.feature_names),
            (schema.EDGE_FEATURE_NAMES, self.header.edge_feature_names),
        ):
            if names:
                columns.append(self._write_column(path, np.array([*map(str.encode, names)])))
        self._set_root_attributes(columns + self._partition)

    def _finish_nodes(self) -> list[Column]:
        """Complete the nodes' datasets, with ids 0..n - 1 where none were given; return them."""
        header = self.header
        if "original_id" not in self._nodes:
            self._append_default_ids(0, header.num_nodes)
        if header.node_types and "type" not in self._nodes:
            raise self._fault("type", "is missing, but the graph has node types")
        self._check_rows()
        if header.num_classes and "labels" not in self._nodes:
            raise self._fault("labels", f"is missing, but num_classes is {header.num_classes}")
        for name in header.splits[:1]:
            if "split" not in self._nodes:
                raise self._fault("split", f"is missing, but there is a split {name!r}")
        for name in header.splits[1:]:
            if f"splits/{name}" not in self._nodes:
                raise self._fault(f"splits/{name}", "is missing")
        described = []
        if header.node_types:
            names = np.array([name.encode() for name in header.node_types])
            described = [("/node_types/names", names), ("/node_types/counts", self._type_counts)]
        for column in self._nodes.values():
            column.finish()
        if self._box:
            self._file[schema.POSITIONS].attrs["box"] = np.array(self._box)
        written = [self._write_column(path, rows) for path, rows in described]
        return [*self._nodes.values(), *written, *self._finish_names()]

    def _append_default_ids(self, start: int, stop: int) -> None:
        for low in range(start, stop, ID_STEP):
            self.append_original_id(np.arange(low, min(low + ID_STEP, stop)))

    def _finish_names(self) -> list[Column]:
        if self._names is None:
            return []
        low, high = self._id_range
        if low < 0 or high >= self.header.num_nodes:
            last = self.header.num_nodes - 1
            raise self._fault("original_id", f"with names, ids are 0..{last}, not {low}..{high}")
        counts: list[int] = self._type_counts.tolist()
        return self._names.finish(counts)

    def _check_rows(self) -> None:
        num_nodes = self.header.num_nodes
        expected = {
            f"features/{schema.link_name(name)}": (int(count), f"nodes of type {name!r}")
            for name, count in zip(self.header.node_types, self._type_counts, strict=True)
        }
        for name, column in self._nodes.items():
            rows, unit = expected.get(name, (num_nodes, "nodes"))
            if column.rows != rows:
                raise self._fault(name, f"has {column.rows} rows for {rows} {unit}")

    def _set_root_attributes(self, columns: list[Column]) -> None:
        header = self.header
        version = schema.TYPED_FORMAT_VERSION if header.node_types else schema.FORMAT_VERSION
        escaped = any(schema.link_name(n) != n for n in (*self._relations, *header.node_types))
        has_data = any(relation.has_data for relation in self._relations.values())
        has_data |= "graph" in self._nodes
        if header.splits or self._names is not None or escaped or has_data:
            version = schema.NAMED_FORMAT_VERSION
        if self._fields.columns or {"positions", "weights"} & self._nodes.keys():
            version = schema.FIELDS_FORMAT_VERSION
        if header.sparse_columns:
            version = schema.SPARSE_FORMAT_VERSION
        if any(info.of_edges for info in self._fields.infos.values()):
            version = schema.EDGE_FIELDS_FORMAT_VERSION
        numbers: dict[str, int | bool] = {
            "format_version": version,
            "num_nodes": header.num_nodes,
            "num_classes": header.num_classes,
            "multi_label": bool(header.multi_label),
            "undirected": bool(header.undirected),
        }
        self._set_attributes(self._file, numbers)
        # Read back to keep files equal byte for byte: HDF5 records in them which attributes were.
        scalars: dict[str, object] = {}
        scalars |= {name: int(self._file.attrs[name]) for name in schema.FINGERPRINT_SCALARS}
        scalars |= fields_scalars(self._box, self._fields.unit, self._fields.infos)
        scalars |= schema.sparse_scalars(header.sparse_columns)
        texts = {
            "fingerprint": fingerprint(scalars, [column.described for column in columns]),
            "name": header.name,
            "provenance": self._provenance,
            "format": schema.FORMAT,
        }
        self._set_attributes(self._file, texts)
