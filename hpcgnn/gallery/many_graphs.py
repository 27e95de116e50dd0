"""Many small graphs, each with a class and a target number that graph networks can learn."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.gallery.graph import GalleryGraph, both_ways, random_split
from hpcgnn.typing import FloatArray, GlobalIndices

NOISE = 0.25
"""Standard deviation of the noise in planted numbers, which themselves have deviation 1."""

_FEWEST, _MOST = 4, 20
"""Fewest and most nodes of a graph."""


@dataclass(frozen=True, eq=False)
class PlantedGraphs:
    """Many graphs as one, whose nodes have the labels and split of their graphs.

    `exact` (g,) is the planted number of each graph, with deviation 1; `targets` (g,) adds noise of
    deviation `NOISE`. The best prediction of a class is the largest of the `scores` (g, classes).
    """

    graphs: GalleryGraph
    exact: FloatArray
    targets: FloatArray
    scores: FloatArray


def planted_graphs(
    num_graphs: int, num_classes: int, num_features: int, seed: int
) -> PlantedGraphs:
    """Return random trees with some extra edges, and a 60/20/20 split of the graphs.

    Features are standard normal, float32. With ``m_i`` the mean feature row of node i's neighbours,
    numbers and scores of a graph are linear in the mean of ``m_i`` over its nodes: a model needs
    the edges, and one layer of neighbour means with a mean read-out suffices. The class is that of
    the largest score after adding noise with a fifth of the scores' deviation.
    """
    generator = np.random.default_rng([seed, 4])
    sizes = generator.integers(_FEWEST, _MOST + 1, num_graphs)
    starts = np.cumsum(sizes) - sizes
    num_nodes = int(sizes.sum())
    graph = np.repeat(np.arange(num_graphs), sizes)
    index = np.arange(num_nodes) - starts[graph]
    parent = starts[graph] + (generator.random(num_nodes) * np.maximum(index, 1)).astype(np.int64)
    children = np.flatnonzero(index > 0)
    extra = generator.integers(0, num_nodes, num_nodes // 4)
    draws = generator.random(extra.size) * sizes[graph[extra]]
    other = starts[graph[extra]] + draws.astype(np.int64)
    src, dst = np.concatenate([children, extra]), np.concatenate([parent[children], other])
    src, dst = both_ways(src, dst, num_nodes)
    features = generator.standard_normal((num_nodes, num_features)).astype(np.float32)
    pooled = _pooled(features, src, dst, graph, num_graphs)
    weights = generator.standard_normal((num_features, num_classes + 1))
    planted = pooled @ weights
    planted /= np.maximum(planted.std(axis=0), np.finfo(float).tiny)
    noise = generator.standard_normal(planted.shape)
    scores = planted[:, 1:]
    classes = (scores + 0.2 * noise[:, 1:]).argmax(axis=1).astype(np.int32)
    # Every class occurs, if there are enough graphs.
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
    """Return the mean (g, f) over each graph's nodes of the mean feature rows of neighbours."""
    means = np.zeros(features.shape)
    np.add.at(means, dst, features[src])
    means /= np.maximum(np.bincount(dst, minlength=len(features)), 1)[:, None]
    pooled = np.zeros((count, features.shape[1]))
    np.add.at(pooled, graph, means)
    return pooled / np.bincount(graph, minlength=count)[:, None]
