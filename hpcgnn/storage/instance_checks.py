"""Checks of packed graphs, the same for what is written and for what is read.

Each function returns None for good data, and otherwise half a sentence that says what is wrong.
"""

import numpy as np

from hpcgnn.storage.checks import first_true
from hpcgnn.storage.instance_batch import InstanceBatch, InstanceSplit
from hpcgnn.typing import Array

__all__ = ["fault_in_batch", "fault_in_index"]

_COUNTS = ("num_nodes", "num_edges", "num_subtokens", "num_candidates", "bandwidth")


def fault_in_index(graphs: Array, num_files: int, last_split: int) -> str | None:
    """Check counts, labels, files and the order of splits of rows of the index."""
    for name in _COUNTS:
        row = first_true(graphs[name] < 0)
        if row is not None:
            return f"graph {row} has {name} {graphs[name][row]}"
    row = first_true((graphs["label"] < 0) | (graphs["label"] >= graphs["num_candidates"]))
    if row is not None:
        return f"graph {row} has label {graphs['label'][row]}, which is none of its candidates"
    row = first_true((graphs["file"] < 0) | (graphs["file"] >= num_files))
    if row is not None:
        return f"graph {row} is of file {graphs['file'][row]}, outside 0..{num_files - 1}"
    splits = np.concatenate([[last_split], graphs["split"]]).astype(np.int64)
    if not np.isin(splits[1:], list(InstanceSplit)).all() or (np.diff(splits) < 0).any():
        return "the splits are not 1..4 in order"
    return None


def fault_in_batch(batch: InstanceBatch, num_edge_types: int, num_buckets: int) -> str | None:
    """Check that nodes, types and buckets are within bounds."""
    sizes = batch.graphs["num_nodes"]
    for name, ends, counts in (
        ("an edge", batch.edges, batch.graphs["num_edges"]),
        ("a candidate", batch.candidates["node"][:, None], batch.graphs["num_candidates"]),
    ):
        limits = np.repeat(sizes, counts)[:, None]
        if ((ends < 0) | (ends >= limits)).any():
            return f"{name} leads to a node outside its graph"
    if batch.edge_types.max(initial=0) >= num_edge_types:
        return f"an edge has a type outside 0..{num_edge_types - 1}"
    if batch.subtokens.max(initial=0) >= num_buckets:
        return f"a sub-token lies outside 0..{num_buckets - 1}"
    if int(batch.subtoken_counts.sum(dtype=np.int64)) != len(batch.subtokens):
        return "subtoken_counts do not add up to the sub-tokens"
    return None
