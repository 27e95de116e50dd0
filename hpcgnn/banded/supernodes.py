"""Supernodes: an order of nodes that leaves a narrow band, and dense slices beside it."""

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

    For each such graph, (k,) int64 rising, ``firsts`` to ``firsts + counts - 1`` are supernodes,
    and ``stops`` is the node after the graph's last.
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
    """Of one graph of n nodes, c of them supernodes: `columns` (n P, c), `rows` (c P, n).

    `nodes` are the graph's nodes, supernodes first, and `pairs` their pairs with types.
    """

    nodes: slice
    pairs: slice
    columns: FloatArray
    rows: FloatArray


class SupernodeSlices:
    """Slices of the stacked adjacency matrix: columns from supernodes, rows to them.

    What the paper's discussion calls supernode propagation, with slices that end where the graph
    does: a supergraph holds many graphs, and none hears of another's supernodes. `edges` are all
    that touch a supernode.
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
        """Add to `sums` (n P, H) the rows of `x` (n, H) that come from and to supernodes."""
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
    places = (edges.targets - first) * num_types + edges.types
    sources = edges.sources - first
    # An edge between two supernodes stands in a column only.
    leaves = sources < count
    for array, chosen in ((columns, leaves), (rows, ~leaves)):
        np.add.at(array, (places[chosen], sources[chosen]), 1)
    pairs = slice(first * num_types, stop * num_types)
    return Slice(slice(first, stop), pairs, columns, rows)


@dataclass(frozen=True, eq=False)
class Layout:
    """A new order of a supergraph's nodes, and its supernodes in new numbers.

    `order` (n,) int64 is the old number of the node at each place; graphs keep their places.
    """

    order: GlobalIndices
    supernodes: Supernodes


def lay_out(batch: InstanceBatch, block: int, most: int) -> Layout:
    """Choose supernodes for the graphs of `batch` whose bandwidth is `block` or more.

    A node of many neighbours keeps Cuthill-McKee's levels wide. So the nodes with most neighbours
    are taken out, and the others ordered anew; of 1, 2, 4, ... `most` supernodes a graph gets the
    fewest that bring its other edges below `block`, else the number that leaves fewest beyond.
    Graphs that fit keep the order of the store.
    """
    starts, edge_starts = batch.starts("num_nodes"), batch.starts("num_edges")
    order = np.arange(starts[-1])
    found = []
    wide = (batch.graphs["bandwidth"] >= block) & (most > 0)
    for number in np.flatnonzero(wide).tolist():
        low, high = int(starts[number]), int(starts[number + 1])
        edges = batch.edges[edge_starts[number] : edge_starts[number + 1]]
        places, count = _narrow(high - low, edges, block, min(most, high - low - 1))
        order[low:high] = low + places
        found.append((low, count, high))
    firsts, counts, stops = np.array(found, np.int64).reshape(-1, 3).T
    return Layout(order, Supernodes(firsts, counts, stops))


def _narrow(num_nodes: int, edges: Array, block: int, most: int) -> tuple[Array, int]:
    """Return the order (num_nodes,) of a graph, and how many of its first nodes are supernodes."""
    # Programs alone need it, and its import is 5 % of a start.
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
    """Return the `most` nodes that have most neighbours but those before them."""
    left = np.diff(both.indptr).astype(np.int64)
    ranked = np.empty(most, np.int64)
    for place in range(most):
        ranked[place] = node = left.argmax()
        # Its edges need no band any more: of two hubs with equal neighbours rarely both are taken.
        left[both.indices[both.indptr[node] : both.indptr[node + 1]]] -= 1
        # Below whatever later ones leave of the others, so that no node is taken twice.
        left[node] = -1 - len(left)
    return ranked


def _after(both: Any, supernodes: Array) -> Array:
    rest = np.setdiff1d(np.arange(both.shape[0]), supernodes)
    graphs = import_module("scipy.sparse.csgraph")
    order = graphs.reverse_cuthill_mckee(both[rest][:, rest], symmetric_mode=True)
    return np.concatenate([supernodes, rest[order]])
