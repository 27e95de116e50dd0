"""A small graph in memory, as the gallery makes it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcgnn.storage import GraphArrays, Split, store_from_arrays
from hpcgnn.typing import FloatArray, GlobalIndices

Edges = tuple[GlobalIndices, GlobalIndices]


@dataclass(frozen=True, kw_only=True)
class GalleryGraph:
    """A named graph with, where it has them, features, labels and a split.

    `edges` maps a relation to (src, dst), int64 arrays without duplicates; the relation "" alone
    for an untyped graph. Node dst aggregates from node src; `undirected`: every edge is present
    both ways. Features are (n, f) float, labels int32[n] of -1..classes-1, split uint8[n] of
    `Split`; or None.

    A graph with node types has instead of features `types` uint8[n], positions in `type_features`,
    which maps a type's name to (n_t, f_t) float, or to None for a type without features.
    `node_names` has a name for each node, or none; a store does not keep them. `graph` int64[n] are
    the numbers of the nodes' graphs, where these are many; or None.
    """

    name: str
    num_nodes: int
    edges: Mapping[str, Edges]
    features: FloatArray | None = None
    types: NDArray[np.uint8] | None = None
    type_features: Mapping[str, FloatArray | None] = field(default_factory=dict)
    labels: NDArray[np.int32] | None = None
    split: NDArray[np.uint8] | None = None
    class_names: tuple[str, ...] = ()
    node_names: tuple[str, ...] = ()
    undirected: bool = False
    graph: GlobalIndices | None = None

    @property
    def src(self) -> GlobalIndices:
        """Return the sources of all edges, one relation after the other."""
        return np.concatenate([src for src, _ in self.edges.values()])

    @property
    def dst(self) -> GlobalIndices:
        """Return the destinations of all edges, one relation after the other."""
        return np.concatenate([dst for _, dst in self.edges.values()])

    def to_scipy(self, relation: str | None = None) -> Any:
        """Return one relation's adjacency, or the sum of all, as SciPy CSR of float64, row dst."""
        src, dst = (self.src, self.dst) if relation is None else self.edges[relation]
        shape = (self.num_nodes, self.num_nodes)
        return sparse.csr_matrix((np.ones(src.size), (dst, src)), shape=shape)

    def with_split(self, seed: int) -> "GalleryGraph":
        """Return the same graph with a random 60/20/20 split."""
        return replace(self, split=random_split(self.num_nodes, seed))

    def arrays(self, **others: Any) -> GraphArrays:
        """Return what a store is written from, with the `others` of its fields added."""
        # A store has no place for the nodes' names; all else is what it is made from.
        own = {name: value for name, value in vars(self).items() if name != "node_names"}
        return GraphArrays(**own, **others)

    def write(
        self, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None
    ) -> None:
        """Write the graph as a store."""
        store_from_arrays(path, self.arrays(provenance=provenance))


def simple_edges(src: GlobalIndices, dst: GlobalIndices, num_nodes: int) -> Edges:
    """Return the edges without loops and duplicates, sorted by (dst, src)."""
    keys = np.unique((dst * num_nodes + src)[src != dst])
    return keys % num_nodes, keys // num_nodes


def both_ways(src: GlobalIndices, dst: GlobalIndices, num_nodes: int) -> Edges:
    """Return the edges and their reverses, without loops and duplicates."""
    return simple_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), num_nodes)


def random_split(num_nodes: int, seed: int) -> NDArray[np.uint8]:
    """Return a random split: 60 % training, 20 % validation, the rest test nodes."""
    split = np.full(num_nodes, Split.TEST, np.uint8)
    order = np.random.default_rng(seed).permutation(num_nodes)
    num_train, num_known = 6 * num_nodes // 10, 8 * num_nodes // 10
    split[order[:num_train]] = Split.TRAIN
    split[order[num_train:num_known]] = Split.VALID
    return split
