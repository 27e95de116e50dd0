"""Write a store from arrays in memory."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage.graph.blocks import EdgeData, SparseRows
from hpcgnn.storage.graph.edge_builder import EdgeBuilder, EdgeColumns
from hpcgnn.storage.graph.fields import FieldInfo
from hpcgnn.storage.graph.names import Names
from hpcgnn.storage.graph.schema import StoreHeader
from hpcgnn.storage.graph.sorting import split_places
from hpcgnn.storage.graph.writer import StoreWriter
from hpcgnn.typing import Array

_WITH_COLUMNS = ("features", "labels")
"""The arrays of `EdgeData` that are matrices."""


@dataclass(frozen=True, eq=False)
class SeriesArrays:
    """Fields in memory: `values` (T, n, F) by name, at `times` (T,).

    `trajectory_starts` are the first steps of the trajectories, followed by T. `edge_values`
    (T, E, F) are for the edges of the only relation, in the order in which they are given.
    """

    times: ArrayLike
    trajectory_starts: ArrayLike
    values: Mapping[str, Array]
    edge_values: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphArrays:
    """A graph in memory.

    `edges` maps a relation's name ("" alone for an untyped graph) to arrays src, dst and, if it is
    weighted, weight; `edge_data` has the features, split and labels of its edges, and `edge_labels`
    the names of these labels. `undirected` adds the reverse of every edge. Labels (n,) are classes
    with -1 for none, labels (n, c) are multi-label; `num_classes` is inferred from them or from
    `class_names` by default. `split` (n,) is a single unnamed split, `splits` are several by name.
    `names` are those of the nodes with original ids 0, 1, ..., sorted by bytes. `graph` (n,) are
    graph numbers in a store of many graphs. With node types, `types` (n,) are indices into the keys
    of `type_features`; its values are None or a matrix with a row for each node of that type, in
    the nodes' order. `sparse_features` stores `features` (n, F) as sparse rows. `weights` (n,)
    weight nodes in losses of the fields of `series`; `positions` (n, D) are non-periodic.
    """

    name: str
    num_nodes: int
    edges: Mapping[str, tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]]
    edge_data: Mapping[str, EdgeData] | None = None
    edge_labels: tuple[str, ...] = ()
    features: ArrayLike | None = None
    types: ArrayLike | None = None
    type_features: Mapping[str, ArrayLike | None] | None = None
    labels: ArrayLike | None = None
    split: ArrayLike | None = None
    splits: Mapping[str, ArrayLike] | None = None
    sparse_features: bool = False
    names: Sequence[str] = ()
    original_id: ArrayLike | None = None
    graph: ArrayLike | None = None
    weights: ArrayLike | None = None
    positions: ArrayLike | None = None
    series: SeriesArrays | None = None
    num_classes: int | None = None
    class_names: tuple[str, ...] = ()
    undirected: bool = False
    self_loops: Literal["keep", "add", "drop"] = "keep"
    duplicates: Literal["first", "sum", "error"] = "first"
    provenance: Mapping[str, Any] | None = None


def store_from_arrays(path: str | os.PathLike[str], source: GraphArrays) -> None:
    """Write a store at `path`; raises `InputError` for wrong values."""
    if source.graph is not None:
        _check_within_graphs(np.asarray(source.graph), source.edges)
    _check_edge_data(source)
    label_array = None if source.labels is None else np.asarray(source.labels)
    num_classes = source.num_classes
    if num_classes is None:
        num_classes = count_classes(label_array, source.class_names)
    header = StoreHeader(
        name=source.name,
        num_nodes=source.num_nodes,
        num_classes=num_classes,
        multi_label=label_array is not None and label_array.ndim == 2,
        undirected=source.undirected,
        class_names=source.class_names,
        node_types=tuple(source.type_features or ()),
        splits=tuple(source.splits or ()),
        edge_labels=source.edge_labels,
        sparse_columns=np.asarray(source.features).shape[1] if source.sparse_features else 0,
        provenance=source.provenance or {},
    )
    numbered, places = source.series is not None and bool(source.series.edge_values), []
    with StoreWriter(path, header) as writer:
        for relation, arrays in source.edges.items():
            data = (source.edge_data or {}).get(relation, EdgeData())
            columns = EdgeColumns.of(data, weighted=len(arrays) == 3)
            if numbered:
                columns = replace(columns, placed=True)
                data = replace(data, place=np.arange(np.size(arrays[0]), dtype=np.uint64))
            with EdgeBuilder(
                source.num_nodes,
                undirected=source.undirected,
                self_loops=source.self_loops,
                duplicates=source.duplicates,
                columns=columns,
            ) as builder:
                weight = arrays[2] if len(arrays) == 3 else None
                builder.add(arrays[0], arrays[1], weight, data)
                for block in builder.blocks(0, source.num_nodes):
                    writer.append_rows(block, relation)
                    places.append(block.data.place)
        for append, array in (
            (_append_features(writer), source.features),
            (writer.append_types, source.types),
            (writer.append_labels, label_array),
            (writer.append_split, source.split),
            (writer.append_original_id, source.original_id),
            (writer.append_graph, source.graph),
            (writer.append_weights, source.weights),
            (partial(_append_positions, writer), source.positions),
        ):
            if array is not None:
                append(array)
        for split_name, array in (source.splits or {}).items():
            writer.append_split(array, split_name)
        if source.names:
            table = Names.of(source.names)
            writer.append_names(table.offsets, table.data)
        for node_type, matrix in (source.type_features or {}).items():
            if matrix is not None:
                writer.append_type_features(node_type, matrix)
        if source.series is not None:
            _append_series(writer, source.series, places)


def _append_series(
    writer: StoreWriter, series: SeriesArrays, places: Sequence[Array | None]
) -> None:
    writer.begin_fields(series.times, series.trajectory_starts)
    for name, values in series.values.items():
        info = FieldInfo(name, values.shape[2], values.dtype)
        for step, rows in enumerate(values):
            writer.append_field(name, step, rows, info)
    for name, values in series.edge_values.items():
        info = FieldInfo(name, values.shape[2], values.dtype, of_edges=True)
        numbers, _ = split_places(np.concatenate([array for array in places if array is not None]))
        for step, rows in enumerate(values):
            # Added loops have zeros.
            padded = np.concatenate([rows, np.zeros_like(rows[:1])])
            writer.append_field(name, step, padded[numbers], info)


def _append_features(writer: StoreWriter) -> Callable[[Any], None]:
    if writer.header.sparse_columns:
        return lambda rows: writer.append_sparse_features(SparseRows.of(rows).to_store())
    return writer.append_features


def _append_positions(writer: StoreWriter, positions: ArrayLike) -> None:
    rows = np.asarray(positions)
    writer.append_positions(rows, [0.0] * rows.shape[1])


def _check_within_graphs(graph: Array, edges: Mapping[str, Sequence[ArrayLike]]) -> None:
    for source, target, *_ in edges.values():
        if (graph[np.asarray(source)] != graph[np.asarray(target)]).any():
            raise InputError("an edge joins nodes of two graphs; leave it out")


def _check_edge_data(source: GraphArrays) -> None:
    """Raise `InputError` unless each array of edges has a row for each edge of its relation."""
    arrays = [
        (f"edge_data[{relation!r}].{name}", relation, np.shape(array), name in _WITH_COLUMNS)
        for relation, data in (source.edge_data or {}).items()
        for name, array in vars(data).items()
        if array is not None
    ]
    series = source.series.edge_values if source.series is not None else {}
    relation = next(iter(source.edges), "")
    arrays += [
        (f"edge_values[{name!r}]", relation, values.shape[1:], True)
        for name, values in series.items()
    ]
    for what, relation, shape, is_matrix in arrays:
        if relation not in source.edges:
            raise InputError(f"{what}: there is no such relation among edges; name one of them")
        count = np.size(source.edges[relation][0])
        if len(shape) != 1 + is_matrix or shape[0] != count:
            rows = f"({count}, columns)" if is_matrix else f"({count},)"
            raise InputError(f"{what}: has shape {shape}; its edges need {rows}")


def count_classes(labels: np.ndarray[Any, Any] | None, class_names: tuple[str, ...]) -> int:
    """Infer the number of classes from labels and names; 0 without labels."""
    if labels is None:
        return 0
    if class_names:
        return len(class_names)
    if labels.ndim == 2:
        return int(labels.shape[1])
    return max(1, int(labels.max(initial=-1)) + 1)
