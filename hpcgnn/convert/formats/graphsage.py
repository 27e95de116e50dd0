"""GraphSAGE's JSON (networkx node-link data): PREFIX-G.json, or PPI's three files as one graph."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import SPLIT_NAMES, labelled
from hpcgnn.convert.read.arrays import RelationEdges, array_features, array_source, matrix_features
from hpcgnn.convert.read.files import read_json
from hpcgnn.convert.read.npy import open_npy
from hpcgnn.convert.source import ConvertOptions, GraphSource, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph in the folder `path`; raises `InputError`."""
    if (path / "train_graph.json").exists():
        return _read_parts(path)
    files = sorted(path.glob("*-G.json"))
    if len(files) != 1:
        raise InputError(
            f"{path}: needs one file PREFIX-G.json, or train_graph.json; it has {len(files)}"
        )
    return _read_one(files[0], options)


def _read_one(path: Path, options: ConvertOptions) -> GraphSource:
    prefix = path.name.removesuffix("G.json")
    id_map, classes, features = (
        path.with_name(f"{prefix}{name}") for name in ("id_map.json", "class_map.json", "feats.npy")
    )
    nodes, links = _node_link(path)
    rows = _ids(nodes, path)
    if id_map.exists():
        rows = _mapped(id_map, rows)
    split = np.full(len(nodes), Split.TRAIN, np.uint8)
    for node, row in zip(nodes, rows.values(), strict=True):
        if node.get("test"):
            split[row] = Split.TEST
        elif node.get("val"):
            split[row] = Split.VALID
    edges = {"": RelationEdges(*_ends(links, rows, path))}
    fields: dict[str, Any] = {"splits": {"": split}}
    if classes.exists():
        fields["labels"] = labelled(_classes(classes, rows), str(classes))
    if features.exists():
        fields["features"] = array_features(open_npy(features), options)
    inputs = (path, id_map, *(file for file in (classes, features) if file.exists()))
    source = array_source(path.parent, edges, len(nodes), NodeArrays(**fields), inputs=inputs)
    return replace(source, counted=True)


def _read_parts(path: Path) -> GraphSource:
    """Read a training, a validation and a test file as one graph without edges between them."""
    sides, splits, inputs = [], [], []
    features: list[Array] = []
    labels: list[Array] = []
    start = 0
    for part, role in SPLIT_NAMES.items():
        files = [path / f"{part}_{name}" for name in ("graph.json", "feats.npy", "labels.npy")]
        inputs += files
        nodes, links = _node_link(files[0])
        rows = _ids(nodes, files[0], start)
        sides.append(_ends(links, rows, files[0]))
        for file, arrays in zip(files[1:], (features, labels), strict=True):
            array = open_npy(file).load()
            arrays.append(array)
            if array.shape[:1] != (len(nodes),):
                raise InputError(f"{file}: has shape {array.shape} for {len(nodes)} nodes")
            if array.shape[1:] != arrays[0].shape[1:]:
                raise InputError(
                    f"{file}: has rows of shape {array.shape[1:]}, and those for training have "
                    f"{arrays[0].shape[1:]}; give all the same"
                )
        splits.append(np.full(len(nodes), role, np.uint8))
        start += len(nodes)
    nodes_of_all = NodeArrays(
        features=matrix_features(np.concatenate(features), f"{path}: features"),
        labels=labelled(np.concatenate(labels), str(path)),
        splits={"": np.concatenate(splits)},
    )
    ends = np.concatenate(sides, axis=1)
    return array_source(path, {"": RelationEdges(*ends)}, start, nodes_of_all, inputs=tuple(inputs))


def _node_link(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    content = read_json(path)
    data: Any = content if isinstance(content, dict) else {}
    nodes, links = data.get("nodes"), data.get("links", data.get("edges"))
    for name, entries in (("nodes", nodes), ("links", links)):
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InputError(f"{path}: has no list {name!r}; save networkx's node_link_data")
    return nodes, links


def _field(entry: dict[str, Any], name: str, path: Path) -> Any:
    # isinstance would accept True as an int, and NumPy would then index with a mask.
    if type(entry.get(name)) not in (int, str):
        raise InputError(f"{path}: an entry {str(entry)[:60]} has no {name!r}; add it")
    return entry[name]


def _ids(nodes: list[dict[str, Any]], path: Path, start: int = 0) -> dict[str, int]:
    """Map node ids, as strings like JSON keys, to rows counted from `start`."""
    rows: dict[str, int] = {}
    for number, node in enumerate(nodes, start):
        identifier = str(_field(node, "id", path))
        if rows.setdefault(identifier, number) != number:
            raise InputError(f"{path}: two nodes have the id {identifier!r}; give each its own")
    return rows


def _mapped(path: Path, ids: dict[str, int]) -> dict[str, int]:
    rows = read_json(path)
    mapped: dict[str, Any] = {
        identifier: rows.get(identifier) if isinstance(rows, dict) else None for identifier in ids
    }
    if sorted(row for row in mapped.values() if type(row) is int) != list(range(len(ids))):
        raise InputError(f"{path}: must give each of the {len(ids)} nodes a row of its own from 0")
    return mapped


def _ends(links: list[dict[str, Any]], rows: dict[str, int], path: Path) -> NDArray[np.int64]:
    """Return sources and targets [2, E] of links, which name nodes by id or by position."""
    raw = [[_field(link, name, path) for link in links] for name in ("source", "target")]
    ends = np.empty((2, len(links)), np.int64)
    by_id = all(str(identifier) in rows for side in raw for identifier in side)
    in_order = list(rows.values())
    for side, values in enumerate(raw):
        for number, identifier in enumerate(values):
            if by_id:
                ends[side, number] = rows[str(identifier)]
            elif isinstance(identifier, int) and 0 <= identifier < len(in_order):
                ends[side, number] = in_order[identifier]
            else:
                raise InputError(
                    f"{path}: link {number} has {identifier!r}, which is no node; correct it"
                )
    return ends


def _classes(path: Path, rows: dict[str, int]) -> Array:
    classes = read_json(path)
    values: list[Any] = [None] * len(rows)
    for key, row in rows.items():
        if not isinstance(classes, dict) or key not in classes:
            raise InputError(f"{path}: has no entry for the node {key!r}; add one")
        values[row] = classes[key]
    try:
        array = np.array(values)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "bif" or array.ndim not in (1, 2):
        raise InputError(f"{path}: give each node a class, or a list of 0 and 1 of one length")
    return array
