"""Generated graphs for partitioners: a triangulation, and communities of very different sizes."""

import numpy as np
import scipy

from hpcgnn.gallery import GalleryGraph, dcsbm
from hpcgnn.gallery.graph import both_ways


def delaunay(num_nodes: int, seed: int) -> GalleryGraph:
    """Return the Delaunay triangulation of at least 4 random points in the unit square."""
    points = np.random.default_rng(seed).random((num_nodes, 2))
    corners = scipy.spatial.Delaunay(points).simplices.astype(np.int64)
    edges = both_ways(corners.ravel(), np.roll(corners, 1, axis=1).ravel(), num_nodes)
    return GalleryGraph(name="delaunay", num_nodes=num_nodes, edges={"": edges}, undirected=True)


def lfr(
    num_nodes: int, seed: int, *, mixing: float = 0.2, mean_degree: float = 20.0
) -> GalleryGraph:
    """Return a graph in the style of Lancichinetti, Fortunato and Radicchi.

    Community sizes follow a power law with exponent 1.5 between 20 nodes and a tenth of all nodes,
    degrees one with exponent 2.5.
    """
    generator = np.random.default_rng([seed, 2])
    sizes = np.minimum(20 * (generator.pareto(0.5, num_nodes) + 1), max(20, num_nodes / 10))
    ends = np.cumsum(sizes)
    labels = np.searchsorted(ends, generator.permutation(num_nodes), side="right")
    return dcsbm(labels.astype(np.int32), seed, mean_degree=mean_degree, mixing=mixing, name="lfr")
