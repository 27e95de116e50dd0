"""Graphs with communities: labels that a graph neural network can learn from the edges."""

import numpy as np
from numpy.typing import NDArray

from hpcgnn.gallery.graph import GalleryGraph, both_ways
from hpcgnn.typing import FloatArray, GlobalIndices

__all__ = ["dcsbm", "lfr", "planted"]

Generator = np.random.Generator


def dcsbm(
    labels: NDArray[np.int32],
    seed: int,
    *,
    mean_degree: float = 10.0,
    mixing: float = 0.2,
    exponent: float = 2.5,
    name: str = "dcsbm",
) -> GalleryGraph:
    """Return an undirected degree-corrected stochastic block model.

    Parameters
    ----------
    labels
        int32[n], the block of each node.
    mean_degree
        Edge ends per node that are drawn; loops and duplicates are then dropped.
    mixing
        Share of the edges whose second end ignores the blocks.
    exponent
        Of the power law of expected degrees, above 2.
    """
    generator = np.random.default_rng(seed)
    num_nodes = labels.size
    activity = generator.pareto(exponent - 1, num_nodes) + 1
    order = np.argsort(labels, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum(activity[order])])
    num_edges = round(num_nodes * mean_degree / 2)
    src = _pick(order, cumulative, generator.random(num_edges) * cumulative[-1])
    # A block is a range of the cumulative activity: draw inside the range of the source's block.
    starts = np.searchsorted(labels[order], np.arange(labels.max(initial=-1) + 2))
    low, high = cumulative[starts[labels[src]]], cumulative[starts[labels[src] + 1]]
    anywhere = generator.random(num_edges) < mixing
    low[anywhere], high[anywhere] = 0.0, cumulative[-1]
    dst = _pick(order, cumulative, low + generator.random(num_edges) * (high - low))
    edges = both_ways(src, dst, num_nodes)
    return GalleryGraph(
        name=name,
        num_nodes=num_nodes,
        edges={"": edges},
        labels=labels,
        class_names=tuple(f"block{number}" for number in range(starts.size - 1)),
        undirected=True,
    )


def planted(
    num_nodes: int, num_classes: int, num_features: int, seed: int, *, signal: float = 0.5
) -> GalleryGraph:
    """Return a small training fixture: communities, noisy features, a 60/20/20 split.

    A feature row is the centre of the node's class, of length `signal` times the square root of
    `num_features`, plus standard normal noise: one node's features say little about its class,
    and the mean over its neighbours says much more. float32.
    """
    generator = np.random.default_rng([seed, 1])
    labels = generator.integers(0, num_classes, num_nodes, dtype=np.int32)
    # Every class occurs, however few the nodes.
    labels[:num_classes] = np.arange(num_classes, dtype=np.int32)[:num_nodes]
    graph = dcsbm(labels, seed, name="planted")
    centres = signal * generator.standard_normal((num_classes, num_features))
    features: FloatArray = centres[labels] + generator.standard_normal((num_nodes, num_features))
    return GalleryGraph(
        name=graph.name,
        num_nodes=num_nodes,
        edges=graph.edges,
        features=features.astype(np.float32),
        labels=labels,
        class_names=tuple(f"block{number}" for number in range(num_classes)),
        undirected=True,
    ).with_split(seed)


def lfr(
    num_nodes: int, seed: int, *, mixing: float = 0.2, mean_degree: float = 20.0
) -> GalleryGraph:
    """Return a graph in the manner of Lancichinetti, Fortunato and Radicchi.

    Community sizes follow a power law of exponent 1.5 between 20 nodes and a tenth of all, degrees
    one of exponent 2.5.
    """
    generator = np.random.default_rng([seed, 2])
    sizes = np.minimum(20 * (generator.pareto(0.5, num_nodes) + 1), max(20, num_nodes / 10))
    ends = np.cumsum(sizes)
    labels = np.searchsorted(ends, generator.permutation(num_nodes), side="right")
    return dcsbm(labels.astype(np.int32), seed, mean_degree=mean_degree, mixing=mixing, name="lfr")


def _pick(order: GlobalIndices, cumulative: FloatArray, draws: FloatArray) -> GlobalIndices:
    """Return the node whose range of cumulative activity holds each draw."""
    found = np.searchsorted(cumulative, draws, side="right") - 1
    return order[np.minimum(found, order.size - 1)].astype(np.int64)
