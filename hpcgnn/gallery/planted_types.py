"""A graph with communities and node types, the fixture for models with an input layer a type."""

import numpy as np
from numpy.typing import NDArray

from hpcgnn.gallery.blocks import dcsbm
from hpcgnn.gallery.graph import Edges, GalleryGraph, random_split
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray

__all__ = ["planted_types"]

SHARES = {"item": 0.5, "user": 0.35, "tag": 0.15}
RELATIONS = {
    "follows": ("item", "item"),
    "rates": ("user", "item"),
    "tagged": ("item", "tag"),
    "knows": ("user", "user"),
}


def planted_types(
    num_nodes: int, num_classes: int, num_features: int, seed: int, *, signal: float = 0.5
) -> GalleryGraph:
    """Return items, users and tags in communities; the labels and the split are those of items.

    Half of the nodes are items with `num_features` columns, about a third users with half as many
    and one more, the rest tags, which have no features: what a tag says of its items only shows in
    its neighbours. Features are drawn as in `planted`, float32. Edges of a degree-corrected
    stochastic block model over all nodes become the relations follows (item to item), rates (user
    to item), tagged (item to tag) and knows (user to user), each edge once; those of other types
    are left out. The split of items is 60/20/20.
    """
    generator = np.random.default_rng([seed, 3])
    counts = _counts(num_nodes)
    blocks = generator.integers(0, num_classes, num_nodes, dtype=np.int32)
    # Every class occurs among the items, however few.
    blocks[:num_classes] = np.arange(num_classes, dtype=np.int32)[:num_nodes]
    types = np.repeat(np.arange(len(counts), dtype=np.uint8), list(counts.values()))
    graph = dcsbm(blocks, seed, mean_degree=14.0)
    widths = {"item": num_features, "user": num_features // 2 + 1, "tag": 0}
    features = {}
    for number, (name, width) in enumerate(widths.items()):
        rows = _features(blocks[types == number], num_classes, width, signal, generator)
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
        class_names=tuple(f"block{number}" for number in range(num_classes)),
    )


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


def _counts(num_nodes: int) -> dict[str, int]:
    """Return the number of nodes of each type; at least one item."""
    users, tags = (int(SHARES[name] * num_nodes) for name in ("user", "tag"))
    return {"item": num_nodes - users - tags, "user": users, "tag": tags}


def _relations(graph: GalleryGraph, types: NDArray[np.uint8]) -> dict[str, Edges]:
    number = {name: position for position, name in enumerate(SHARES)}
    edges = {}
    for relation, (source, target) in RELATIONS.items():
        kept = (types[graph.src] == number[source]) & (types[graph.dst] == number[target])
        if source == target:
            # The block model has every edge both ways.
            kept &= graph.src < graph.dst
        edges[relation] = (graph.src[kept], graph.dst[kept])
    return edges
