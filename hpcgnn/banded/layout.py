"""Orders of nodes that show a narrow band: supernodes first, the others by Cuthill-McKee."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from hpcgnn.banded.supernodes import Supernodes
from hpcgnn.storage import InstanceBatch
from hpcgnn.typing import Array, GlobalIndices

__all__ = ["Layout", "lay_out"]


@dataclass(frozen=True, eq=False)
class Layout:
    """A new order of the nodes of a supergraph.

    Not collective.

    Parameters
    ----------
    order
        (n,) int64: the old number of the node at each place; graphs keep their places.
    supernodes
        In new numbers.
    """

    order: GlobalIndices
    supernodes: Supernodes


def lay_out(batch: InstanceBatch, block: int, most: int) -> Layout:
    """Choose supernodes for the graphs of `batch` whose bandwidth is `block` or more.

    Not collective.

    A node of many neighbours keeps Cuthill-McKee's levels wide. So the nodes with most neighbours
    are taken out, and the others ordered anew; of 1, 2, 4, ... `most` supernodes a graph gets the
    fewest that bring its other edges below `block`, else the number that leaves fewest beyond.
    Graphs that fit keep the order of the store.

    Parameters
    ----------
    batch
        The graphs.
    block
        S: edges shorter than this are always in the band.
    most
        Supernodes of a graph; 0: none.
    """
    starts, edge_starts = batch.node_starts, batch.edge_starts
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
    ones = np.ones(len(edges), np.int8)
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


def _by_neighbours(both: sp.csr_matrix, most: int) -> Array:
    """Return the `most` nodes that have most neighbours but those before them."""
    left = np.diff(both.indptr).astype(np.int64)
    ranked = np.empty(most, np.int64)
    for place in range(most):
        ranked[place] = node = left.argmax()
        left[both.indices[both.indptr[node] : both.indptr[node + 1]]] -= 1
        left[node] = -1 - len(left)
    return ranked


def _after(both: sp.csr_matrix, supernodes: Array) -> Array:
    rest = np.setdiff1d(np.arange(both.shape[0]), supernodes)
    order = reverse_cuthill_mckee(both[rest][:, rest], symmetric_mode=True)
    return np.concatenate([supernodes, rest[order]])
