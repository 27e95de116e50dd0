"""What a store of program graphs holds: splits, sizes, and how many graphs a band would hold."""

from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.storage import InstanceSplit, InstanceStore
from hpcgnn.typing import Array

__all__ = ["BANDS", "describe_programs"]

BANDS = (128, 256, 512, 1024)
"""The bandwidths of the dense-hardware paper's Figure 1."""

_QUANTILES = (10, 25, 50, 75, 90, 99)


def describe_programs(path: Path, *, verify: bool, quiet: bool) -> dict[str, Any]:
    """Return the contents of a store of program graphs; reads the index and candidates, or all."""
    with InstanceStore.open(path) as store:
        if verify:
            with Progress("verifying", store.num_bytes, "bytes", quiet=quiet) as progress:
                store.verify(progress.advance)
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
    found = {name: _right(values, graphs) for name, values in guesses.items()}
    return {"name": split.name.lower(), "graphs": high - low, **found}


def _right(values: Array, graphs: Array) -> float | None:
    """Return how often a candidate of the largest value is right, drawn among equals."""
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
    found = {f"p{q}": float(np.percentile(values, q)) for q in _QUANTILES}
    return {"mean": float(values.mean()), **found, "max": float(values.max())}
