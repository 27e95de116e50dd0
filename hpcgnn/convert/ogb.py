"""Folders of OGB node-property graphs, raw text or binary.

Raw text: `raw/{edge,node-feat,node-label,num-node-list}.csv.gz`; `ogb_types` reads the folders of
graphs with node types. Binary: `raw/data.npz` with
`edge_index`, `node_feat` and `num_nodes_list`, and `raw/node-label.npz`. The split is
`split/NAME/{train,valid,test}.csv.gz`. Only edges and the number of nodes must be there. OGB's
own loader adds the reverse of each edge of some graphs (ogbn-products, ogbn-proteins): say
--undirected.
"""

from functools import partial
from pathlib import Path
from typing import Any

from hpcgnn.convert.coordinates import CoordinateEdges, index_pairs
from hpcgnn.convert.files import require_file
from hpcgnn.convert.nodes import labelled
from hpcgnn.convert.npy import ArrayFile, Npz
from hpcgnn.convert.npz_features import array_features
from hpcgnn.convert.ogb_text import split_of, text_edges, text_features, text_labels
from hpcgnn.convert.ogb_types import read_types
from hpcgnn.convert.source import (
    ConvertOptions,
    GraphSource,
    Nodes,
)
from hpcgnn.convert.text_reader import read_column
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

__all__ = ["read"]

_LABELS = ("node_label", "node-label", "label", "labels")


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the OGB graph in the folder `path` (that which holds `raw`); raises `InputError`."""
    raw = path / "raw"
    if (raw / "relations").exists() or (raw / "triplet-type-list.csv.gz").exists():
        return read_types(path, options)
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
        features=text_features(features) if features.exists() else None,
        split=split_of(path, num_nodes, options),
        **(labelled(text_labels(labels), str(labels)) if labels.exists() else {}),
    )
    known = {edges.name, count_file.name, features.name, labels.name, "num-edge-list.csv.gz"}
    return GraphSource(
        path=path,
        edges=partial(text_edges, edges),
        inputs=(edges, count_file, *(file for file in (features, labels) if file.exists())),
        num_nodes=num_nodes,
        nodes=nodes,
        ignored=tuple(sorted(f.name for f in raw.iterdir() if f.name not in known)),
    )


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
        split=split_of(path, num_nodes, options),
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
