"""Compilation of a graph: drop what no candidate hears of, and order nodes for low bandwidth."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from hpcgnn.typing import Array, LocalIndices

__all__ = ["Compiled", "bandwidth_of", "compile_graph"]


@dataclass(frozen=True)
class Compiled:
    """A graph in its new order.

    Parameters
    ----------
    nodes
        (n,) int32: the old number of each node that is left.
    edges
        (e, 3) int32 type, source, target in new numbers, sorted.
    bandwidth
        The largest distance of the numbers of two neighbours.
    """

    nodes: LocalIndices
    edges: Array
    bandwidth: int


def bandwidth_of(edges: Array) -> int:
    """Return the largest ``|source - target|`` of edges (e, 3), 0 without any."""
    return int(np.abs(edges[:, 1] - edges[:, 2]).max(initial=0))


def compile_graph(
    num_nodes: int, edges: Array, candidates: LocalIndices, steps: int, *, flip: bool
) -> Compiled:
    """Reduce a graph to what reaches a candidate in `steps` steps, in reverse Cuthill-McKee order.

    Messages pass along edges both ways, so what reaches a candidate lies around it. Time is linear
    in nodes and edges.

    Parameters
    ----------
    num_nodes
        Nodes of the graph.
    edges
        (e, 3) int32: type, source, target.
    candidates
        (c,) nodes.
    steps
        Steps of message passing.
    flip
        Turn the order round, which leaves the bandwidth as it is. Cuthill-McKee goes by degree, so
        that what is used often comes late; turned by a drawn bit, places say nothing of use.
    """
    ones = np.ones(len(edges), np.int8)
    pattern = sp.coo_array((ones, (edges[:, 1], edges[:, 2])), (num_nodes, num_nodes))
    both = sp.csr_array(pattern + pattern.T)
    nodes = np.flatnonzero(_reached(both, candidates, steps)).astype(np.int32)
    order = reverse_cuthill_mckee(sp.csr_matrix(both[nodes][:, nodes]), symmetric_mode=True)
    nodes = nodes[order[::-1] if flip else order]
    position = np.full(num_nodes, -1, np.int32)
    position[nodes] = np.arange(len(nodes), dtype=np.int32)
    moved = np.column_stack([edges[:, 0], position[edges[:, 1]], position[edges[:, 2]]])
    moved = moved[(moved[:, 1:] >= 0).all(axis=1)]
    moved = moved[np.lexsort((moved[:, 2], moved[:, 1], moved[:, 0]))]
    return Compiled(nodes, np.ascontiguousarray(moved, np.int32), bandwidth_of(moved))


def _reached(both: sp.csr_array, start: LocalIndices, steps: int) -> Array:
    reached = np.zeros(both.shape[0], np.bool_)
    reached[start] = True
    frontier = np.asarray(start)
    for _ in range(steps):
        pieces = [both.indices[both.indptr[n] : both.indptr[n + 1]] for n in frontier]
        around = np.unique(np.concatenate([*pieces, frontier]))
        frontier = around[~reached[around]]
        reached[frontier] = True
        if not len(frontier):
            break
    return reached
