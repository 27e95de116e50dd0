"""The structure of an open store, checked without reading its rows."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import StorageFormatError
from hpcgnn.storage import members, schema
from hpcgnn.storage.datasets import damaged, format_errors
from hpcgnn.storage.typed_nodes import NodeType, read_node_types

__all__ = ["Layout", "read_layout"]

ROOT_ATTRIBUTES: dict[str, type] = {
    "name": str,
    "num_nodes": int,
    "num_classes": int,
    "multi_label": bool,
    "undirected": bool,
    "fingerprint": str,
}


@dataclass(frozen=True)
class Layout:
    """The structure of a store: `datasets` and `crcs` by absolute name, relations in order.

    `attributes` are those of the root with `provenance` decoded; `partition` holds method, seed and
    metrics, or nothing for a graph in one part. `node_types` is empty for a graph without them.
    """

    path: Path
    attributes: dict[str, Any]
    relations: tuple[str, ...]
    datasets: dict[str, h5py.Dataset]
    crcs: dict[str, int]
    partition: dict[str, Any]
    node_types: tuple[NodeType, ...]


def read_layout(path: Path, file: h5py.File) -> Layout:
    """Check version, names, types, shapes, links and the fingerprint of an open file.

    Raises `StorageFormatError` that names the file and the attribute or dataset.
    """
    typed = read_version(path, file) == schema.TYPED_FORMAT_VERSION
    attributes = {k: members.attribute(path, file, k, t) for k, t in ROOT_ATTRIBUTES.items()}
    attributes["provenance"] = json_attribute(path, file, "provenance")
    num_nodes, num_classes = attributes["num_nodes"], attributes["num_classes"]
    if not 1 <= num_nodes < schema.MAX_NODES or num_classes < 0:
        raise damaged(path, "/: attributes num_nodes, num_classes", "are out of range")
    relations, datasets = read_adjacency(path, file, num_nodes)
    datasets += read_nodes(path, file, num_nodes, num_classes, attributes["multi_label"])
    node_types: tuple[NodeType, ...] = ()
    if typed:
        node_types, typed_datasets = read_node_types(path, file, num_nodes)
        datasets += typed_datasets
    else:
        datasets += read_features(path, file, num_nodes)
    datasets += present(members.dataset(path, file, "classes", (), (num_classes,)))
    parts, partition = read_partition(path, file)
    datasets += parts
    by_name = {each.name: each for each in datasets}
    crcs = {name: members.attribute(path, each, "crc32", int) for name, each in by_name.items()}
    check_fingerprint(path, attributes, by_name, crcs)
    return Layout(path, attributes, relations, by_name, crcs, partition, node_types)


def read_version(path: Path, file: h5py.File) -> int:
    """Return the version; raise `StorageFormatError` unless it is one that is read here."""
    with format_errors(path, "/: attribute format"):
        known = "format" in file.attrs
    if not known or members.attribute(path, file, "format", str) != schema.FORMAT:
        raise StorageFormatError(
            f"{path}: is an HDF5 file but not a store of hpcgnn; make one with hpcgnn.convert"
        )
    version: int = members.attribute(path, file, "format_version", int)
    if version not in (schema.FORMAT_VERSION, schema.TYPED_FORMAT_VERSION):
        raise StorageFormatError(
            f"{path}: format_version is {version} and this hpcgnn reads {schema.FORMAT_VERSION} "
            f"and {schema.TYPED_FORMAT_VERSION}; convert the graph again with this version"
        )
    return version


def json_attribute(path: Path, holder: h5py.Group, name: str) -> dict[str, Any]:
    """Return an attribute of JSON text that holds an object."""
    text = members.attribute(path, holder, name, str)
    with format_errors(path, f"{holder.name}: attribute {name}"):
        value = json.loads(text)
    if not isinstance(value, dict):
        raise damaged(path, f"{holder.name}: attribute {name}", "is not a JSON object")
    return value


def present(*found: h5py.Dataset | None) -> list[h5py.Dataset]:
    """Return the datasets that exist."""
    return [each for each in found if each is not None]


def read_adjacency(
    path: Path, file: h5py.File, num_nodes: int
) -> tuple[tuple[str, ...], list[h5py.Dataset]]:
    """Return the relations in order, and their checked datasets."""
    adjacency = members.group(path, file, "adjacency")
    if adjacency is None:
        raise damaged(path, "/adjacency", "is missing")
    with format_errors(path, "/adjacency"):
        names = list(adjacency)
    if "indptr" in names:
        return ("",), read_relation(path, adjacency, num_nodes)
    order: dict[int, str] = {}
    datasets: list[h5py.Dataset] = []
    for name in names:
        group = members.group(path, adjacency, name)
        assert group is not None
        order[members.attribute(path, group, "index", int)] = name
        datasets += read_relation(path, group, num_nodes)
    if not names or sorted(order) != list(range(len(names))):
        raise damaged(path, "/adjacency", "has no relations numbered 0, 1, ... in attribute index")
    return tuple(order[index] for index in range(len(names))), datasets


def read_relation(path: Path, group: h5py.Group, num_nodes: int) -> list[h5py.Dataset]:
    """Return the checked datasets of one relation, whose offsets must span its non-zeros."""
    indptr = members.dataset(path, group, "indptr", (schema.INDPTR_DTYPE,), (num_nodes + 1,))
    indices = members.dataset(path, group, "indices", (schema.index_dtype(num_nodes),), (None,))
    if indptr is None or indices is None:
        missing = "indptr" if indptr is None else "indices"
        raise damaged(path, members.item_name(group, missing), "is missing")
    nnz = indices.shape[0]
    weights = members.dataset(path, group, "weights", (schema.WEIGHTS_DTYPE,), (nnz,))
    with format_errors(path, indptr.name):
        first, last = int(indptr[0]), int(indptr[num_nodes])
    if first != 0 or last != nnz:
        raise damaged(path, indptr.name, f"runs from {first} to {last}, not from 0 to {nnz}")
    return present(indptr, indices, weights)


def read_nodes(
    path: Path, file: h5py.File, num_nodes: int, num_classes: int, multi_label: bool
) -> list[h5py.Dataset]:
    """Return the checked datasets of the nodes, without their features."""
    group = members.group(path, file, "nodes")
    if group is None:
        raise damaged(path, "/nodes", "is missing")
    rows = (num_nodes,)
    if multi_label:
        wide = (num_nodes, num_classes)
        labels = members.dataset(path, group, "labels", (schema.MULTI_LABEL_DTYPE,), wide)
    else:
        labels = members.dataset(path, group, "labels", (schema.LABEL_DTYPE,), rows)
    split = members.dataset(path, group, "split", (schema.SPLIT_DTYPE,), rows)
    original_id = members.dataset(path, group, "original_id", (schema.ID_DTYPE,), rows)
    if original_id is None:
        raise damaged(path, "/nodes/original_id", "is missing")
    if (labels is None) != (num_classes == 0):
        raise damaged(path, "/nodes/labels", f"does not go with num_classes = {num_classes}")
    return present(labels, split, original_id)


def read_features(path: Path, file: h5py.File, num_nodes: int) -> list[h5py.Dataset]:
    """Return the checked matrix of features of a graph without node types, if it has one."""
    group = members.group(path, file, "nodes")
    assert group is not None
    shape = (num_nodes, None)
    return present(members.dataset(path, group, "features", schema.FEATURE_DTYPES, shape))


def read_partition(path: Path, file: h5py.File) -> tuple[list[h5py.Dataset], dict[str, Any]]:
    """Return the dataset of part boundaries, if any, and what is known about the partition."""
    group = members.group(path, file, "partition")
    if group is None:
        return [], {}
    row_starts = members.dataset(path, group, "row_starts", (schema.INDPTR_DTYPE,), (None,))
    if row_starts is None:
        raise damaged(path, "/partition/row_starts", "is missing")
    info = {
        "method": members.attribute(path, group, "method", str),
        "seed": members.attribute(path, group, "seed", int),
        "metrics": json_attribute(path, group, "metrics"),
    }
    return [row_starts], info


def check_fingerprint(
    path: Path,
    attributes: dict[str, Any],
    datasets: dict[str, h5py.Dataset],
    crcs: dict[str, int],
) -> None:
    """Raise `StorageFormatError` unless the checksums belong to this fingerprint."""
    scalars = {key: int(attributes[key]) for key in schema.FINGERPRINT_SCALARS}
    described = [
        (name, np.dtype(each.dtype).str, each.shape, crcs[name]) for name, each in datasets.items()
    ]
    if schema.fingerprint(scalars, described) != attributes["fingerprint"]:
        raise damaged(path, "/: attribute fingerprint", "does not belong to this file's datasets")
