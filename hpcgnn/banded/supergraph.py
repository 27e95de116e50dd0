"""Packing of graphs into supergraphs, the disjoint unions that training steps use."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.banded.edges import TypedEdges, both_ways
from hpcgnn.banded.supernodes import Layout, Supernodes
from hpcgnn.storage import InstanceBatch
from hpcgnn.typing import Array, GlobalIndices

_PAGE_GRAPHS = 64


def first_fit_decreasing(sizes: Array, budget: int) -> list[Array]:
    """Pack items into bins of at most `budget`; larger items get a bin each.

    Returns the int64 positions in `sizes` of each bin's items; bins are in the order they opened.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    first_open: dict[int, int] = {}
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        # Room only shrinks, so a bin that was too full for an equal size still is.
        start = first_open.get(size, 0)
        chosen = next((b for b in range(start, len(bins)) if room[b] >= size), len(bins))
        if chosen == len(bins):
            bins.append([])
            room.append(budget)
        bins[chosen].append(item)
        room[chosen] -= size
        first_open[size] = chosen
    return [np.array(items, np.int64) for items in bins]


@dataclass(frozen=True, eq=False)
class Window:
    """Graphs that are read together: sorted ids, and their positions by supergraph (`bins`)."""

    graphs: GlobalIndices
    bins: tuple[GlobalIndices, ...]


def pack_lanes(
    sizes: Array, budget: int, lanes: int, window: int, rng: np.random.Generator
) -> list[list[Window]]:
    """Deal graphs of `sizes` nodes out to lanes, and pack each lane's graphs into supergraphs.

    A step takes one supergraph of at most `budget` nodes from each lane; the lanes are divided
    among ranks. Pages of consecutive graphs are shuffled and dealt to lanes. A lane reads windows
    of several pages, about `window` graphs, packs each window by first-fit decreasing and shuffles
    its supergraphs, so a step sees both small and large graphs. The supergraphs of a step have
    about equally many nodes, which balances ranks. Returns the windows of each lane, in order;
    every graph is in exactly one.
    """
    page = max(1, min(_PAGE_GRAPHS, window // 8, len(sizes) // (8 * lanes)))
    firsts = rng.permutation(np.arange(0, len(sizes), page))
    dealt = []
    for lane in range(lanes):
        lane_firsts = firsts[lane::lanes]
        pages = max(1, window // page)
        windows = []
        for low in range(0, len(lane_firsts), pages):
            chosen = np.sort(lane_firsts[low : low + pages])[:, None] + np.arange(page)
            graphs = chosen[chosen < len(sizes)]
            # Without this, graphs of equal size would stay in the order of the store.
            mixed = rng.permutation(len(graphs))
            packed = first_fit_decreasing(sizes[graphs[mixed]], budget)
            order = rng.permutation(len(packed))
            windows.append(Window(graphs, tuple(mixed[packed[number]] for number in order)))
        dealt.append(windows)
    return dealt


@dataclass(frozen=True, eq=False)
class Supergraph:
    """A disjoint union of graphs, whose adjacency matrix is block diagonal.

    `edges` include reverses, and self edges if requested. `subtokens` (s,) int64 are the subtoken
    buckets of all nodes; those of a node begin at its entry in `subtoken_starts` (n + 1,).
    `candidates` (c,) int64 are nodes, ordered by graph, with their graphs `candidate_graphs` (c,)
    and each graph's first in `candidate_starts` (g + 1,). `labels` (g,) int64 are the positions of
    the right candidates among their graphs' candidates. `node_ids` (n,) int64 are node numbers in
    the store, from which dropout masks are drawn. `supernodes` is None without a layout.
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
        """Number of nodes of all graphs."""
        return self.edges.num_nodes

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
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
        """Return the union of the graphs of `batch`, with nodes in the order of `layout` if given.

        `num_forward` is the number of edge types in the store, `first_nodes` (g,) the number of
        each graph's first node there. `self_edges` adds an edge from each node to itself, of a type
        of its own.
        """
        num_nodes = len(batch.subtoken_counts)
        order = np.arange(num_nodes) if layout is None else layout.order
        if layout is not None:
            batch = batch.reorder(order)
        starts = batch.starts("num_nodes")[:-1]
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
            batch.starts("num_candidates"),
            batch.graphs["label"].astype(np.int64),
            order + np.repeat(first_nodes - starts, batch.graphs["num_nodes"]),
            None if layout is None else layout.supernodes,
        )
