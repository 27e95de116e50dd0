"""What a store holds: one pass over offsets, columns, labels and split, in bounded pieces."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import Progress
from hpcgnn.storage import GraphStore, Split
from hpcgnn.typing import Offsets

__all__ = ["describe_store"]

PIECE_EDGES = 1 << 22
PIECE_NODES = 1 << 20


def describe_store(path: Path, *, verify: bool, quiet: bool) -> dict[str, Any]:
    """Return the contents of a store; memory is a few numbers a node."""
    with GraphStore.open(path) as store:
        if verify:
            with Progress("verifying", store.num_bytes, "bytes", quiet=quiet) as progress:
                store.verify(progress.advance)
        degrees = np.zeros(store.num_nodes, np.int64)
        touched = np.zeros(store.num_nodes, np.bool_)
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
                    "name": each.name,
                    "nodes": each.num_nodes,
                    "columns": each.num_features,
                    "dtype": None if each.dtype is None else str(each.dtype),
                }
                for each in store.node_types
            ],
            "multi_label": store.multi_label,
            **describe_nodes(store),
            "parts": describe_parts(store, degrees),
            "partition": store.partition_info,
            "provenance": store.provenance,
        }


def describe_relation(
    store: GraphStore, name: str, degrees: Offsets, touched: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return a relation's numbers; adds its degrees, and marks the nodes that it has edges at."""
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
        "row_degree": {
            "min": int(counts.min()),
            "median": float(np.median(counts)),
            "mean": float(counts.mean()),
            "max": int(counts.max()),
            "empty": int(np.count_nonzero(counts == 0)),
        },
    }


def describe_features(store: GraphStore) -> dict[str, Any] | None:
    """Return columns and type of the one matrix of features."""
    if store.feature_dtype is None:
        return None
    return {"columns": store.num_features, "dtype": str(store.feature_dtype)}


def describe_nodes(store: GraphStore) -> dict[str, Any]:
    """Return how many nodes each class and each split has; None for what the store lacks."""
    classes = np.zeros(store.num_classes, np.int64)
    splits = np.zeros(len(Split), np.int64)
    unlabelled = 0
    for start in range(0, store.num_nodes, PIECE_NODES):
        stop = min(start + PIECE_NODES, store.num_nodes)
        labels, split = store.read_labels(start, stop), store.read_split(start, stop)
        if labels is not None and labels.ndim == 2:
            classes += labels.sum(axis=0, dtype=np.int64)
            unlabelled += int(np.count_nonzero(~labels.any(axis=1)))
        elif labels is not None:
            classes += np.bincount(labels[labels >= 0], minlength=store.num_classes)
            unlabelled += int(np.count_nonzero(labels < 0))
        if split is not None:
            splits += np.bincount(split, minlength=len(Split))
    names = store.class_names or tuple(str(number) for number in range(store.num_classes))
    return {
        "classes": [
            {"name": name, "nodes": int(count)} for name, count in zip(names, classes, strict=True)
        ],
        "unlabelled_nodes": unlabelled if store.has_labels else None,
        "split": {each.name.lower(): int(splits[each]) for each in Split}
        if store.has_split
        else None,
    }


def describe_parts(store: GraphStore, degrees: Offsets) -> dict[str, Any]:
    """Return rows and non-zeros of the parts.

    `imbalance` is the largest over the parts of non-zeros / max(average, heaviest row of the part),
    minus 1: what no other partition could avoid counts for nothing.
    """
    rows, edges = np.diff(store.row_starts), store.part_edges()
    heaviest = np.zeros(store.num_parts, np.int64)
    filled = rows > 0
    heaviest[filled] = np.maximum.reduceat(degrees, store.row_starts[:-1][filled])
    shares = edges / np.maximum(np.maximum(edges.mean(), heaviest), 1)
    return {
        "count": store.num_parts,
        "rows": {"min": int(rows.min()), "max": int(rows.max())},
        "edges": {
            "min": int(edges.min()),
            "mean": float(edges.mean()),
            "max": int(edges.max()),
            "imbalance": float(max(shares.max() - 1, 0)),
        },
    }
