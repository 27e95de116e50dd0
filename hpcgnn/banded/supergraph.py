"""Many graphs as one: the disjoint union that a step trains on."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.banded.edges import TypedEdges, both_ways
from hpcgnn.banded.layout import Layout
from hpcgnn.banded.supernodes import Supernodes
from hpcgnn.storage import InstanceBatch
from hpcgnn.typing import GlobalIndices

__all__ = ["Supergraph"]


@dataclass(frozen=True, eq=False)
class Supergraph:
    """Graphs side by side: the blocks of their nodes are the blocks of one diagonal.

    Not collective.

    Parameters
    ----------
    edges
        All edges and their reverses, and self edges if there are any.
    subtokens
        (s,) int64 buckets, node after node.
    subtoken_starts
        (n + 1,) int64.
    candidates
        (c,) int64 nodes, graph after graph.
    candidate_graphs
        (c,) int64 graph of each.
    candidate_starts
        (g + 1,) int64.
    labels
        (g,) int64 number of each graph's right candidate among its own.
    node_ids
        (n,) int64 numbers of the nodes in the store, which dropout masks are drawn from.
    supernodes
        Nodes that dense rows and columns beside a band serve; None without a layout.
    """

    edges: TypedEdges
    subtokens: GlobalIndices
    subtoken_starts: GlobalIndices
    candidates: GlobalIndices
    candidate_graphs: GlobalIndices
    candidate_starts: GlobalIndices
    labels: GlobalIndices
    node_ids: GlobalIndices
    supernodes: Supernodes | None

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs."""
        return self.edges.num_nodes

    @property
    def num_graphs(self) -> int:
        """Graphs."""
        return len(self.labels)

    @staticmethod
    def build(
        batch: InstanceBatch,
        num_forward: int,
        first_nodes: GlobalIndices,
        layout: Layout | None = None,
        *,
        self_edges: bool = False,
    ) -> "Supergraph":
        """Return the union of the graphs of `batch`, in order.

        Not collective.

        Parameters
        ----------
        batch
            The graphs.
        num_forward
            Types of edges in the store.
        first_nodes
            (g,) number in the store of each graph's first node.
        layout
            Another order of the nodes than the store's.
        self_edges
            Add an edge from each node to itself, of a type of its own.
        """
        num_nodes = len(batch.subtoken_counts)
        order = np.arange(num_nodes) if layout is None else layout.order
        if layout is not None:
            batch = batch.reorder(order)
        starts = batch.node_starts[:-1]
        edges = batch.edges + np.repeat(starts, batch.graphs["num_edges"])[:, None]
        types = batch.edge_types.astype(np.int32)
        choices = batch.graphs["num_candidates"]
        subtoken_starts = np.concatenate([[0], np.cumsum(batch.subtoken_counts, dtype=np.int64)])
        return Supergraph(
            both_ways(types, edges, num_nodes, num_forward, self_edges=self_edges),
            batch.subtokens.astype(np.int64),
            subtoken_starts,
            batch.candidates["node"] + np.repeat(starts, choices),
            np.repeat(np.arange(len(batch)), choices),
            batch.candidate_starts,
            batch.graphs["label"].astype(np.int64),
            order + np.repeat(first_nodes - starts, batch.graphs["num_nodes"]),
            None if layout is None else layout.supernodes,
        )
