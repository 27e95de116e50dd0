"""Many small graphs, with a class and a number of each that a graph neural network can learn."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.gallery.graph import GalleryGraph, both_ways, random_split
from hpcgnn.typing import FloatArray, GlobalIndices

NOISE = 0.25
"""Deviation of what no model can tell of a planted number, whose own deviation is 1."""

_FEWEST, _MOST = 4, 20
"""Nodes of a graph."""


@dataclass(frozen=True, eq=False)
class PlantedGraphs:
    """Graphs side by side, whose nodes have the labels and the split of their graphs.

    Planted were `exact` (g,), a number of each graph, of deviation 1, in `targets` (g,) with noise
    of `NOISE`; classes were drawn from `scores` (g, classes): the largest is the best guess of all.
    """

    graphs: GalleryGraph
    exact: FloatArray
    targets: FloatArray
    scores: FloatArray


def planted_graphs(
    num_graphs: int, num_classes: int, num_features: int, seed: int
) -> PlantedGraphs:
    """Return random trees with a few more edges, and a 60/20/20 split of the graphs.

    Features are standard normal, float32. With ``m_i`` the mean of the features of node i's
    neighbours, all that is planted in a graph is linear in the mean of ``m_i`` over its nodes: it
    takes the edges to tell, and a layer that averages over neighbours with a mean read-out is
    enough. The class is that of the largest score, after noise of a fifth of the scores' deviation.
    """
    generator = np.random.default_rng([seed, 4])
    sizes = generator.integers(_FEWEST, _MOST + 1, num_graphs)
    starts = np.cumsum(sizes) - sizes
    num_nodes = int(sizes.sum())
    graph = np.repeat(np.arange(num_graphs), sizes)
    place = np.arange(num_nodes) - starts[graph]
    parent = starts[graph] + (generator.random(num_nodes) * np.maximum(place, 1)).astype(np.int64)
    grown = np.flatnonzero(place > 0)
    more = generator.integers(0, num_nodes, num_nodes // 4)
    among = generator.random(more.size) * sizes[graph[more]]
    other = starts[graph[more]] + among.astype(np.int64)
    src, dst = np.concatenate([grown, more]), np.concatenate([parent[grown], other])
    src, dst = both_ways(src, dst, num_nodes)
    features = generator.standard_normal((num_nodes, num_features)).astype(np.float32)
    pooled = _pooled(features, src, dst, graph, num_graphs)
    weights = generator.standard_normal((num_features, num_classes + 1))
    planted = pooled @ weights
    planted /= np.maximum(planted.std(axis=0), np.finfo(float).tiny)
    noise = generator.standard_normal(planted.shape)
    scores = planted[:, 1:]
    classes = (scores + 0.2 * noise[:, 1:]).argmax(axis=1).astype(np.int32)
    # Every class occurs, however few the graphs.
    classes[:num_classes] = np.arange(num_classes)[:num_graphs]
    split = random_split(num_graphs, seed)
    graphs = GalleryGraph(
        name="planted-graphs",
        num_nodes=num_nodes,
        edges={"": (src, dst)},
        features=features,
        labels=classes[graph],
        split=split[graph],
        class_names=tuple(f"kind{number}" for number in range(num_classes)),
        undirected=True,
        graph=graph,
    )
    exact = planted[:, 0]
    return PlantedGraphs(graphs, exact, exact + NOISE * noise[:, 0], scores)


def _pooled(
    features: FloatArray, src: GlobalIndices, dst: GlobalIndices, graph: GlobalIndices, count: int
) -> FloatArray:
    """Return (g, f) the mean over the nodes of each graph of the means over their neighbours."""
    means = np.zeros(features.shape)
    np.add.at(means, dst, features[src])
    means /= np.maximum(np.bincount(dst, minlength=len(features)), 1)[:, None]
    pooled = np.zeros((count, features.shape[1]))
    np.add.at(pooled, graph, means)
    return pooled / np.bincount(graph, minlength=count)[:, None]
