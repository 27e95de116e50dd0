"""Read ranges of rows and node data from a store, and check them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.checksums import array_crc
from hpcgnn.storage.datasets import damaged, format_errors, read_slab, read_step, read_text
from hpcgnn.storage.files import OpenStore
from hpcgnn.storage.graph import checks, contents, schema
from hpcgnn.storage.graph.blocks import CSRBlock, EdgeData, NodeBlock, SparseRows, group_by_type
from hpcgnn.storage.graph.fields import FieldInfo, fields_scalars
from hpcgnn.storage.graph.names import Names, StoredNames
from hpcgnn.storage.graph.schema import (
    EDGE_FEATURE_NAMES,
    EDGE_LABELS,
    FEATURE_NAMES,
    NAME_BYTES,
    NAME_OFFSETS,
    SPARSE_FEATURES,
    SPLIT_NAMES,
    STARTS,
    TIMES,
    StoreHeader,
    link_name,
    relation_path,
)
from hpcgnn.storage.members import Members
from hpcgnn.typing import Array, FloatArray, GlobalIndices, MakeRows, Offsets

_DENSE_ROWS = 1 << 14
"""Rows of sparse features that are made dense at a time."""
_DENSE_VALUES = 1 << 20
"""Dense features that are searched for non-zeros at a time."""

_OF_ALL_RANKS = (
    "/classes",
    "/node_types/counts",
    "/node_types/names",
    "/partition/row_starts",
    EDGE_FEATURE_NAMES,
    EDGE_LABELS,
    FEATURE_NAMES,
    STARTS,
    TIMES,
    SPLIT_NAMES,
)


class GraphStore(OpenStore):
    """A store, open for reading; use `GraphStore.open` in a `with` statement.

    Rows are nodes in the store's order; `start` and `stop` are row numbers, `stop` excluded. Reads
    touch only the chunks of those rows. Damage of any kind raises `StorageFormatError`.

    `num_features` and `feature_dtype` describe the feature matrix, 0 and None if there is none; a
    graph with `node_types` has features by type only. `sparse_columns` is the number of columns of
    sparse features, or 0. `feature_names` and `edge_feature_names` name columns, if known. `splits`
    are names; reads use the first by default. `fields` (of nodes) and `edge_fields` are by name,
    with values at `times` float64 (T,), in `time_unit`; steps `trajectory_starts[r]` to
    `trajectory_starts[r + 1]` - 1 are trajectory r. `box` has the period of each axis of the
    positions, 0 for an axis without period, and is empty without positions.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        super().__init__(path, file)
        self._check_whole(*_OF_ALL_RANKS)
        self.row_starts: Offsets = self._read_row_starts()
        self.class_names, self.edge_labels, self.feature_names, self.edge_feature_names = (
            () if (dataset := self._datasets.get(name)) is None else read_text(path, dataset)
            for name in ("/classes", EDGE_LABELS, FEATURE_NAMES, EDGE_FEATURE_NAMES)
        )
        self._names = self._open_names()
        features = self._node_dataset("features")
        self.num_features = self.sparse_columns
        if features is not None:
            self.num_features = int(features.shape[1])
        self.feature_dtype: np.dtype[Any] | None = None if features is None else features.dtype
        if self.sparse_columns:
            self.feature_dtype = self.edge_features(SPARSE_FEATURES)[1] or np.dtype(np.float32)
        by_type = any(node_type.dtype is not None for node_type in self.node_types)
        self.has_features = by_type or self.num_features > 0
        self.has_labels = self._node_dataset("labels") is not None
        self.has_graphs = self._node_dataset("graph") is not None
        self.has_names = self._names is not None
        self.has_split = self._node_dataset("split") is not None
        self.times, self.trajectory_starts = self._read_times()

    def _describe(self, root: Members) -> Mapping[str, object]:
        version = contents.read_version(root)
        self.name: str = root.attribute("name", str)
        self.num_nodes: int = root.attribute("num_nodes", int)
        self.num_classes: int = root.attribute("num_classes", int)
        self.multi_label: bool = root.attribute("multi_label", bool)
        self.undirected: bool = root.attribute("undirected", bool)
        self.provenance: dict[str, Any] = root.json("provenance")
        n = self.num_nodes
        if not 1 <= n < schema.MAX_NODES or self.num_classes < 0:
            item = "/: attributes num_nodes, num_classes"
            raise damaged(root.path, item, "are out of range")
        self.relations = contents.read_relations(root, n)
        self.node_types = contents.read_node_types(root, n, version)
        num_types = len(self.node_types)
        self._kinds = checks.node_kinds(
            self.num_classes, multi_label=self.multi_label, num_types=num_types
        )
        contents.check_nodes(root, n, self._kinds, self.num_classes, typed=num_types > 0)
        self.sparse_columns = contents.read_sparse_columns(root, n, version)
        self.splits = contents.read_splits(root, n, version)
        if version >= schema.NAMED_FORMAT_VERSION:
            contents.check_names(root, n)
        self.box: tuple[float, ...] = ()
        self.time_unit, infos = "", dict[str, FieldInfo]()
        if version >= schema.FIELDS_FORMAT_VERSION:
            self.box = contents.read_box(root, n, self._kinds)
            self.time_unit, infos = contents.read_fields(root, n, version)
        self.fields, self.edge_fields = (
            {name: info for name, info in infos.items() if info.of_edges is of_edges}
            for of_edges in (False, True)
        )
        root.dataset("classes", (), (self.num_classes,))
        for name in (EDGE_LABELS, FEATURE_NAMES, EDGE_FEATURE_NAMES):
            root.dataset(name.removeprefix("/"), (), (None,))
        self.partition_info = contents.read_partition(root)
        scalars = {key: int(getattr(self, key)) for key in schema.FINGERPRINT_SCALARS}
        scalars |= schema.sparse_scalars(self.sparse_columns)
        return scalars | fields_scalars(self.box, self.time_unit, infos)

    @property
    def num_parts(self) -> int:
        """Number of parts; 1 for an unpartitioned graph."""
        return len(self.row_starts) - 1

    def header(self, provenance: Mapping[str, Any]) -> StoreHeader:
        """Return the header of a store of the same graph with another provenance."""
        return StoreHeader(
            name=self.name,
            num_nodes=self.num_nodes,
            num_classes=self.num_classes,
            multi_label=self.multi_label,
            undirected=self.undirected,
            class_names=self.class_names,
            node_types=tuple(node_type.name for node_type in self.node_types),
            splits=self.splits if SPLIT_NAMES in self._datasets else (),
            edge_labels=self.edge_labels,
            feature_names=self.feature_names,
            edge_feature_names=self.edge_feature_names,
            sparse_columns=self.sparse_columns,
            provenance=provenance,
        )

    @property
    def matrices(self) -> tuple[str, ...]:
        """The relations, followed by `SPARSE_FEATURES` if the store has sparse features."""
        return (*self.relations, SPARSE_FEATURES) if self.sparse_columns else self.relations

    def num_columns(self, relation: str) -> int:
        """Return the columns of a relation's matrix, or of `SPARSE_FEATURES`."""
        return self.sparse_columns if relation == SPARSE_FEATURES else self.num_nodes

    def num_edges(self, relation: str | None = None) -> int:
        """Return the number of stored non-zeros of a relation, or of all."""
        names = self.relations if relation is None else (relation,)
        return sum(int(self._adjacency(name, "indices").shape[0]) for name in names)

    def weighted(self, relation: str = "") -> bool:
        """Return whether a relation's edges carry weights."""
        self._adjacency(relation, "indptr")
        return f"{relation_path(relation)}/weights" in self._datasets

    def read_indptr(self, start: int, stop: int, relation: str = "") -> Offsets:
        """Return offsets (stop - start + 1,) of the rows, starting at 0."""
        indptr, first = self._read_offsets(start, stop, relation)
        return indptr - first

    def num_edges_before(self, row: int, relation: str = "") -> int:
        """Return the number of stored non-zeros of a relation in the rows before `row`."""
        return self._read_offsets(row, row, relation)[1]

    def read_adjacency(self, start: int, stop: int, relation: str = "") -> CSRBlock:
        """Return block rows with global columns; checks offsets, columns, order and weights."""
        indptr, first = self._read_offsets(start, stop, relation)
        indptr -= first
        last = first + int(indptr[-1])
        dataset = self._adjacency(relation, "indices")
        indices = self._slab(dataset, first, last, np.int64)
        self._check(dataset, checks.fault_in_columns(indices, self.num_columns(relation)))
        self._check(dataset, checks.fault_in_order(indptr, indices, start))
        if not self.weighted(relation):
            return CSRBlock(indptr, indices, None)
        dataset = self._adjacency(relation, "weights")
        weights = self._slab(dataset, first, last)
        self._check(dataset, checks.fault_in_weights(weights))
        return CSRBlock(indptr, indices, weights)

    def edge_features(self, relation: str = "") -> tuple[int, np.dtype[Any] | None]:
        """Return columns and type of the features of a relation's edges; (0, None) without."""
        self._adjacency(relation, "indptr")
        dataset = self._datasets.get(f"{relation_path(relation)}/features")
        return (0, None) if dataset is None else (int(dataset.shape[1]), dataset.dtype)

    def has_edge_split(self, relation: str = "") -> bool:
        """Return whether a relation's edges have a split."""
        self._adjacency(relation, "indptr")
        return f"{relation_path(relation)}/split" in self._datasets

    def labels_of_edges(self, relation: str = "") -> tuple[int, np.dtype[Any] | None]:
        """Return columns and type of the labels of a relation's edges; (0, None) without."""
        self._adjacency(relation, "indptr")
        dataset = self._datasets.get(f"{relation_path(relation)}/labels")
        return (0, None) if dataset is None else (int(dataset.shape[1]), dataset.dtype)

    def read_edge_data(self, start: int, stop: int, relation: str = "") -> EdgeData:
        """Return the data of the edges of rows, except weights, as `read_adjacency` orders them."""
        indptr, first = self._read_offsets(start, stop, relation)
        last = int(indptr[-1])
        blocks: dict[str, Array] = {}
        for name in ("features", "split", "labels"):
            dataset = self._datasets.get(f"{relation_path(relation)}/{name}")
            if dataset is not None:
                blocks[name] = self._slab(dataset, first, last)
                kind = checks.edge_kinds(len(self.edge_labels))[name]
                fault = kind.find_fault(blocks[name], first)
                self._check(dataset, None if fault is None else fault.replace("node", "edge", 1))
        return EdgeData(**blocks)

    def names(self, ids: GlobalIndices) -> list[str]:
        """Return the names of nodes by original ids (m,) in a store with names; `IndexError`."""
        assert self._names is not None
        return self._names.texts(ids)

    def types_of_ids(self, ids: GlobalIndices) -> list[str]:
        """Return the names of the types of nodes with original ids (m,), for a store with names."""
        ends = np.cumsum([node_type.num_nodes for node_type in self.node_types])
        numbers = np.searchsorted(ends, ids, side="right").tolist()
        return [self.node_types[number].name for number in numbers]

    def find_names(self, texts: Sequence[str]) -> GlobalIndices:
        """Return the original ids (m,) of nodes by name, -1 for a name that no node has.

        With node types, a name that no node has may also be `TYPE:NAME`. Raises `InputError` for a
        name that nodes of several types have.
        """
        assert self._names is not None
        types = [node_type.name for node_type in self.node_types] or [""]
        numbers = np.full(len(texts), -1, np.int64)
        for number, name in enumerate(types):
            matches = self._names.find(texts, number)
            ambiguous = np.flatnonzero((matches >= 0) & (numbers >= 0))
            if len(ambiguous):
                text = texts[int(ambiguous[0])]
                raise InputError(
                    f"{self.path}: nodes of several types are called {text!r}; write "
                    f"{name}:{text}, with the type before the name"
                )
            numbers = np.maximum(numbers, matches)
        for number, name in enumerate(types):
            prefix = f"{name}:"
            left = [
                index
                for index in np.flatnonzero(numbers < 0).tolist()
                if self.node_types and texts[index].startswith(prefix)
            ]
            plain = [texts[index].removeprefix(prefix) for index in left]
            numbers[left] = self._names.find(plain, number)
        return numbers

    def read_names(self, start: int, stop: int) -> Names | None:
        """Return the names of original ids `start` to `stop` - 1, None in a store without names."""
        self._check_rows(start, stop)
        return None if self._names is None else self._names.read(start, stop)

    def name_bytes(self, start: int, stop: int) -> int:
        """Return the bytes of the names that `read_names` returns, 0 in a store without names."""
        self._check_rows(start, stop)
        return 0 if self._names is None else self._names.num_bytes(start, stop)

    def read_nodes(
        self,
        start: int,
        stop: int,
        split: str = "",
        *,
        features: bool = True,
        empty: MakeRows = np.empty,
    ) -> NodeBlock:
        """Return the nodes' data with the named split; checks features, labels, split and types.

        Sparse features are made dense; `features` False skips those of a graph without types.
        `empty` allocates the arrays of features.
        """
        rows = self.read_features(start, stop, empty) if features else None
        original_id = self.read_original_id(start, stop)
        labels, roles = self.read_labels(start, stop), self.read_split(start, stop, split)
        types = self.read_types(start, stop)
        by_type = () if types is None else self._read_type_features(start, types, empty)
        graph = self.read_graph(start, stop)
        return NodeBlock(start, stop, rows, labels, roles, original_id, types, by_type, graph)

    def read_features(self, start: int, stop: int, empty: MakeRows = np.empty) -> FloatArray | None:
        """Return only the features, as in `NodeBlock`; sparse ones are made dense."""
        if not self.sparse_columns:
            return self._read_column("features", start, stop, empty)
        rows = empty((stop - start, self.num_features), self.feature_dtype)
        for low in range(start, stop, _DENSE_ROWS):
            high = min(low + _DENSE_ROWS, stop)
            block = rows[low - start : high - start]
            block[:] = 0
            self.read_sparse_features(low, high).write(block)
        return rows

    def read_sparse_features(self, start: int, stop: int) -> "SparseRows":
        """Return the features as sparse rows; dense ones are read and converted piece by piece."""
        if not self.sparse_columns:
            steps = range(start, max(stop, start + 1), max(1, _DENSE_VALUES // self.num_features))
            dense = (self.read_features(low, min(low + steps.step, stop)) for low in steps)
            return SparseRows.joined([SparseRows.of(rows) for rows in dense if rows is not None])
        block = self.read_adjacency(start, stop, SPARSE_FEATURES)
        values = self.read_edge_data(start, stop, SPARSE_FEATURES).features
        if values is None:
            values = np.ones((len(block.indices), 1), np.float32)
        return SparseRows(block.indptr, block.indices.astype(np.int32), values[:, 0])

    def read_original_id(self, start: int, stop: int) -> GlobalIndices:
        """Return only the original ids, as in `NodeBlock`."""
        original_id = self._read_column("original_id", start, stop)
        assert original_id is not None
        return original_id

    def read_graph(self, start: int, stop: int) -> GlobalIndices | None:
        """Return only the nodes' graph numbers, as in `NodeBlock`; checks them."""
        return self._read_column("graph", start, stop)

    def read_types(self, start: int, stop: int) -> Array | None:
        """Return only the node types, as in `NodeBlock`; checks them."""
        return self._read_column("type", start, stop)

    def read_labels(self, start: int, stop: int) -> Array | None:
        """Return only the labels, as in `NodeBlock`; checks them."""
        return self._read_column("labels", start, stop)

    def read_split(self, start: int, stop: int, split: str = "") -> Array | None:
        """Return a split (m,) uint8 by name, or the first; `InputError` for an unknown name."""
        if split and split not in self.splits:
            names = ", ".join(self.splits) or "none"
            raise InputError(
                f"{self.path}: has no split {split!r}; it has {names}; hpcgnn split adds one"
            )
        first = not split or split == self.splits[0]
        name = "split" if first else f"splits/{split}"
        return self._read_column(name, start, stop)

    @property
    def all_fields(self) -> dict[str, FieldInfo]:
        """The fields of nodes, then those of edges, by name."""
        return self.fields | self.edge_fields

    def read_field(self, name: str, step: int, start: int, stop: int) -> FloatArray:
        """Return the rows (stop - start, F) of a field at a step as stored, NaN for missing.

        Rows of a field of edges are non-zeros `start` to `stop` - 1, see `num_edges_before`.
        """
        infos = self.all_fields
        if name not in infos:
            names = ", ".join(infos) or "none"
            raise InputError(f"{self.path}: has no field {name!r}; it has {names}")
        count = self.num_edges() if infos[name].of_edges else self.num_nodes
        if not 0 <= start <= stop <= count:
            raise ValueError(f"rows {start} to {stop} are not within 0 to {count}")
        if not 0 <= step < len(self.times):
            raise ValueError(f"step {step} is not within 0 to {len(self.times) - 1}")
        dataset = self._datasets[infos[name].path]
        rows = read_step(self.path, dataset, step, start, stop)
        self._check(dataset, checks.fault_in_field(rows, start, of_edges=infos[name].of_edges))
        return rows

    def read_positions(self, start: int, stop: int) -> FloatArray | None:
        """Return the coordinates (m, D) float64 of nodes; None in a store without positions."""
        return self._read_column("positions", start, stop)

    def read_node_weights(self, start: int, stop: int) -> FloatArray | None:
        """Return the nodes' weights (m,) float64 in losses and metrics; None if all are equal."""
        return self._read_column("weights", start, stop)

    def part_edges(self, relations: tuple[str, ...] | None = None) -> Offsets:
        """Return the non-zeros (num_parts,) of each part, summed over `relations` (None: all)."""
        total = np.zeros(self.num_parts, np.int64)
        for relation in self.relations if relations is None else relations:
            dataset = self._adjacency(relation, "indptr")
            with format_errors(self.path, dataset.name):
                bounds = np.array([int(dataset[row]) for row in self.row_starts], np.int64)
            self._check(dataset, checks.fault_in_offsets(bounds))
            total += np.diff(bounds)
        return total

    def _adjacency(self, relation: str, name: str) -> h5py.Dataset:
        if relation not in self.matrices:
            names = ", ".join(repr(relation) for relation in self.relations)
            raise KeyError(f"{self.path} has no relation {relation!r}; it has {names}")
        return self._datasets[f"{relation_path(relation)}/{name}"]

    def _node_dataset(self, name: str) -> h5py.Dataset | None:
        return self._datasets.get(f"/nodes/{name}")

    def _read_column(
        self, name: str, start: int, stop: int, empty: MakeRows = np.empty
    ) -> Array | None:
        """Return node data, checked; None if the store lacks them."""
        self._check_rows(start, stop)
        dataset = self._node_dataset(name)
        if dataset is None:
            return None
        rows = self._slab(dataset, start, stop, None, empty)
        self._check(dataset, self._kinds[name.partition("/")[0]].find_fault(rows, start))
        return rows

    def _read_type_features(
        self, start: int, types: Array, empty: MakeRows
    ) -> tuple[FloatArray, ...]:
        """Return the features, by type, of the nodes from `start` on, whose types are `types`."""
        dataset = self._datasets["/nodes/type_row"]
        rows = self._slab(dataset, start, start + len(types))
        order, bounds = group_by_type(types, len(self.node_types))
        counts = np.array([node_type.num_nodes for node_type in self.node_types], np.int64)
        self._check(dataset, checks.fault_in_type_rows(rows, order, bounds, counts, start))
        features: list[FloatArray] = []
        for number, node_type in enumerate(self.node_types):
            rows_of_type = rows[order[bounds[number] : bounds[number + 1]]]
            if node_type.dtype is None:
                features.append(np.empty((len(rows_of_type), 0), np.float32))
                continue
            # A type's nodes in a block are consecutive rows of its matrix: one slab has them all.
            dataset = self._datasets[f"/nodes/features/{link_name(node_type.name)}"]
            first = int(rows_of_type[0]) if len(rows_of_type) else 0
            block = self._slab(dataset, first, first + len(rows_of_type), None, empty)
            self._check(dataset, checks.fault_in_features(block, first))
            features.append(block)
        return tuple(features)

    def _check_rows(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.num_nodes:
            raise ValueError(f"rows {start} to {stop} are not within 0 to {self.num_nodes}")

    def _check(self, dataset: h5py.Dataset, fault: str | None) -> None:
        if fault is not None:
            raise damaged(self.path, dataset.name, fault)

    def _read_offsets(self, start: int, stop: int, relation: str) -> tuple[Offsets, int]:
        self._check_rows(start, stop)
        dataset = self._adjacency(relation, "indptr")
        indptr = read_slab(self.path, dataset, start, stop + 1)
        # Two adjacent ranges both read the offset between them; count it in the second only.
        end = stop + (start < stop == self.num_nodes)
        self._seen[dataset.name].add(start, end, array_crc(indptr[: end - start]))
        self._check(dataset, checks.fault_in_offsets(indptr, start))
        nnz = self.num_edges(relation)
        if indptr[0] < 0 or indptr[-1] > nnz:
            self._check(dataset, f"points outside the {nnz} non-zeros")
        return indptr, int(indptr[0])

    def _open_names(self) -> StoredNames | None:
        if NAME_OFFSETS not in self._datasets:
            return None
        counts = [node_type.num_nodes for node_type in self.node_types] or [self.num_nodes]
        starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
        offsets, data = self._datasets[NAME_OFFSETS], self._datasets[NAME_BYTES]
        return StoredNames(self.path, offsets, data, starts)

    def _read_times(self) -> tuple[FloatArray, Offsets]:
        if not self.all_fields:
            return np.empty(0), np.zeros(1, np.int64)
        times, starts = (
            read_slab(self.path, self._datasets[name], 0, len(self._datasets[name]))
            for name in (TIMES, STARTS)
        )
        self._check(self._datasets[TIMES], checks.fault_in_times(times, starts))
        return times, starts

    def _read_row_starts(self) -> Offsets:
        dataset = self._datasets.get("/partition/row_starts")
        if dataset is None:
            return np.array([0, self.num_nodes], np.int64)
        row_starts = read_slab(self.path, dataset, 0, dataset.shape[0])
        self._check(dataset, checks.fault_in_row_starts(row_starts, self.num_nodes))
        return row_starts
