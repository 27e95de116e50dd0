"""What an open store holds, checked against the schema without reading its rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage.datasets import damaged, format_errors, read_slab, read_text
from hpcgnn.storage.graph import schema
from hpcgnn.storage.graph.blocks import NodeType
from hpcgnn.storage.members import Members
from hpcgnn.typing import Array

ROOT_ATTRIBUTES: dict[str, type] = {
    "name": str,
    "num_nodes": int,
    "num_classes": int,
    "multi_label": bool,
    "undirected": bool,
    "fingerprint": str,
}


@dataclass(frozen=True)
class Contents:
    """What a store holds: `datasets` and `crcs` by absolute name, relations in order.

    `attributes` are those of the root with `provenance` decoded; `partition` holds method, seed and
    metrics, or nothing for a graph in one part. `node_types` is empty for a graph without them, and
    `splits` names those that there are.
    """

    attributes: dict[str, Any]
    relations: tuple[str, ...]
    datasets: dict[str, h5py.Dataset]
    crcs: dict[str, int]
    partition: dict[str, Any]
    node_types: tuple[NodeType, ...]
    splits: tuple[str, ...]


def read_contents(path: Path, file: h5py.File) -> Contents:
    """Check version, names, types, shapes, links and the fingerprint of an open file.

    Raises `StorageFormatError` that names the file and the attribute or dataset.
    """
    root = Members(path, file)
    version = read_version(root)
    typed = version == schema.TYPED_FORMAT_VERSION
    if version == schema.NAMED_FORMAT_VERSION:
        typed = root.below("node_types") is not None
    attributes = {name: root.attribute(name, kind) for name, kind in ROOT_ATTRIBUTES.items()}
    attributes["provenance"] = root.json("provenance")
    num_nodes, num_classes = attributes["num_nodes"], attributes["num_classes"]
    if not 1 <= num_nodes < schema.MAX_NODES or num_classes < 0:
        raise damaged(path, "/: attributes num_nodes, num_classes", "are out of range")
    relations, datasets_found = read_adjacency(root, num_nodes)
    nodes = root.required_below("nodes")
    datasets_found += read_nodes(nodes, num_nodes, num_classes, attributes["multi_label"])
    node_types: tuple[NodeType, ...] = ()
    if typed:
        node_types, typed_datasets = read_node_types(root, nodes, num_nodes)
        datasets_found += typed_datasets
    else:
        datasets_found.append(nodes.dataset("features", schema.FEATURE_DTYPES, (num_nodes, None)))
    splits: tuple[str, ...] = ()
    if version == schema.NAMED_FORMAT_VERSION:
        splits, named_datasets = read_named(root, nodes, num_nodes)
        datasets_found += named_datasets
    elif found_split(datasets_found):
        splits = (schema.DEFAULT_SPLIT,)
    datasets_found.append(root.dataset("classes", (), (num_classes,)))
    row_starts, partition = read_partition(root)
    datasets_found.append(row_starts)
    datasets = {dataset.name: dataset for dataset in datasets_found if dataset is not None}
    scalars = {key: int(attributes[key]) for key in schema.FINGERPRINT_SCALARS}
    crcs = root.checksums(scalars, datasets.values())
    return Contents(attributes, relations, datasets, crcs, partition, node_types, splits)


def read_version(root: Members) -> int:
    """Return the version; raise `StorageFormatError` unless it is one that is read here."""
    if root.format() != schema.FORMAT:
        raise StorageFormatError(
            f"{root.path}: is an HDF5 file but not a store of hpcgnn; make one with hpcgnn.convert"
        )
    version: int = root.attribute("format_version", int)
    if version not in schema.FORMAT_VERSIONS:
        versions = ", ".join(str(version) for version in schema.FORMAT_VERSIONS)
        raise StorageFormatError(
            f"{root.path}: format_version is {version} and this hpcgnn reads {versions}; convert "
            "the graph again with this version"
        )
    return version


def read_adjacency(
    root: Members, num_nodes: int
) -> tuple[tuple[str, ...], list[h5py.Dataset | None]]:
    """Return the relations in order, and their checked datasets."""
    adjacency = root.required_below("adjacency")
    with format_errors(root.path, "/adjacency"):
        names = list(adjacency.group)
    if "indptr" in names:
        return ("",), read_relation(adjacency, num_nodes)
    order: dict[int, str] = {}
    datasets: list[h5py.Dataset | None] = []
    for name in names:
        relation = adjacency.required_below(name)
        order[relation.attribute("index", int)] = schema.name_of(name)
        datasets += read_relation(relation, num_nodes)
    if not names or sorted(order) != list(range(len(names))):
        fault = "has no relations numbered 0, 1, ... in attribute index"
        raise damaged(root.path, "/adjacency", fault)
    return tuple(order[index] for index in range(len(names))), datasets


def read_relation(relation: Members, num_nodes: int) -> list[h5py.Dataset | None]:
    """Return the checked datasets of one relation, whose offsets must span its non-zeros."""
    indptr = relation.required("indptr", (schema.INDPTR_DTYPE,), (num_nodes + 1,))
    indices = relation.required("indices", (schema.index_dtype(num_nodes),), (None,))
    nnz = indices.shape[0]
    weights = relation.dataset("weights", (schema.WEIGHTS_DTYPE,), (nnz,))
    with format_errors(relation.path, indptr.name):
        first, last = int(indptr[0]), int(indptr[num_nodes])
    if first != 0 or last != nnz:
        fault = f"runs from {first} to {last}, not from 0 to {nnz}"
        raise damaged(relation.path, indptr.name, fault)
    features = relation.dataset("features", schema.FEATURE_DTYPES, (nnz, None))
    split = relation.dataset("split", (schema.SPLIT_DTYPE,), (nnz,))
    return [indptr, indices, weights, features, split]


def read_nodes(
    nodes: Members, num_nodes: int, num_classes: int, multi_label: bool
) -> list[h5py.Dataset | None]:
    """Return the checked datasets of the nodes, without their features and types."""
    rows = (num_nodes,)
    if multi_label:
        wide = (num_nodes, num_classes)
        labels = nodes.dataset("labels", (schema.MULTI_LABEL_DTYPE,), wide)
    else:
        labels = nodes.dataset("labels", (schema.LABEL_DTYPE,), rows)
    split = nodes.dataset("split", (schema.SPLIT_DTYPE,), rows)
    original_id = nodes.required("original_id", (schema.ID_DTYPE,), rows)
    graph = nodes.dataset("graph", (schema.ID_DTYPE,), rows)
    if (labels is None) != (num_classes == 0):
        fault = f"does not go with num_classes = {num_classes}"
        raise damaged(nodes.path, "/nodes/labels", fault)
    return [labels, split, original_id, graph]


def read_node_types(
    root: Members, nodes: Members, num_nodes: int
) -> tuple[tuple[NodeType, ...], list[h5py.Dataset | None]]:
    """Return the node types in order, and the checked datasets they need."""
    names, counts, datasets = read_type_names(root)
    if counts.min(initial=0) < 0 or sum(counts.tolist()) != num_nodes:
        fault = f"does not add up to the {num_nodes} nodes"
        raise damaged(root.path, "/node_types/counts", fault)
    datasets.append(nodes.required("type", (schema.TYPE_DTYPE,), (num_nodes,)))
    datasets.append(nodes.required("type_row", (schema.ID_DTYPE,), (num_nodes,)))
    features = nodes.below("features")
    types = []
    for name, count in zip(names, counts.tolist(), strict=True):
        matrix = None
        if features is not None:
            matrix = features.dataset(schema.link_name(name), schema.FEATURE_DTYPES, (count, None))
        columns = 0 if matrix is None else int(matrix.shape[1])
        types.append(NodeType(name, count, columns, None if matrix is None else matrix.dtype))
        datasets.append(matrix)
    return tuple(types), datasets


def read_type_names(root: Members) -> tuple[tuple[str, ...], Array, list[h5py.Dataset | None]]:
    """Return the names of the types, the numbers of their nodes, and the datasets of both."""
    group = root.required_below("node_types")
    names = group.required("names", (), (None,))
    num_types = int(names.shape[0])
    counts = group.required("counts", (schema.ID_DTYPE,), (num_types,))
    texts = read_text(root.path, names)
    if not 1 <= num_types <= schema.MAX_NODE_TYPES or len(set(texts)) < num_types:
        raise damaged(root.path, "/node_types/names", "are not different names of 1 to 256 types")
    return texts, read_slab(root.path, counts, 0, num_types), [names, counts]


def found_split(datasets: Iterable[h5py.Dataset | None]) -> bool:
    """Tell whether `/nodes/split` is among datasets."""
    return any(dataset is not None and dataset.name == "/nodes/split" for dataset in datasets)


def read_named(
    root: Members, nodes: Members, num_nodes: int
) -> tuple[tuple[str, ...], list[h5py.Dataset | None]]:
    """Return the names of the splits, and the datasets of these, of named splits and of names."""
    datasets: list[h5py.Dataset | None] = []
    names = nodes.below("names")
    if names is not None:
        offsets = names.required("offsets", (schema.ID_DTYPE,), (num_nodes + 1,))
        data = names.required("bytes", (np.dtype("u1"),), (None,))
        with format_errors(root.path, offsets.name):
            first, last = int(offsets[0]), int(offsets[num_nodes])
        if first != 0 or last != data.shape[0]:
            fault = f"runs from {first} to {last}, not from 0 to {data.shape[0]}"
            raise damaged(root.path, offsets.name, fault)
        datasets += [offsets, data]
    split_names = root.dataset("split_names", (), (None,))
    if split_names is None:
        has_split = nodes.dataset("split", (schema.SPLIT_DTYPE,), (num_nodes,)) is not None
        return ((schema.DEFAULT_SPLIT,) if has_split else ()), datasets
    splits = read_text(root.path, split_names)
    if not splits or len(set(splits)) < len(splits):
        raise damaged(root.path, schema.SPLIT_NAMES, "are not different names")
    nodes.required("split", (schema.SPLIT_DTYPE,), (num_nodes,))
    datasets.append(split_names)
    if len(splits) > 1:
        others = nodes.required_below("splits")
        for name in splits[1:]:
            datasets.append(others.required(name, (schema.SPLIT_DTYPE,), (num_nodes,)))
    return splits, datasets


def read_partition(root: Members) -> tuple[h5py.Dataset | None, dict[str, Any]]:
    """Return the dataset of part boundaries, if any, and what is known about the partition."""
    partition = root.below("partition")
    if partition is None:
        return None, {}
    row_starts = partition.required("row_starts", (schema.INDPTR_DTYPE,), (None,))
    info = {
        "method": partition.attribute("method", str),
        "seed": partition.attribute("seed", int),
        "metrics": partition.json("metrics"),
    }
    return row_starts, info
