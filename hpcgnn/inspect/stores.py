"""Describe a store of a graph or of program graphs, and the rows that ranks would exchange.

It takes one pass over offsets, columns, labels and split, in bounded pieces.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import Progress
from hpcgnn.errors import InputError
from hpcgnn.partition import Exchange, measure, read_pattern
from hpcgnn.partition import exchange_volume as rows_moved
from hpcgnn.partition.metrics import imbalance_of
from hpcgnn.storage import (
    SPARSE_FEATURES,
    GraphStore,
    InstanceSplit,
    InstanceStore,
    Split,
    assign_parts,
    names_by_type,
)
from hpcgnn.typing import Array, Offsets

PIECE_EDGES = 1 << 22
PIECE_NODES = 1 << 20

BANDS = (128, 256, 512, 1024)
"""The bandwidths of the dense-hardware paper's Figure 1."""

_QUANTILES = (10, 25, 50, 75, 90, 99)


def describe_store(path: Path, *, verify: bool, quiet: bool) -> dict[str, Any]:
    """Return the contents of a store; memory is a few numbers per node."""
    with GraphStore.open(path) as store:
        if verify:
            verify_store(store, quiet)
        degrees = np.zeros(store.num_nodes, np.int64)
        touched = np.zeros(store.num_nodes, np.bool_)
        widths = [kind.num_features for kind in store.node_types]
        names_of_types = names_by_type(store.feature_names, widths)
        relations = [describe_relation(store, name, degrees, touched) for name in store.relations]
        return {
            "kind": "store",
            "path": str(path),
            "name": store.name,
            "fingerprint": store.fingerprint,
            "verified": verify,
            "bytes_on_disk": path.stat().st_size,
            "num_nodes": store.num_nodes,
            "num_edges": store.num_edges(),
            "undirected": store.undirected,
            "isolated_nodes": int(store.num_nodes - np.count_nonzero(touched)),
            "relations": relations,
            "features": describe_features(store),
            "node_types": [
                {
                    "name": kind.name,
                    "nodes": kind.num_nodes,
                    "columns": kind.num_features,
                    "dtype": None if kind.dtype is None else str(kind.dtype),
                    "names": list(names),
                }
                for kind, names in zip(store.node_types, names_of_types, strict=True)
            ],
            "multi_label": store.multi_label,
            **describe_nodes(store),
            "named_nodes": store.has_names,
            "mesh": describe_mesh(store),
            "fields": describe_fields(store),
            "graphs": describe_graphs(store),
            "splits": {name: describe_split(store, name) for name in store.splits},
            "parts": describe_parts(store, degrees),
            "partition": store.partition_info,
            "provenance": store.provenance,
        }


def verify_store(store: GraphStore | InstanceStore, quiet: bool) -> None:
    """Compare the whole store with its checksums; raises `StorageFormatError`."""
    with Progress("verifying", store.num_bytes, "bytes", quiet=quiet) as progress:
        store.verify(progress.advance)


def describe_relation(
    store: GraphStore, name: str, degrees: Offsets, touched: NDArray[np.bool_]
) -> dict[str, Any]:
    """Describe a relation; add its row degrees to `degrees`, and mark nodes with edges."""
    indptr = store.read_indptr(0, store.num_nodes, name)
    counts = np.diff(indptr)
    degrees += counts
    touched |= counts > 0
    start = 0
    while start < store.num_nodes and not store.undirected:
        fitting = int(np.searchsorted(indptr, indptr[start] + PIECE_EDGES, side="right")) - 1
        stop = min(max(start + 1, fitting), store.num_nodes)
        touched[store.read_adjacency(start, stop, name).indices] = True
        start = stop
    return {
        "name": name,
        "num_edges": store.num_edges(name),
        "weighted": store.weighted(name),
        "edge_features": store.edge_features(name)[0],
        "edge_feature_names": list(store.edge_feature_names),
        "edge_split": store.has_edge_split(name),
        "edge_labels": store.labels_of_edges(name)[0],
        "row_degree": {
            "min": int(counts.min()),
            "median": float(np.median(counts)),
            "mean": float(counts.mean()),
            "max": int(counts.max()),
            "empty": int(np.count_nonzero(counts == 0)),
        },
    }


def describe_graphs(store: GraphStore) -> dict[str, Any] | None:
    """Return the number of graphs and their sizes; None for a store of one graph."""
    if (graph := store.read_graph(0, store.num_nodes)) is None:
        return None
    sizes = np.unique(graph, return_counts=True)[1]
    return {"count": len(sizes), "nodes": {"min": int(sizes.min()), "max": int(sizes.max())}}


def describe_features(store: GraphStore) -> dict[str, Any] | None:
    """Return columns and type of the feature matrix, and its share of non-zeros.

    In a dense matrix, that of the first rows.
    """
    if store.feature_dtype is None:
        return None
    rows = store.num_nodes
    if store.sparse_columns:
        count = store.num_edges(SPARSE_FEATURES)
    else:
        rows = min(rows, max(1, PIECE_EDGES // store.num_features))
        features = store.read_features(0, rows)
        assert features is not None
        count = int(np.count_nonzero(features))
    return {
        "columns": store.num_features,
        "names": list(store.feature_names),
        "dtype": str(store.feature_dtype),
        "sparse": store.sparse_columns > 0,
        "density": count / (rows * store.num_features),
        "density_of_rows": rows,
    }


def describe_mesh(store: GraphStore) -> dict[str, Any] | None:
    """Return the axes of the positions with their periods, and whether nodes have weights."""
    weighted = store.read_node_weights(0, 0) is not None
    if not store.box and not weighted:
        return None
    return {"dimensions": len(store.box), "box": list(store.box), "node_weights": weighted}


def describe_fields(store: GraphStore) -> dict[str, Any] | None:
    """Return the fields and their times; None for a store without fields."""
    if not store.all_fields:
        return None
    return {
        "fields": [
            {
                "name": info.name,
                "columns": info.num_columns,
                "dtype": str(info.dtype),
                "unit": info.unit,
                "components": list(info.components),
                "of": "edges" if info.of_edges else "nodes",
            }
            for info in store.all_fields.values()
        ],
        "steps": len(store.times),
        "trajectories": len(store.trajectory_starts) - 1,
        "first_time": float(store.times.min()),
        "last_time": float(store.times.max()),
        "time_unit": store.time_unit,
    }


def describe_nodes(store: GraphStore) -> dict[str, Any]:
    """Return the number of nodes of each class and split set; None for what the store lacks."""
    classes = np.zeros(store.num_classes, np.int64)
    unlabelled = 0
    for start in range(0, store.num_nodes, PIECE_NODES):
        stop = min(start + PIECE_NODES, store.num_nodes)
        labels = store.read_labels(start, stop)
        if labels is not None and labels.ndim == 2:
            classes += labels.sum(axis=0, dtype=np.int64)
            unlabelled += int(np.count_nonzero(~labels.any(axis=1)))
        elif labels is not None:
            classes += np.bincount(labels[labels >= 0], minlength=store.num_classes)
            unlabelled += int(np.count_nonzero(labels < 0))
    names = store.class_names or tuple(str(number) for number in range(store.num_classes))
    return {
        "classes": [
            {"name": name, "nodes": int(count)} for name, count in zip(names, classes, strict=True)
        ],
        "unlabelled_nodes": unlabelled if store.has_labels else None,
        "split": describe_split(store) if store.has_split else None,
    }


def describe_split(store: GraphStore, name: str = "") -> dict[str, int]:
    """Return the number of nodes in each set of a split."""
    counts = np.zeros(len(Split), np.int64)
    for start in range(0, store.num_nodes, PIECE_NODES):
        split = store.read_split(start, min(start + PIECE_NODES, store.num_nodes), name)
        assert split is not None
        counts += np.bincount(split, minlength=len(Split))
    return {split.name.lower(): int(counts[split]) for split in Split}


def describe_parts(store: GraphStore, degrees: Offsets) -> dict[str, Any]:
    """Return rows and non-zeros of the parts, and their imbalance, see `VolumeMetrics`."""
    rows, edges = np.diff(store.row_starts), store.part_edges()
    heaviest = np.zeros(store.num_parts, np.int64)
    filled = rows > 0
    heaviest[filled] = np.maximum.reduceat(degrees, store.row_starts[:-1][filled])
    return {
        "count": store.num_parts,
        "rows": {"min": int(rows.min()), "max": int(rows.max())},
        "edges": {
            "min": int(edges.min()),
            "mean": float(edges.mean()),
            "max": int(edges.max()),
            "imbalance": imbalance_of(edges, heaviest),
        },
    }


def describe_programs(path: Path, *, verify: bool, quiet: bool) -> dict[str, Any]:
    """Return the contents of a store of program graphs; reads the index and candidates, or all."""
    with InstanceStore.open(path) as store:
        if verify:
            verify_store(store, quiet)
        graphs, header = store.graphs, store.header
        return {
            "kind": "programs",
            "path": str(path),
            "name": header.name,
            "fingerprint": store.fingerprint,
            "verified": verify,
            "bytes_on_disk": path.stat().st_size,
            "num_graphs": len(store),
            "num_nodes": int(graphs["num_nodes"].sum(dtype=np.int64)),
            "num_edges": int(graphs["num_edges"].sum(dtype=np.int64)),
            "num_files": len(np.unique(graphs["file"])),
            "edge_types": list(header.edge_names),
            "num_buckets": header.num_buckets,
            "steps": header.steps,
            "splits": [_split(store, split) for split in InstanceSplit],
            "distributions": {
                "nodes before reduction": _distribution(graphs["original_nodes"]),
                "nodes": _distribution(graphs["num_nodes"]),
                "bandwidth": _distribution(graphs["bandwidth"]),
                "nodes / bandwidth": _distribution(
                    graphs["num_nodes"] / np.maximum(graphs["bandwidth"], 1)
                ),
                "candidates": _distribution(graphs["num_candidates"]),
            },
            "below": {str(band): _share(graphs["bandwidth"] < band) for band in BANDS},
            "provenance": header.provenance,
        }


def _split(store: InstanceStore, split: InstanceSplit) -> dict[str, Any]:
    low, high = store.split_range(split)
    graphs, candidates = store.graphs[low:high], store.candidates(low, high)
    guesses = {
        "chance": np.zeros(len(candidates)),
        "most_used": candidates["num_uses"],
        "least_used": -candidates["num_uses"],
        "nearest": -candidates["distance"],
    }
    correct = {name: _right(values, graphs) for name, values in guesses.items()}
    return {"name": split.name.lower(), "graphs": high - low, **correct}


def _right(values: Array, graphs: Array) -> float | None:
    """Return how often the candidate with the largest value is right; ties are drawn at random."""
    if not len(graphs):
        return None
    counts = graphs["num_candidates"]
    firsts = np.cumsum(counts) - counts
    largest = values == np.repeat(np.maximum.reduceat(values, firsts), counts)
    drawn = largest[firsts + graphs["label"]] / np.add.reduceat(largest.astype(np.int64), firsts)
    return float(drawn.mean())


def _share(mask: Array) -> float | None:
    return float(mask.mean()) if mask.size else None


def _distribution(values: Array) -> dict[str, float]:
    if not values.size:
        return {}
    quantiles = {f"p{q}": float(np.percentile(values, q)) for q in _QUANTILES}
    return {"mean": float(values.mean()), **quantiles, "max": float(values.max())}


def exchange_volume(
    path: Path,
    ranks: int | None = None,
    relations: Sequence[str] = (),
    *,
    undirected: bool = False,
    exchange: Exchange = "aware",
) -> dict[str, int | float]:
    """Return the rows that `exchange` moves in one aggregation, in the store's own partition.

    Ranks (None: one per part) own consecutive parts, as in training; `relations` (empty: all) and
    `undirected` are like graph.relations and graph.undirected. ``lower_bound`` is a total that no
    exchange can go below. Raises `InputError` for more ranks than parts or an unknown relation.
    """
    with GraphStore.open(path) as store:
        count = store.num_parts if ranks is None else ranks
        if count < 1:
            raise InputError(f"--ranks {count}: at least 1 rank is needed")
        graph = read_pattern(store, relations, undirected)
        edges = store.part_edges(tuple(relations) or None)
        rows = np.diff(assign_parts(store.row_starts, edges, count))
    owner = np.repeat(np.arange(count, dtype=np.int32), rows)
    metrics = measure(graph, owner, count)
    return {
        "ranks": count,
        **rows_moved(graph, owner, count, exchange),
        "edge_cut": metrics.edge_cut,
        "imbalance": metrics.imbalance,
    }
