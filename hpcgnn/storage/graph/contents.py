"""Check the members of an open store against the schema, without reading its rows.

Faults are `StorageFormatError`s that name the file and the attribute or dataset.
"""

import json
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.datasets import damaged, format_errors, read_slab, read_text
from hpcgnn.storage.graph import schema
from hpcgnn.storage.graph.blocks import NodeType
from hpcgnn.storage.graph.checks import FEATURES, IDS, ROLES, Kind, edge_kinds
from hpcgnn.storage.graph.fields import FieldInfo
from hpcgnn.storage.members import Members, attribute


def read_version(root: Members) -> int:
    """Return the format version, after checking that this program reads it."""
    fault = "is an HDF5 file but not a store of hpcgnn; make one with hpcgnn convert"
    if (kind := root.format() or "").startswith(f"{schema.FORMAT} "):
        fault = (
            f"is a file of {kind}, not of a graph; name a store made by hpcgnn convert, and of "
            "program graphs only with train.task=programs"
        )
    return root.version(schema.FORMAT, schema.FORMAT_VERSIONS, fault, "graph")


def read_relations(root: Members, num_nodes: int) -> tuple[str, ...]:
    """Return the relations in order."""
    adjacency = root.required_below("adjacency")
    with format_errors(root.path, "/adjacency"):
        names = list(adjacency.group)
    if "indptr" in names:
        _check_relation(adjacency, num_nodes, num_nodes)
        return ("",)
    order: dict[int, str] = {}
    for name in names:
        relation = adjacency.required_below(name)
        order[relation.attribute("index", int)] = schema.name_of(name)
        _check_relation(relation, num_nodes, num_nodes)
    if not names or sorted(order) != list(range(len(names))):
        fault = "has no relations numbered 0, 1, ... in attribute index"
        raise damaged(root.path, "/adjacency", fault)
    return tuple(order[index] for index in range(len(names)))


def read_sparse_columns(root: Members, num_nodes: int, version: int) -> int:
    """Return the number of columns of sparse features, 0 without sparse features."""
    group = root.required_below("nodes").below("sparse_features")
    if version < schema.SPARSE_FORMAT_VERSION or group is None:
        return 0
    columns: int = group.attribute("columns", int)
    if not 1 <= columns <= schema.MAX_COLUMNS:
        raise damaged(root.path, "/nodes/sparse_features: attribute columns", "is out of range")
    _check_relation(group, num_nodes, columns)
    for name in ("weights", "split", "labels"):
        if group.find(name) is not None:
            raise damaged(root.path, group.item(name), "does not belong to features")
    values = group.dataset("features", *edge_kinds(0)["features"].stored(None))
    if values is not None and values.shape[1] != 1:
        raise damaged(root.path, values.name, f"has {values.shape[1]} columns, not 1")
    return columns


def _check_relation(relation: Members, num_nodes: int, num_columns: int) -> None:
    indptr = relation.required("indptr", (schema.INDPTR_DTYPE,), (num_nodes + 1,))
    indices = relation.required("indices", (schema.index_dtype(num_columns),), (None,))
    _check_span(relation, indptr, indices)
    for name, kind in edge_kinds(0).items():
        relation.dataset(name, *kind.stored(indices.shape[0]))


def _check_span(group: Members, offsets: h5py.Dataset, data: h5py.Dataset) -> None:
    """Check that offsets run from 0 to the length of the dataset they point into."""
    with format_errors(group.path, offsets.name):
        first, last = int(offsets[0]), int(offsets[len(offsets) - 1])
    if first != 0 or last != len(data):
        fault = f"runs from {first} to {last}, not from 0 to {len(data)}"
        raise damaged(group.path, offsets.name, fault)


def read_node_types(root: Members, num_nodes: int, version: int) -> tuple[NodeType, ...]:
    """Return the node types in order; empty for a graph without node types."""
    group = root.below("node_types")
    if version == schema.FORMAT_VERSION or (
        version >= schema.NAMED_FORMAT_VERSION and group is None
    ):
        return ()
    group = root.required_below("node_types")
    names = group.required("names", (), (None,))
    num_types = len(names)
    counts = group.required("counts", *IDS.stored(num_types))
    texts, numbers = read_text(root.path, names), read_slab(root.path, counts, 0, num_types)
    if not 1 <= num_types <= schema.MAX_NODE_TYPES or len(set(texts)) < num_types:
        raise damaged(root.path, names.name, "are not different names of 1 to 256 types")
    if numbers.min(initial=0) < 0 or sum(numbers.tolist()) != num_nodes:
        raise damaged(root.path, counts.name, f"does not add up to the {num_nodes} nodes")
    features = root.required_below("nodes").below("features")
    types = []
    for name, count in zip(texts, numbers.tolist(), strict=True):
        matrix = None
        if features is not None:
            matrix = features.dataset(schema.link_name(name), *FEATURES.stored(count))
        columns, dtype = (0, None) if matrix is None else (int(matrix.shape[1]), matrix.dtype)
        types.append(NodeType(name, count, columns, dtype))
    return tuple(types)


def check_nodes(
    root: Members, num_nodes: int, kinds: Mapping[str, Kind], num_classes: int, *, typed: bool
) -> None:
    """Check the datasets of nodes, except splits and names."""
    nodes = root.required_below("nodes")
    required = ("original_id", "type", "type_row") if typed else ("original_id",)
    for name in ("labels", *required, "graph", *(() if typed else ("features",))):
        get = nodes.required if name in required else nodes.dataset
        dataset = get(name, *kinds[name].stored(num_nodes))
        if name == "labels" and (dataset is None) != (num_classes == 0):
            fault = f"does not fit num_classes = {num_classes}"
            raise damaged(nodes.path, "/nodes/labels", fault)


def check_names(root: Members, num_nodes: int) -> None:
    """Check the names of the nodes, if there are any."""
    names = root.required_below("nodes").below("names")
    if names is not None:
        offsets = names.required("offsets", *IDS.stored(num_nodes + 1))
        _check_span(names, offsets, names.required("bytes", (np.dtype("u1"),), (None,)))


def read_splits(root: Members, num_nodes: int, version: int) -> tuple[str, ...]:
    """Return the names of the splits in order."""
    nodes, kind = root.required_below("nodes"), ROLES.stored(num_nodes)
    first = nodes.dataset("split", *kind)
    names = None
    if version >= schema.NAMED_FORMAT_VERSION:
        names = root.dataset("split_names", (), (None,))
    if names is None:
        return () if first is None else (schema.DEFAULT_SPLIT,)
    splits = read_text(root.path, names)
    if not splits or len(set(splits)) < len(splits):
        raise damaged(root.path, schema.SPLIT_NAMES, "are not different names")
    nodes.required("split", *kind)
    for name in splits[1:]:
        nodes.required_below("splits").required(name, *kind)
    return splits


def read_box(root: Members, num_nodes: int, kinds: Mapping[str, Kind]) -> tuple[float, ...]:
    """Check positions and weights of nodes, if there are any; return the period of each axis."""
    nodes = root.required_below("nodes")
    nodes.dataset("weights", *kinds["weights"].stored(num_nodes))
    positions = nodes.dataset("positions", *kinds["positions"].stored(num_nodes))
    if positions is None:
        return ()
    item = f"{schema.POSITIONS}: attribute box"
    with format_errors(root.path, item):
        box = np.asarray(positions.attrs["box"])
    if box.shape != positions.shape[1:] or box.dtype.kind != "f" or not (box >= 0).all():
        raise damaged(root.path, item, "is not a period at least 0 for each axis")
    return tuple(box.tolist())


def read_fields(root: Members, num_nodes: int, version: int) -> tuple[str, dict[str, FieldInfo]]:
    """Return the unit of the times, and the fields by name; both empty without fields."""
    group = root.below("fields")
    if group is None:
        return "", {}
    times = group.required("times", (schema.COORDINATE_DTYPE,), (None,))
    group.required("trajectory_starts", (schema.ID_DTYPE,), (None,))
    infos = dict[str, FieldInfo]()
    if version < schema.EDGE_FIELDS_FORMAT_VERSION or group.below("values") is not None:
        infos |= _read_infos(root, group.required_below("values"), (len(times), num_nodes))
    if version >= schema.EDGE_FIELDS_FORMAT_VERSION:
        kinds = (schema.index_dtype(num_nodes),)
        edges = root.required_below("adjacency").required("indices", kinds, (None,))
        shape = len(times), len(edges)
        infos |= _read_infos(root, group.required_below("edge_values"), shape, of_edges=True)
    if not infos:
        raise damaged(root.path, schema.FIELD_VALUES, "holds no field")
    return attribute(root.path, times, "unit", str), infos


def _read_infos(
    root: Members, values: Members, shape: tuple[int, int], *, of_edges: bool = False
) -> dict[str, FieldInfo]:
    """Return the fields of a group, whose datasets are (T, rows, F), by name."""
    group_path = schema.EDGE_VALUES if of_edges else schema.FIELD_VALUES
    with format_errors(root.path, group_path):
        names = list(values.group)
    infos = {}
    for link in names:
        name = schema.name_of(link)
        field = values.required(link, schema.FEATURE_DTYPES, (*shape, None))
        where = f"{group_path}/{link}"
        with format_errors(root.path, where):
            texts = json.loads(attribute(root.path, field, "components", str))
            components = tuple(map(str, texts))
        unit = attribute(root.path, field, "unit", str)
        try:
            infos[name] = FieldInfo(
                name, int(field.shape[2]), field.dtype, unit, components, of_edges
            )
        except InputError as error:
            raise damaged(root.path, where, str(error)) from error
    return infos


def read_partition(root: Members) -> dict[str, Any]:
    """Return method, seed and metrics of the partition; empty for a graph in one part."""
    partition = root.below("partition")
    if partition is None:
        return {}
    partition.required("row_starts", (schema.INDPTR_DTYPE,), (None,))
    return {
        "method": partition.attribute("method", str),
        "seed": partition.attribute("seed", int),
        "metrics": partition.json("metrics"),
    }
