"""Supernodes: hubs taken out of the band, with dense slices of the matrix for their edges."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from hpcgnn.banded.edges import TypedEdges
from hpcgnn.storage import InstanceBatch
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask


@dataclass(frozen=True, eq=False)
class Supernodes:
    """The supernodes of a supergraph: the first nodes of some of its graphs.

    For each of the k such graphs, nodes ``firsts`` to ``firsts + counts - 1`` are supernodes and
    ``stops`` is one past the graph's last node. All three are (k,) int64, ascending by graph.
    """

    firsts: GlobalIndices
    counts: GlobalIndices
    stops: GlobalIndices

    def __len__(self) -> int:
        return int(self.counts.sum())

    def touch(self, edges: TypedEdges) -> Mask:
        """Tell which of `edges` begin or end at a supernode."""
        chosen = np.zeros(edges.num_nodes, np.bool_)
        for first, count in zip(self.firsts.tolist(), self.counts.tolist(), strict=True):
            chosen[first : first + count] = True
        return chosen[edges.targets] | chosen[edges.sources]


@dataclass(frozen=True, eq=False)
class Slice:
    """Dense matrix slices of one graph of n nodes, c of them supernodes.

    `columns` (n P, c) hold edges from supernodes, `rows` (c P, n) edges to them. `nodes` are the
    graph's nodes, supernodes first, and `pairs` their (node, type) pairs.
    """

    nodes: slice
    pairs: slice
    columns: FloatArray
    rows: FloatArray


class SupernodeSlices:
    """Slices of the stacked adjacency matrix: columns of supernodes, and rows of supernodes.

    The paper's discussion calls this supernode propagation. Here slices end with their graph, as
    the graphs of a supergraph are not connected. `edges` must all touch a supernode.
    """

    def __init__(
        self,
        edges: TypedEdges,
        supernodes: Supernodes,
        dtype: type[np.float32] | type[np.float64],
    ) -> None:
        owners = np.searchsorted(supernodes.firsts, edges.targets, side="right") - 1
        bounds = zip(supernodes.firsts, supernodes.counts, supernodes.stops, strict=True)
        self.parts = [
            _fill(edges.select(owners == number), int(first), int(count), int(stop), dtype)
            for number, (first, count, stop) in enumerate(bounds)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of the slices."""
        return sum(part.columns.nbytes + part.rows.nbytes for part in self.parts)

    def add(self, x: Array, sums: Array) -> None:
        """Add to `sums` (n P, H) the rows of `x` (n, H) along edges from and to supernodes."""
        for part in self.parts:
            states, count = x[part.nodes], part.columns.shape[1]
            into = sums[part.pairs]
            into += part.columns @ states[:count]
            into[: len(part.rows)] += part.rows @ states

    def add_transpose(self, gradient: Array, sums: Array) -> None:
        """Add to `sums` (n, H) the adjoint of `add` on `gradient` (n P, H)."""
        for part in self.parts:
            gradients, count = gradient[part.pairs], part.columns.shape[1]
            into = sums[part.nodes]
            into[:count] += part.columns.T @ gradients
            into += part.rows.T @ gradients[: len(part.rows)]


def _fill(
    edges: TypedEdges,
    first: int,
    count: int,
    stop: int,
    dtype: type[np.float32] | type[np.float64],
) -> Slice:
    num_types = edges.num_types
    columns = np.zeros(((stop - first) * num_types, count), dtype)
    rows = np.zeros((count * num_types, stop - first), dtype)
    pair_rows = (edges.targets - first) * num_types + edges.types
    sources = edges.sources - first
    # An edge between two supernodes is stored in `columns` only.
    from_supernode = sources < count
    for array, chosen in ((columns, from_supernode), (rows, ~from_supernode)):
        np.add.at(array, (pair_rows[chosen], sources[chosen]), 1)
    pairs = slice(first * num_types, stop * num_types)
    return Slice(slice(first, stop), pairs, columns, rows)


@dataclass(frozen=True, eq=False)
class Layout:
    """A new order of a supergraph's nodes, and its supernodes in that order.

    `order` (n,) int64 holds the old number of the node at each new position. Nodes move within
    their graph only.
    """

    order: GlobalIndices
    supernodes: Supernodes


def lay_out(batch: InstanceBatch, block: int, most: int) -> Layout:
    """Choose supernodes for the graphs of `batch` whose bandwidth is `block` or more.

    Hubs keep Cuthill-McKee's levels wide. So the nodes with the most neighbours become supernodes
    and the others are reordered without them. A graph gets the fewest of 1, 2, 4, ... `most`
    supernodes with which all its other edges are shorter than `block`, or else the number that
    leaves the fewest longer ones. Graphs that fit keep the order of the store.
    """
    starts, edge_starts = batch.starts("num_nodes"), batch.starts("num_edges")
    order = np.arange(starts[-1])
    bounds = []
    wide = (batch.graphs["bandwidth"] >= block) & (most > 0)
    for number in np.flatnonzero(wide).tolist():
        low, high = int(starts[number]), int(starts[number + 1])
        edges = batch.edges[edge_starts[number] : edge_starts[number + 1]]
        graph_order, count = _narrow(high - low, edges, block, min(most, high - low - 1))
        order[low:high] = low + graph_order
        bounds.append((low, count, high))
    firsts, counts, stops = np.array(bounds, np.int64).reshape(-1, 3).T
    return Layout(order, Supernodes(firsts, counts, stops))


def _narrow(num_nodes: int, edges: Array, block: int, most: int) -> tuple[Array, int]:
    """Return the order (num_nodes,) of a graph, and how many of its first nodes are supernodes."""
    # Only program graphs need scipy here, and importing it takes 5 % of a start.
    sp, ones = import_module("scipy.sparse"), np.ones(len(edges), np.int8)
    pattern = sp.coo_array((ones, (edges[:, 0], edges[:, 1])), (num_nodes, num_nodes))
    both = sp.csr_matrix(pattern + pattern.T)
    ranked = _by_neighbours(both, most)
    best, fewest, count = np.arange(num_nodes), len(edges) + 1, 0
    tried = 1
    while fewest and tried <= most:
        order = _after(both, ranked[:tried])
        position = np.empty(num_nodes, np.int64)
        position[order] = np.arange(num_nodes)
        ends = position[edges]
        others = (ends >= tried).all(axis=1)
        beyond = int((np.abs(ends[others, 0] - ends[others, 1]) >= block).sum())
        if beyond < fewest:
            best, fewest, count = order, beyond, tried
        tried = min(2 * tried, most) if tried < most else most + 1
    return best, count


def _by_neighbours(both: Any, most: int) -> Array:
    """Pick `most` nodes greedily by their number of neighbours not yet picked."""
    left = np.diff(both.indptr).astype(np.int64)
    ranked = np.empty(most, np.int64)
    for rank in range(most):
        ranked[rank] = node = left.argmax()
        # Its edges no longer need the band, so of two hubs with equal neighbours one may do.
        left[both.indices[both.indptr[node] : both.indptr[node + 1]]] -= 1
        # Lower than any other count can get, so that no node is picked twice.
        left[node] = -1 - len(left)
    return ranked


def _after(both: Any, supernodes: Array) -> Array:
    rest = np.setdiff1d(np.arange(both.shape[0]), supernodes)
    graphs = import_module("scipy.sparse.csgraph")
    order = graphs.reverse_cuthill_mckee(both[rest][:, rest], symmetric_mode=True)
    return np.concatenate([supernodes, rest[order]])
