"""Graphs with communities, whose labels a graph neural network can learn from the edges."""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcgnn.errors import InputError
from hpcgnn.gallery.graph import Edges, GalleryGraph, both_ways, random_split
from hpcgnn.gallery.streamed import DrawnEdges, NodeRows, RandomNodes, shuffled, stream
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray, GlobalIndices

SHARES = {"item": 0.5, "user": 0.35, "tag": 0.15}
RELATIONS = {
    "follows": ("item", "item"),
    "rates": ("user", "item"),
    "tagged": ("item", "tag"),
    "knows": ("user", "user"),
}


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

    `labels` int32[n] is the block of each node, `mean_degree` the mean number of edge ends drawn
    per node, before self-loops and duplicates are dropped. `mixing` is the share of edges whose
    second end ignores the blocks; `exponent`, above 2, that of the power law of expected degrees.
    """
    generator = np.random.default_rng(seed)
    num_nodes = labels.size
    activity = generator.pareto(exponent - 1, num_nodes) + 1
    order = np.argsort(labels, kind="stable")
    cumulative = np.concatenate([[0.0], np.cumsum(activity[order])])
    num_edges = round(num_nodes * mean_degree / 2)
    src = _pick(order, cumulative, generator.random(num_edges) * cumulative[-1])
    # Each block is a range of the cumulative activity; draw in the range of the source's block.
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
        class_names=_class_names(starts.size - 1),
        undirected=True,
    )


def planted(
    num_nodes: int, num_classes: int, num_features: int, seed: int, *, signal: float = 0.5
) -> GalleryGraph:
    """Return a small graph to train on: communities, noisy features, a 60/20/20 split.

    A feature row, float32, is the centre of the node's class, of length about `signal` times the
    square root of `num_features`, plus standard normal noise: the features of a single node reveal
    little about its class, the mean over its neighbours much more.
    """
    generator = np.random.default_rng([seed, 1])
    labels = _labels(num_nodes, num_classes, generator)
    graph = dcsbm(labels, seed, name="planted")
    features = _features(labels, num_classes, num_features, signal, generator)
    names = _class_names(num_classes)
    return replace(graph, features=features, class_names=names).with_split(seed)


@dataclass(frozen=True)
class CommunityEdges(DrawnEdges):
    """A degree-corrected stochastic block model of any size, chunk by chunk; undirected.

    Node i is in block i modulo `num_blocks`. In a block, the node with rank r in a shuffled order
    is drawn with probability about proportional to (r + 1)^(-1 / (exponent - 1)), so that degrees
    follow a power law with that exponent. No table of nodes is needed: for uniform u, r is
    floor(size u^((exponent - 1) / (exponent - 2))). Other parameters are as in `dcsbm`.
    """

    num_nodes: int
    num_blocks: int
    seed: int
    mean_degree: float = 10.0
    mixing: float = 0.2
    exponent: float = 2.5

    def __post_init__(self) -> None:
        if self.num_nodes < 0 or self.num_blocks < 1 or self.seed < 0:
            raise InputError(
                f"{self.num_nodes} nodes in {self.num_blocks} blocks, seed {self.seed}: give no "
                "negative number, and at least one block"
            )
        finite = math.isfinite(self.mean_degree) and math.isfinite(self.exponent)
        if not (finite and self.mean_degree >= 0 <= self.mixing <= 1 and self.exponent > 2):
            raise InputError(
                f"mean degree {self.mean_degree} must be at least 0, mixing {self.mixing} in "
                f"0..1, and exponent {self.exponent} above 2; all finite"
            )

    @property
    def num_edges(self) -> int:
        """Return the number of edges, including self-loops and duplicates."""
        return round(self.num_nodes * self.mean_degree / 2)

    def chunk(self, number: int) -> tuple[GlobalIndices, GlobalIndices]:
        """Return (src, dst) of chunk `number`, int64, at most `CHUNK_EDGES` edges."""
        count = self.count(number)
        draws = stream(self.seed, number, 3)
        block = draws.integers(0, self.num_nodes, count) % self.num_blocks
        other = draws.integers(0, self.num_nodes, count) % self.num_blocks
        mixed = draws.random(count) < self.mixing
        return self._nodes(block, draws), self._nodes(np.where(mixed, other, block), draws)

    def _nodes(self, block: GlobalIndices, draws: np.random.Generator) -> GlobalIndices:
        most = -(-self.num_nodes // self.num_blocks)
        sizes = (self.num_nodes - 1 - block) // self.num_blocks + 1
        power = (self.exponent - 1) / (self.exponent - 2)
        rank = (sizes * draws.random(len(block)) ** power).astype(np.int64)
        index = shuffled(np.minimum(rank, sizes - 1), most, self.seed, sizes)
        return index * self.num_blocks + block


@dataclass(frozen=True)
class CommunityNodes(RandomNodes):
    """Node data of `CommunityEdges`, with features as in `planted`."""

    signal: float = 0.5

    @cached_property
    def _centres(self) -> FloatArray:
        draws = stream(self.seed, 0, 4)
        shape = (self.num_classes, self.num_features)
        return self.signal * draws.standard_normal(shape, np.float32)

    def block(self, start: int) -> NodeRows:
        """Return the data of the nodes in the block that begins with node `start`."""
        features, labels, split = super().block(start)
        return features + self._centres[labels], labels, split

    def _labels(self, start: int, rows: int, _: np.random.Generator) -> NDArray[np.int32]:
        return (np.arange(start, start + rows) % self.num_classes).astype(np.int32)


def planted_types(num_nodes: int, num_classes: int, num_features: int, seed: int) -> GalleryGraph:
    """Return items, users and tags in communities; the labels and the split are those of items.

    Half of the nodes are items with `num_features` columns, about a third are users with half as
    many plus one, and the rest are tags without features, whose class shows only in their
    neighbours. Features are drawn as in `planted`, float32. The edges of a degree-corrected
    stochastic block model over all nodes become the relations follows (item to item), rates (user
    to item), tagged (item to tag) and knows (user to user), each edge once; edges between other
    types are dropped. The split of items is 60/20/20.
    """
    generator = np.random.default_rng([seed, 3])
    # The rest, at least one node, are items; they come first, so that they have every class.
    users, tags = (int(SHARES[name] * num_nodes) for name in ("user", "tag"))
    counts = {"item": num_nodes - users - tags, "user": users, "tag": tags}
    blocks = _labels(num_nodes, num_classes, generator)
    types = np.repeat(np.arange(len(counts), dtype=np.uint8), list(counts.values()))
    graph = dcsbm(blocks, seed, mean_degree=14.0)
    widths = {"item": num_features, "user": num_features // 2 + 1, "tag": 0}
    features = {}
    for number, (name, width) in enumerate(widths.items()):
        rows = _features(blocks[types == number], num_classes, width, 0.5, generator)
        features[name] = rows if width else None
    is_item = types == 0
    split = np.full(num_nodes, Split.NONE, np.uint8)
    split[is_item] = random_split(counts["item"], seed)
    return GalleryGraph(
        name="planted-types",
        num_nodes=num_nodes,
        edges=_relations(graph, types),
        types=types,
        type_features=features,
        labels=np.where(is_item, blocks, -1).astype(np.int32),
        split=split,
        class_names=_class_names(num_classes),
    )


def _class_names(num_classes: int) -> tuple[str, ...]:
    return tuple(f"block{number}" for number in range(num_classes))


def _labels(num_nodes: int, num_classes: int, generator: np.random.Generator) -> NDArray[np.int32]:
    labels = generator.integers(0, num_classes, num_nodes, dtype=np.int32)
    # Every class occurs, if there are enough nodes.
    labels[:num_classes] = np.arange(num_classes, dtype=np.int32)[:num_nodes]
    return labels


def _features(
    blocks: NDArray[np.int32],
    num_classes: int,
    width: int,
    signal: float,
    generator: np.random.Generator,
) -> FloatArray:
    centres = signal * generator.standard_normal((num_classes, width))
    noise = generator.standard_normal((blocks.size, width))
    return (centres[blocks] + noise).astype(np.float32)


def _relations(graph: GalleryGraph, types: NDArray[np.uint8]) -> dict[str, Edges]:
    number = {name: position for position, name in enumerate(SHARES)}
    edges = {}
    for relation, (source, target) in RELATIONS.items():
        kept = (types[graph.src] == number[source]) & (types[graph.dst] == number[target])
        if source == target:
            # The block model has every edge in both directions.
            kept &= graph.src < graph.dst
        edges[relation] = (graph.src[kept], graph.dst[kept])
    return edges


def _pick(order: GlobalIndices, cumulative: FloatArray, draws: FloatArray) -> GlobalIndices:
    """Return the node whose range of cumulative activity contains each draw."""
    picked = np.searchsorted(cumulative, draws, side="right") - 1
    return order[np.minimum(picked, order.size - 1)].astype(np.int64)
