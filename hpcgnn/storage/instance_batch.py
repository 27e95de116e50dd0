"""Many small graphs packed into a few arrays, one after the other."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hpcgnn.typing import Array, Offsets

__all__ = ["CANDIDATE_DTYPE", "GRAPH_DTYPE", "InstanceBatch", "InstanceSplit"]


class InstanceSplit(enum.IntEnum):
    """What a graph is for; the packages of UNSEEN graphs have none elsewhere."""

    TRAIN = 1
    VALID = 2
    TEST = 3
    UNSEEN = 4


GRAPH_DTYPE = np.dtype(
    [
        ("num_nodes", "<i4"),
        ("num_edges", "<i4"),
        ("num_subtokens", "<i4"),
        ("num_candidates", "<i4"),
        ("label", "<i4"),
        ("bandwidth", "<i4"),
        ("original_nodes", "<i4"),
        ("file", "<i4"),
        ("line", "<i4"),
        ("split", "u1"),
    ]
)
"""A graph: its share of the other arrays, the right candidate, bandwidth, where it comes from.

`original_nodes` counts nodes before the reduction; `file` is a number of the store's files."""

CANDIDATE_DTYPE = np.dtype([("node", "<i4"), ("num_uses", "<i4"), ("distance", "<i4")])
"""A candidate: its node, how often the variable is used elsewhere, tokens to the nearest use."""


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """Graphs, their nodes and edges; nodes are numbered from 0 in each graph.

    Parameters
    ----------
    graphs
        (g,) of `GRAPH_DTYPE`.
    subtoken_counts
        (n,) uint8 for each node.
    subtokens
        (s,) uint16 buckets, node after node.
    edge_types
        (e,) uint8.
    edges
        (e, 2) int32 source, target.
    candidates
        (c,) of `CANDIDATE_DTYPE`.
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

    def select(self, chosen: Sequence[int] | Array) -> "InstanceBatch":
        """Return the graphs at the positions `chosen`, in that order."""
        rows = np.asarray(chosen, np.int64)
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
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        starts = self.node_starts[:-1]
        of_edges = np.repeat(starts, self.graphs["num_edges"])[:, None]
        of_candidates = np.repeat(starts, self.graphs["num_candidates"])
        candidates = self.candidates.copy()
        candidates["node"] = place[self.candidates["node"] + of_candidates] - of_candidates
        return InstanceBatch(
            self.graphs,
            self.subtoken_counts[order],
            self.subtokens[spread(starts_of(self.subtoken_counts), order)],
            self.edge_types,
            (place[self.edges + of_edges] - of_edges).astype(np.int32),
            candidates,
        )

    @staticmethod
    def join(batches: Sequence["InstanceBatch"]) -> "InstanceBatch":
        """Return the graphs of `batches` (one at least), in order."""
        arrays = [[getattr(batch, f.name) for batch in batches] for f in fields(InstanceBatch)]
        return InstanceBatch(*(np.concatenate(each) for each in arrays))

    @staticmethod
    def empty() -> "InstanceBatch":
        """Return no graphs."""
        return InstanceBatch(
            np.empty(0, GRAPH_DTYPE),
            np.empty(0, np.uint8),
            np.empty(0, np.uint16),
            np.empty(0, np.uint8),
            np.empty((0, 2), np.int32),
            np.empty(0, CANDIDATE_DTYPE),
        )


def starts_of(counts: Array) -> Offsets:
    """Return offsets (n + 1,) of counts (n,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def spread(starts: Offsets, rows: Array) -> Array:
    """Return the positions that `rows` cover, row after row."""
    counts = starts[rows + 1] - starts[rows]
    shift = np.repeat(starts[rows] - starts_of(counts)[:-1], counts)
    return np.arange(int(counts.sum())) + shift
