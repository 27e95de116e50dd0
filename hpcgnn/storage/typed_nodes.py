"""Nodes of several types: what a store says about them, and their features in blocks of rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.storage import checks, members, schema
from hpcgnn.storage.datasets import damaged, read_slab, read_text
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Offsets

__all__ = ["NodeType", "group_by_type", "read_node_types", "read_type_features"]


@dataclass(frozen=True)
class NodeType:
    """A type of nodes; `num_features` is 0 and `dtype` None where its nodes have no features."""

    name: str
    num_nodes: int
    num_features: int
    dtype: np.dtype[Any] | None


def group_by_type(types: Array, num_types: int) -> tuple[GlobalIndices, Offsets]:
    """Return the positions (m,) of nodes type after type, and where each type begins in them.

    `types` (m,) are numbers below `num_types`; the nodes of a type keep their order. Those of type
    t are at `bounds[t]` to `bounds[t + 1]` - 1 of the positions, `bounds` being (num_types + 1,).
    """
    order = np.argsort(types, kind="stable")
    bounds = np.zeros(num_types + 1, np.int64)
    np.cumsum(np.bincount(types, minlength=num_types), out=bounds[1:])
    return order, bounds


def read_node_types(
    path: Path, file: h5py.File, num_nodes: int
) -> tuple[tuple[NodeType, ...], list[h5py.Dataset]]:
    """Return the node types of an open file in order, and the checked datasets they need."""
    names, counts, described = read_names(path, file)
    if counts.min(initial=0) < 0 or sum(counts.tolist()) != num_nodes:
        raise damaged(path, "/node_types/counts", f"does not add up to the {num_nodes} nodes")
    nodes = members.group(path, file, "nodes")
    assert nodes is not None
    datasets = []
    for name, dtype in (("type", schema.TYPE_DTYPE), ("type_row", schema.ID_DTYPE)):
        found = members.dataset(path, nodes, name, (dtype,), (num_nodes,))
        if found is None:
            raise damaged(path, f"/nodes/{name}", "is missing")
        datasets.append(found)
    features = members.group(path, nodes, "features")
    types = []
    for name, count in zip(names, counts.tolist(), strict=True):
        matrix = None
        if features is not None:
            matrix = members.dataset(path, features, name, schema.FEATURE_DTYPES, (count, None))
        if matrix is None:
            types.append(NodeType(name, count, 0, None))
            continue
        types.append(NodeType(name, count, int(matrix.shape[1]), matrix.dtype))
        datasets.append(matrix)
    return tuple(types), described + datasets


def read_names(path: Path, file: h5py.File) -> tuple[tuple[str, ...], Array, list[h5py.Dataset]]:
    """Return the names of the types, the numbers of their nodes, and the datasets of both."""
    group = members.group(path, file, "node_types")
    if group is None:
        raise damaged(path, "/node_types", "is missing")
    names = members.dataset(path, group, "names", (), (None,))
    if names is None:
        raise damaged(path, "/node_types/names", "is missing")
    num_types = int(names.shape[0])
    counts = members.dataset(path, group, "counts", (schema.ID_DTYPE,), (num_types,))
    if counts is None:
        raise damaged(path, "/node_types/counts", "is missing")
    texts = read_text(path, names)
    if not 1 <= num_types <= schema.MAX_NODE_TYPES or len(set(texts)) < num_types:
        raise damaged(path, "/node_types/names", "are not different names of 1 to 256 types")
    return texts, read_slab(path, counts, 0, num_types), [names, counts]


def read_type_features(
    path: Path,
    datasets: dict[str, h5py.Dataset],
    node_types: tuple[NodeType, ...],
    start: int,
    types: Array,
) -> tuple[FloatArray, ...]:
    """Return the features of nodes `start` to `start + m` - 1 by type, as `NodeBlock` has them.

    `types` (m,) are the nodes' checked types.
    """
    rows = read_slab(path, datasets["/nodes/type_row"], start, start + len(types))
    order, bounds = group_by_type(types, len(node_types))
    counts = np.array([each.num_nodes for each in node_types], np.int64)
    fault = checks.fault_in_type_rows(rows, order, bounds, counts, start)
    if fault is not None:
        raise damaged(path, "/nodes/type_row", fault)
    features = []
    for number, each in enumerate(node_types):
        mine = rows[order[bounds[number] : bounds[number + 1]]]
        if each.dtype is None:
            features.append(np.empty((len(mine), 0), np.float32))
            continue
        dataset = datasets[f"/nodes/features/{each.name}"]
        first = int(mine[0]) if len(mine) else 0
        block = read_slab(path, dataset, first, first + len(mine))
        fault = checks.fault_in_features(block, first)
        if fault is not None:
            raise damaged(path, dataset.name, fault)
        features.append(block)
    return tuple(features)
