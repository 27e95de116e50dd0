"""Many small graphs packed into a few arrays, one after the other, and their checks."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hpcgnn.storage.format import first_true
from hpcgnn.storage.instances.schema import COLUMNS, InstanceSplit
from hpcgnn.typing import Array, Offsets

_COUNTS = ("num_nodes", "num_edges", "num_subtokens", "num_candidates", "bandwidth")


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """Graphs, their nodes and edges; nodes are numbered from 0 in each graph.

    `graphs` (g,) are of `GRAPH_DTYPE`, `subtoken_counts` (n,) uint8 of each node, `subtokens` (s,)
    uint16 buckets, node after node; `edge_types` (e,) uint8, `edges` (e, 2) int32 source, target;
    `candidates` (c,) of `CANDIDATE_DTYPE`.
    """

    graphs: Array
    subtoken_counts: Array
    subtokens: Array
    edge_types: Array
    edges: Array
    candidates: Array

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def node_starts(self) -> Offsets:
        """(g + 1,) offsets of the graphs' nodes."""
        return starts_of(self.graphs["num_nodes"])

    @property
    def edge_starts(self) -> Offsets:
        """(g + 1,) offsets of the graphs' edges."""
        return starts_of(self.graphs["num_edges"])

    @property
    def subtoken_starts(self) -> Offsets:
        """(g + 1,) offsets of the graphs' sub-tokens."""
        return starts_of(self.graphs["num_subtokens"])

    @property
    def candidate_starts(self) -> Offsets:
        """(g + 1,) offsets of the graphs' candidates."""
        return starts_of(self.graphs["num_candidates"])

    def select(self, graphs: Sequence[int] | Array) -> "InstanceBatch":
        """Return the graphs at the positions `graphs`, in that order."""
        rows = np.asarray(graphs, np.int64)
        nodes = spread(self.node_starts, rows)
        edges = spread(self.edge_starts, rows)
        return InstanceBatch(
            self.graphs[rows],
            self.subtoken_counts[nodes],
            self.subtokens[spread(self.subtoken_starts, rows)],
            self.edge_types[edges],
            self.edges[edges],
            self.candidates[spread(self.candidate_starts, rows)],
        )

    def reorder(self, order: Array) -> "InstanceBatch":
        """Return the same graphs with their nodes in another order.

        `order` (n,) int64 holds the old number of the node at each place, counted over all graphs;
        nodes stay within their graph.
        """
        position = np.empty_like(order)
        position[order] = np.arange(len(order))
        starts = self.node_starts[:-1]
        of_edges = np.repeat(starts, self.graphs["num_edges"])[:, None]
        of_candidates = np.repeat(starts, self.graphs["num_candidates"])
        candidates = self.candidates.copy()
        candidates["node"] = position[self.candidates["node"] + of_candidates] - of_candidates
        return InstanceBatch(
            self.graphs,
            self.subtoken_counts[order],
            self.subtokens[spread(starts_of(self.subtoken_counts), order)],
            self.edge_types,
            (position[self.edges + of_edges] - of_edges).astype(np.int32),
            candidates,
        )

    @staticmethod
    def join(batches: Sequence["InstanceBatch"]) -> "InstanceBatch":
        """Return the graphs of `batches` (one at least), in order."""
        arrays = [[getattr(batch, f.name) for batch in batches] for f in fields(InstanceBatch)]
        return InstanceBatch(*(np.concatenate(pieces) for pieces in arrays))

    @staticmethod
    def empty() -> "InstanceBatch":
        """Return no graphs."""
        return InstanceBatch(*(np.empty((0, *row), dtype) for dtype, row in COLUMNS.values()))


def starts_of(counts: Array) -> Offsets:
    """Return offsets (n + 1,) of counts (n,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def spread(starts: Offsets, rows: Array) -> Array:
    """Return the positions that `rows` cover, row after row."""
    counts = starts[rows + 1] - starts[rows]
    shift = np.repeat(starts[rows] - starts_of(counts)[:-1], counts)
    return np.arange(int(counts.sum())) + shift


def fault_in_index(graphs: Array, num_files: int, last_split: int) -> str | None:
    """Check counts, labels, files and the order of splits of rows of the index.

    Returns None for good data, and otherwise half a sentence that says what is wrong.
    """
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
    """Check, in the same way, that nodes, types and buckets are within bounds."""
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
