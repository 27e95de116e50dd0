"""GraphSAINT folders: adj_full.npz, adj_train.npz, feats.npy, class_map.json, role.json.

Row i of the adjacency lists the nodes that node i aggregates from, as in GraphSAINT's own code.
`adj_train.npz` is the part of `adj_full.npz` between training nodes: it follows from the split, and
is only checked against it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.class_map import read_class_map
from hpcgnn.convert.files import read_error, require_file
from hpcgnn.convert.nodes import labelled, split_from_indices
from hpcgnn.convert.npy import Npz, open_npy
from hpcgnn.convert.npz_features import array_features
from hpcgnn.convert.source import ConvertOptions, GraphSource, Nodes
from hpcgnn.convert.sparse import CompressedMatrix
from hpcgnn.errors import InputError
from hpcgnn.storage import Split

__all__ = ["read"]

_ROLES = {"tr": "train", "va": "valid", "te": "test"}  # codespell:ignore te


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the GraphSAINT graph in the folder `path`; raises `InputError`."""
    adjacency = _matrix(path / "adj_full.npz")
    num_nodes = adjacency.num_nodes
    files = {name: path / name for name in ("feats.npy", "class_map.json", "role.json")}
    split = _read_roles(files["role.json"], num_nodes)
    if (path / "adj_train.npz").exists():
        _check_training_part(path / "adj_train.npz", split)
    labels = read_class_map(files["class_map.json"], num_nodes)
    nodes = Nodes(
        features=array_features(open_npy(files["feats.npy"]), options),
        split=split,
        **labelled(labels, str(files["class_map.json"])),
    )
    return GraphSource(
        path=path,
        edges=adjacency.chunks,
        inputs=(adjacency.indices.path, *files.values()),
        num_nodes=num_nodes,
        weighted=adjacency.data is not None,
        nodes=nodes,
    )


def _matrix(path: Path) -> CompressedMatrix:
    npz = Npz(path)
    if (form := npz.get("format")) is not None and form.load().item() not in ("csr", b"csr"):
        raise InputError(f"{path}: the matrix is not in CSR form; save matrix.tocsr()")
    return CompressedMatrix.read(npz, major_is_src=False)


def _check_training_part(path: Path, split: NDArray[np.uint8]) -> None:
    matrix = _matrix(path)
    if matrix.num_nodes != len(split):
        raise InputError(
            f"{path}: has {matrix.num_nodes} rows and adj_full.npz has {len(split)}; "
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
    roles = _read_json(path)
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


def _read_json(path: Path) -> Any:
    require_file(path)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise read_error(path, error) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no whole JSON text ({error}); copy it again") from error
