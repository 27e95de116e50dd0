"""Which graphs share a supergraph, and the disjoint union that a step trains on."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.banded.edges import TypedEdges, both_ways
from hpcgnn.banded.supernodes import Layout, Supernodes
from hpcgnn.storage import InstanceBatch
from hpcgnn.typing import Array, GlobalIndices

_PAGE_GRAPHS = 64


def first_fit_decreasing(sizes: Array, budget: int) -> list[Array]:
    """Pack items into bins of at most `budget`; larger items get a bin each.

    Returns the int64 positions in `sizes` of the items of each bin, in the order of their opening.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    first_open: dict[int, int] = {}
    for item in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[item])
        # Sizes fall, so a bin that had no room for an equal size has none now.
        start = first_open.get(size, 0)
        place = next((b for b in range(start, len(bins)) if room[b] >= size), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(budget)
        bins[place].append(item)
        room[place] -= size
        first_open[size] = place
    return [np.array(items, np.int64) for items in bins]


@dataclass(frozen=True, eq=False)
class Window:
    """Graphs that are read together: sorted numbers, and the positions that share a supergraph."""

    graphs: GlobalIndices
    bins: tuple[GlobalIndices, ...]


def pack_lanes(
    sizes: Array, budget: int, lanes: int, window: int, rng: np.random.Generator
) -> list[list[Window]]:
    """Deal graphs of `sizes` nodes out to lanes, each of which packs its own into supergraphs.

    A step takes one supergraph, of at most `budget` nodes, of each lane, so lanes are what ranks
    share. Pages of neighbouring graphs are shuffled and dealt out; a lane reads windows of several
    pages, packs the graphs of a window (`window` at a time) by first-fit decreasing, and shuffles
    its supergraphs, so that a step sees small graphs and large ones. The supergraphs of a step
    differ little in nodes, which balances ranks. Returns the windows of each lane, in order; every
    graph is in one.
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
            # Equal sizes would keep the order of the store.
            mixed = rng.permutation(len(graphs))
            packed = first_fit_decreasing(sizes[graphs[mixed]], budget)
            order = rng.permutation(len(packed))
            windows.append(Window(graphs, tuple(mixed[packed[place]] for place in order)))
        dealt.append(windows)
    return dealt


@dataclass(frozen=True, eq=False)
class Supergraph:
    """Graphs side by side: the blocks of their nodes are the blocks of one diagonal.

    `edges` are all, their reverses, and self edges if there are any. `subtokens` (s,) int64 are
    buckets, node after node, which begin at `subtoken_starts` (n + 1,). `candidates` (c,) int64 are
    nodes, graph after graph, `candidate_graphs` (c,) their graphs, `candidate_starts` (g + 1,);
    `labels` (g,) int64 are the number of each graph's right candidate among its own. `node_ids`
    (n,) int64 are the numbers of the nodes in the store, which dropout masks are drawn from.
    `supernodes` have dense rows and columns beside a band; None without a layout.
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
        """Return the union of the graphs of `batch`, in order, or with the nodes of a `layout`.

        `num_forward` are the types of edges in the store, `first_nodes` (g,) the number in it of
        each graph's first node. `self_edges` adds an edge from each node to itself, of a type of
        its own.
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
