"""Folders of OGB node-property graphs, raw text or binary.

Raw text: `raw/{edge,node-feat,node-label,num-node-list}.csv.gz`. Binary: `raw/data.npz` with
`edge_index`, `node_feat` and `num_nodes_list`, and `raw/node-label.npz`. The split is
`split/NAME/{train,valid,test}.csv.gz`. Only edges and the number of nodes must be there. OGB's
own loader adds the reverse of each edge of some graphs (ogbn-products, ogbn-proteins): say
--undirected.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.convert.coordinates import CoordinateEdges, index_pairs
from hpcgnn.convert.files import require_file
from hpcgnn.convert.nodes import SPLIT_NAMES, labelled, split_from_indices
from hpcgnn.convert.npy import ArrayFile, Npz
from hpcgnn.convert.npz_nodes import array_features
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    Features,
    FeatureStream,
    GraphSource,
    Nodes,
)
from hpcgnn.convert.text_reader import first_fields, read_column, read_tables
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = ["read"]

_LABELS = ("node_label", "node-label", "label", "labels")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the OGB graph in the folder `path` (that which holds `raw`); raises `InputError`."""
    raw = path / "raw"
    if (raw / "relations").exists() or (raw / "triplet-type-list.csv.gz").exists():
        raise InputError(
            f"{raw}: the graph has several node types, which are not read; "
            "number all nodes in one range and convert it as a typed edge list or .npz"
        )
    if (raw / "data.npz").exists():
        return _read_binary(path, options)
    return _read_text(path, options)


def _read_text(path: Path, options: ConvertOptions) -> GraphSource:
    raw = path / "raw"
    edges = require_file(raw / "edge.csv.gz", "give the folder that holds raw/edge.csv.gz")
    count_file = raw / "num-node-list.csv.gz"
    num_nodes = _one_graph(read_column(count_file), str(count_file))
    features, labels = raw / "node-feat.csv.gz", raw / "node-label.csv.gz"
    nodes = Nodes(
        features=_text_features(features) if features.exists() else None,
        split=_read_split(path, num_nodes, options),
        **(labelled(_text_labels(labels), str(labels)) if labels.exists() else {}),
    )
    known = {edges.name, count_file.name, features.name, labels.name, "num-edge-list.csv.gz"}
    return GraphSource(
        path=path,
        edges=partial(_text_edges, edges),
        inputs=(edges, count_file, *(file for file in (features, labels) if file.exists())),
        num_nodes=num_nodes,
        nodes=nodes,
        ignored=tuple(sorted(f.name for f in raw.iterdir() if f.name not in known)),
    )


def _text_edges(path: Path) -> EdgeStream:
    for table in read_tables(path, 2):
        ends = table.integers([0, 1])
        yield EdgeChunk(ends[:, 0], ends[:, 1], table.locate)


def _text_features(path: Path) -> Features:
    columns = len(first_fields(path)[0])

    def blocks() -> FeatureStream:
        for table in read_tables(path, columns):
            yield table.floats(range(columns))

    return Features(columns, np.dtype(np.float32), blocks, lambda row: f"{path}: line {row + 1}")


def _text_labels(path: Path) -> Array:
    parts = [table.floats(range(table.starts.shape[1]), np.float64) for table in read_tables(path)]
    return np.concatenate(parts) if parts else np.zeros((0, 1))


def _one_graph(counts: Array, where: str) -> int:
    if counts.size != 1 or counts.dtype.kind not in "iu" or counts.ravel()[0] < 1:
        raise InputError(
            f"{where}: must hold one positive number of nodes, that of a single graph; "
            "graph-property collections are not read"
        )
    return int(counts.ravel()[0])


def _read_binary(path: Path, options: ConvertOptions) -> GraphSource:
    npz = Npz(path / "raw" / "data.npz")
    index = npz.need("edge_index")
    features = npz.get("node_feat")
    num_nodes = _node_count(npz, features)
    npz.get("num_edges_list")
    labels, inputs = _binary_labels(path / "raw" / "node-label.npz")
    nodes = Nodes(
        features=None if features is None else array_features(features, options),
        split=_read_split(path, num_nodes, options),
        **labels,
    )
    edges = CoordinateEdges(npz.path, index.where, index.shape[-1], index_pairs(index))
    return GraphSource(
        path=path,
        edges=edges.chunks,
        inputs=(npz.path, *inputs),
        num_nodes=num_nodes,
        nodes=nodes,
        ignored=npz.unused(),
    )


def _node_count(npz: Npz, features: ArrayFile | None) -> int:
    counts = npz.get("num_nodes_list", "num_nodes")
    if counts is not None:
        return _one_graph(counts.load(), counts.where)
    if features is None or not features.shape:
        raise InputError(f"{npz.path}: the array num_nodes_list is missing; add it")
    return int(features.shape[0])


def _binary_labels(path: Path) -> tuple[dict[str, Any], tuple[Path, ...]]:
    if not path.exists():
        return {}, ()
    npz = Npz(path)
    array = npz.get(*_LABELS)
    if array is None:
        raise InputError(f"{path}: holds no array {_LABELS[0]}; save the labels under that name")
    return labelled(array.load(), array.where), (path,)


def _read_split(path: Path, num_nodes: int, options: ConvertOptions) -> NDArray[np.uint8] | None:
    parent = path / "split"
    if not parent.is_dir():
        return None
    names = sorted(child.name for child in parent.iterdir() if child.is_dir())
    if not names:
        raise InputError(f"{parent}: holds no split; add one, or remove the folder")
    name = options.split if options.split is not None else names[0]
    if name not in names or (options.split is None and len(names) > 1):
        raise InputError(f"{parent}: holds the splits {', '.join(names)}; choose one with --split")
    folder = parent / name
    if (folder / "split_dict.pt").exists():
        raise InputError(
            f"{folder / 'split_dict.pt'}: is a pickle of torch, which is not read, since it could "
            "execute code; save its arrays as train.csv.gz, valid.csv.gz and test.csv.gz there"
        )
    files = {part: folder / f"{part}.csv.gz" for part in SPLIT_NAMES}
    ids = {part: read_column(file) for part, file in files.items()}
    return split_from_indices(ids, num_nodes, {part: str(file) for part, file in files.items()})
