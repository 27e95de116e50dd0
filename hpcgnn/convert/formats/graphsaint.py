"""GraphSAINT folders: adj_full.npz, adj_train.npz, feats.npy, class_map.json, role.json.

Row i of the adjacency lists the nodes that node i aggregates from, as in GraphSAINT's own code.
class_map.json is read node by node, since for large graphs it is hundreds of megabytes.
"""

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.nodes import labelled, split_from_indices
from hpcgnn.convert.read.arrays import array_features
from hpcgnn.convert.read.edges import EdgeArrays, compressed_edges
from hpcgnn.convert.read.files import read_json, read_pieces
from hpcgnn.convert.read.npy import Npz, open_npy
from hpcgnn.convert.source import ConvertOptions, GraphSource, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import Split
from hpcgnn.typing import Array

_PIECE_BYTES = 1 << 20
_ENTRY = re.compile(
    r'\s*"(?P<node>[^"\\]*)"\s*:\s*(?P<value>\[[^\]]*\]|[^\[\],{}]+?)\s*(?P<end>[,}])'
)
_OPENING = re.compile(r"\s*\{")
_LONGEST_ENTRY = 8 * _PIECE_BYTES
_ROLES = {"tr": "train", "va": "valid", "te": "test"}  # codespell:ignore te


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the GraphSAINT graph in the folder `path`; raises `InputError`."""
    adjacency, num_nodes = _matrix(path / "adj_full.npz")
    files = {name: path / name for name in ("feats.npy", "class_map.json", "role.json")}
    split = _read_roles(files["role.json"], num_nodes)
    if (path / "adj_train.npz").exists():
        _check_training_part(path / "adj_train.npz", split)
    labels = read_class_map(files["class_map.json"], num_nodes)
    nodes = NodeArrays(
        features=array_features(open_npy(files["feats.npy"]), options),
        splits={"": split},
        labels=labelled(labels, str(files["class_map.json"])),
    )
    return GraphSource(
        path=path,
        edges=adjacency.chunks,
        inputs=(adjacency.path, *files.values()),
        num_nodes=num_nodes,
        columns={"": adjacency.columns},
        nodes=nodes,
    )


def _matrix(path: Path) -> tuple[EdgeArrays, int]:
    npz = Npz(path)
    if "format" in npz and npz.word("format") != "csr":
        raise InputError(f"{path}: the matrix is not in CSR form; save matrix.tocsr()")
    edges = compressed_edges(npz, major_is_src=False)
    assert edges.num_nodes is not None
    return edges, edges.num_nodes


def _check_training_part(path: Path, split: NDArray[np.uint8]) -> None:
    matrix, num_nodes = _matrix(path)
    if num_nodes != len(split):
        raise InputError(
            f"{path}: has {num_nodes} rows and adj_full.npz has {len(split)}; "
            "copy the files of one graph"
        )
    for chunk in matrix.chunks():
        for ids in (chunk.src, chunk.dst):
            inside = (ids >= 0) & (ids < len(split))
            if not inside.all() or (split[ids] != Split.TRAIN).any():
                raise InputError(
                    f"{path}: has an edge at a node that role.json does not list under 'tr'; "
                    "copy the files of one graph"
                )


def _read_roles(path: Path, num_nodes: int) -> NDArray[np.uint8]:
    roles = read_json(path)
    if not isinstance(roles, dict) or not set(_ROLES) <= set(roles):
        raise InputError(f"{path}: must hold the lists {', '.join(_ROLES)}; copy it again")
    parts, where = {}, {}
    for role, name in _ROLES.items():
        ids = roles[role]
        if not isinstance(ids, list):
            raise InputError(f"{path}: {role!r} must be a list of node ids; copy it again")
        for node in ids:
            if type(node) is not int or not 0 <= node < num_nodes:
                raise InputError(
                    f"{path}: {role!r}: {node!r} is no node id in 0..{num_nodes - 1}; correct it"
                )
        parts[name] = np.array(ids, np.int64)
        where[name] = f"{path}: {role!r}"
    return split_from_indices(parts, num_nodes, where)


def read_class_map(path: Path, num_nodes: int) -> Array:
    """Return int64[n] classes, -1 for none, or uint8[n, classes] of 0 and 1; `InputError`."""
    labels: Array | None = None
    labelled_nodes = np.zeros(num_nodes, np.bool_)
    for key, text in _entries(path):
        node, value = _parse(path, key, text, num_nodes)
        if labels is None:
            none, kind = (0, np.uint8) if value.ndim else (-1, np.int64)
            labels = np.full((num_nodes, *value.shape), none, kind)
        if value.shape != labels.shape[1:]:
            raise InputError(
                f"{path}: node {node} has labels of shape {value.shape} where the first has "
                f"{labels.shape[1:]}; give each node a class, or a list of 0 and 1 of one length"
            )
        if labelled_nodes[node]:
            raise InputError(f"{path}: node {node} occurs twice; remove one entry")
        labelled_nodes[node], labels[node] = True, value
    if labels is None:
        raise InputError(f"{path}: holds no labels; copy it again")
    if labels.ndim == 2 and not labelled_nodes.all():
        raise InputError(f"{path}: has no entry for node {np.argmin(labelled_nodes)}; add one")
    return labels


def _parse(path: Path, key: str, text: str, num_nodes: int) -> tuple[int, Array]:
    """Return the node and its class [] or its vector of 0 and 1 [classes]."""
    node = int(key) if key.isdecimal() and len(key) < 20 else -1
    if not 0 <= node < num_nodes:
        raise InputError(
            f"{path}: the key {key[:40]!r} is no node id in 0..{num_nodes - 1}; correct it"
        )
    try:
        value = np.array(json.loads(text))
    except (ValueError, RecursionError):
        value = np.array(None)
    # Some published files have 1.0 for 1.
    fits = value.dtype.kind in "if" and value.ndim <= 1 and value.size > 0
    limit = 2 if value.ndim else 1 << 31
    if not fits or ((value < 0) | (value >= limit) | (value % 1 != 0)).any():
        raise InputError(
            f"{path}: node {node} has the label {text[:40]!r}; "
            "it is a class number, or a list of 0 and 1"
        )
    return node, value


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield keys and values as text; raises `InputError` if the text is not such an object."""
    buffer, opened, closed = "", False, False
    for piece in _pieces(path):
        buffer += piece
        at = 0
        if not opened and (opening := _OPENING.match(buffer)):
            opened, at = True, opening.end()
        while opened and not closed and (entry := _ENTRY.match(buffer, at)):
            yield entry["node"], entry["value"]
            at, closed = entry.end(), entry["end"] == "}"
        buffer = buffer[at:]
        if len(buffer) > _LONGEST_ENTRY:
            break
    if not closed or buffer.strip():
        raise InputError(
            f"{path}: is no object of node ids and labels, or is truncated, at "
            f"{buffer[:30]!r}; copy it again"
        )


def _pieces(path: Path) -> Iterator[str]:
    try:
        yield from codecs.iterdecode(read_pieces(path, _PIECE_BYTES), "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text ({error}); copy it again") from error
