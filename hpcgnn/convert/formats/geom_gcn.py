"""Geom-GCN folders: out1_graph_edges.txt, out1_node_feature_label.txt and the splits beside them.

A line of the node file is an id, features separated by commas, and a class. If all lines have the
same number of features, these are the values, else the indices of the features that are 1 (film).
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hpcgnn.convert.nodes import labelled, split_from_masks
from hpcgnn.convert.read.arrays import RelationEdges, array_source, matrix_features
from hpcgnn.convert.read.npy import Npz
from hpcgnn.convert.read.tables import Table, TableFile
from hpcgnn.convert.source import ConvertOptions, Features, GraphSource, NodeArrays
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import Array

_EDGES, _NODES = "out1_graph_edges.txt", "out1_node_feature_label.txt"
_MASKS = {"train": "train_mask", "valid": "val_mask", "test": "test_mask"}
_MOST_COLUMNS = 1 << 24
_HAS_NUMBER = re.compile(r"_(\d+)\.npz$")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the graph in the folder `path`; raises `InputError`."""
    features, labels = _read_nodes(path / _NODES)
    parts = [
        np.stack([block.integers(0), block.integers(1)])
        for block in _open(path / _EDGES, 2).blocks({0: "integer", 1: "integer"})
    ]
    ends = np.concatenate([np.zeros((2, 0), np.int64), *parts], axis=1)
    files = _split_files(path, options)
    splits = {name: _read_split(file, len(labels)) for name, file in files.items()}
    nodes = NodeArrays(
        features=features, labels=labelled(labels, str(path / _NODES)), splits=splits
    )
    inputs = (path / _EDGES, path / _NODES, *files.values())
    source = array_source(path, {"": RelationEdges(*ends)}, len(labels), nodes, inputs=inputs)
    return replace(source, splits_from=f"{path.resolve().name}_split_*_I.npz in {path / 'splits'}")


def _open(path: Path, columns: int) -> TableFile:
    file = TableFile.open(path, frozenset(), header=True, separator="\t")
    if len(file.names) != columns:
        raise InputError(f"{path}: has {len(file.names)} columns where {columns} are expected")
    return file


def _read_nodes(path: Path) -> tuple[Features, NDArray[np.int64]]:
    """Return features and classes of the nodes 0, 1, ..., from lines in any order."""
    file = _open(path, 3)
    ids, classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    rows: list[Array] = []
    for block in file.blocks({0: "integer", 1: "text", 2: "integer"}):
        ids.append(block.integers(0))
        classes.append(block.integers(2))
        rows += [_numbers(text, block, row) for row, text in enumerate(block.texts(1).to_pylist())]
    node_ids = np.concatenate(ids)
    order = np.argsort(node_ids)
    wrong = first_true(node_ids[order] != np.arange(len(order)))
    if wrong is not None:
        raise InputError(
            f"{path}: node ids must be 0 to {len(order) - 1}, each once, and "
            f"{node_ids[order[wrong]]} is repeated or out of range; correct it"
        )
    ordered = [rows[i] for i in order.tolist()]
    return _features(ordered, path), np.concatenate(classes)[order]


def _numbers(text: bytes, block: Table, row: int) -> Array:
    try:
        return np.array(text.split(b","), np.float32)
    except ValueError:
        raise InputError(
            f"{block.locate(row)}: features are numbers separated by commas; correct the line"
        ) from None


def _features(rows: list[Array], path: Path) -> Features:
    if not rows:
        raise InputError(f"{path}: holds no nodes; copy it again")
    lengths = np.array([len(row) for row in rows])
    if (lengths == lengths[:1]).all():
        return matrix_features(np.stack(rows), f"{path}: features")
    columns = np.concatenate(rows)
    if not ((columns == np.floor(columns)) & (columns >= 0) & (columns < _MOST_COLUMNS)).all():
        raise InputError(
            f"{path}: nodes have unequal numbers of features, and these are no column indices; "
            "give each node the same number"
        )
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.ones(len(columns), np.float32)
    shape = (len(rows), int(columns.max()) + 1)
    matrix = scipy.sparse.csr_matrix((entries, columns.astype(np.int64), indptr), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix_features(matrix, str(path))


def _split_files(path: Path, options: ConvertOptions) -> dict[str, Path]:
    """Return the split files by number, or the one that `options.split` chooses."""
    files: dict[str, Path] = {}
    shared = list(path.glob("splits/*split*.npz"))
    # The authors' folder of splits holds files of all their graphs.
    graph = f"{path.resolve().name}_split".lower()
    of_graph = [file for file in shared if file.name.lower().startswith(graph)]
    for file in sorted([*path.glob("*split*.npz"), *(of_graph or shared)]):
        number = _HAS_NUMBER.search(file.name)
        name = number[1] if number else file.stem
        if name in files:
            raise InputError(
                f"{file}: is split {name!r}, like {files[name]}; remove one of them, or name the "
                "folder like the start of the file names, before _split"
            )
        files[name] = file
    order = sorted(files, key=lambda name: (len(name), name))
    if options.take("split") in (None, "all"):
        return {name: files[name] for name in order}
    return {name: files[number] for name, number in options.take_split(order, str(path)).items()}


def _read_split(path: Path, num_nodes: int) -> NDArray[np.uint8]:
    npz = Npz(path)
    masks = {part: npz.need(name).load() for part, name in _MASKS.items()}
    for part, mask in masks.items():
        if mask.shape != (num_nodes,):
            raise InputError(f"{path}: {_MASKS[part]} has shape {mask.shape} for {num_nodes} nodes")
    return split_from_masks(masks, str(path))
