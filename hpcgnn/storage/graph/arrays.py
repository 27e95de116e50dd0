"""A store from arrays in memory: for tests, small graphs and the Python entry of convert."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage.graph.blocks import EdgeData
from hpcgnn.storage.graph.edges import EdgeBuilder, EdgeColumns
from hpcgnn.storage.graph.names import Names
from hpcgnn.storage.graph.schema import StoreHeader
from hpcgnn.storage.graph.writer import StoreWriter
from hpcgnn.typing import Array


def store_from_arrays(
    path: str | os.PathLike[str],
    *,
    name: str,
    num_nodes: int,
    edges: Mapping[str, tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]],
    edge_data: Mapping[str, EdgeData] | None = None,
    features: ArrayLike | None = None,
    types: ArrayLike | None = None,
    type_features: Mapping[str, ArrayLike | None] | None = None,
    labels: ArrayLike | None = None,
    split: ArrayLike | None = None,
    splits: Mapping[str, ArrayLike] | None = None,
    names: Sequence[str] = (),
    original_id: ArrayLike | None = None,
    graph: ArrayLike | None = None,
    num_classes: int | None = None,
    class_names: tuple[str, ...] = (),
    undirected: bool = False,
    self_loops: Literal["keep", "add", "drop"] = "keep",
    duplicates: Literal["first", "sum", "error"] = "first",
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a store at `path`.

    `edges` maps a relation's name ("" alone for an untyped graph) to arrays src, dst and, if it is
    weighted, weight; `edge_data` what the edges of a relation have besides. `undirected` adds the
    reverse of every edge. Labels (n,) are classes with -1
    for none, labels (n, c) are multi-label; `num_classes` defaults to what they or `class_names`
    show. `split` (n,) is one split without a name, `splits` are several by name. `names` are those
    of the nodes with original ids 0, 1, ..., in the order of their bytes. `graph` (n,) are the
    numbers of the nodes' graphs in a store of many. A graph with node types
    has `types` (n,), which count the keys of `type_features`, the types' names; their values are
    matrices with a row for each node of that type, in the nodes' order, or None. Raises
    `InputError` for wrong values.
    """
    by_type = dict(type_features or {})
    if graph is not None:
        _check_within_graphs(np.asarray(graph), edges)
    label_array = None if labels is None else np.asarray(labels)
    header = StoreHeader(
        name=name,
        num_nodes=num_nodes,
        num_classes=count_classes(label_array, class_names) if num_classes is None else num_classes,
        multi_label=label_array is not None and label_array.ndim == 2,
        undirected=undirected,
        class_names=class_names,
        node_types=tuple(by_type),
        splits=tuple(splits or ()),
        provenance=provenance or {},
    )
    with StoreWriter(path, header) as writer:
        for relation, arrays in edges.items():
            data = (edge_data or {}).get(relation, EdgeData())
            with EdgeBuilder(
                num_nodes,
                undirected=undirected,
                self_loops=self_loops,
                duplicates=duplicates,
                columns=EdgeColumns.of(data, weighted=len(arrays) == 3),
            ) as builder:
                weight = arrays[2] if len(arrays) == 3 else None
                builder.add(arrays[0], arrays[1], weight, data)
                builder.write(writer, relation)
        for append, array in (
            (writer.append_features, features),
            (writer.append_types, types),
            (writer.append_labels, label_array),
            (writer.append_split, split),
            (writer.append_original_id, original_id),
            (writer.append_graph, graph),
        ):
            if array is not None:
                append(array)
        for split_name, array in (splits or {}).items():
            writer.append_split(array, split_name)
        if names:
            table = Names.of(names)
            writer.append_names(table.offsets, table.data)
        for node_type, matrix in by_type.items():
            if matrix is not None:
                writer.append_type_features(node_type, matrix)


def _check_within_graphs(graph: Array, edges: Mapping[str, Sequence[ArrayLike]]) -> None:
    for source, target, *_ in edges.values():
        if (graph[np.asarray(source)] != graph[np.asarray(target)]).any():
            raise InputError("an edge joins nodes of two graphs; leave it out")


def count_classes(labels: np.ndarray[Any, Any] | None, class_names: tuple[str, ...]) -> int:
    """Return the number of classes that labels and names show; 0 without labels."""
    if labels is None:
        return 0
    if class_names:
        return len(class_names)
    if labels.ndim == 2:
        return int(labels.shape[1])
    return max(1, int(labels.max(initial=-1)) + 1)
