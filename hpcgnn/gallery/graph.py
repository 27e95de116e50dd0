"""The in-memory graph that gallery functions return."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from hpcgnn.gallery.streamed import EdgeChunks
from hpcgnn.storage import GraphArrays, Split, store_from_arrays
from hpcgnn.typing import FloatArray, GlobalIndices

Edges = tuple[GlobalIndices, GlobalIndices]


@dataclass(frozen=True, kw_only=True)
class GalleryGraph(GraphArrays):
    """A graph with optional features, labels and split.

    `edges` are (src, dst) int64 without duplicates, where node dst aggregates from node src, in
    both directions if `undirected`. Features are float, labels int32, the split and types uint8,
    `graph` int64. `node_names` has a name for each node or is empty; stores do not keep them.
    """

    edges: Mapping[str, Edges]
    features: FloatArray | None = None
    types: NDArray[np.uint8] | None = None
    type_features: Mapping[str, FloatArray | None] = field(default_factory=dict)
    labels: NDArray[np.int32] | None = None
    split: NDArray[np.uint8] | None = None
    graph: GlobalIndices | None = None
    node_names: tuple[str, ...] = ()

    @classmethod
    def of_chunks(cls, name: str, edges: EdgeChunks, *, undirected: bool) -> "GalleryGraph":
        """Return the graph of all chunks, without self-loops and duplicate edges."""
        none = np.empty(0, np.int64)
        chunks = [(none, none), *map(edges.chunk, range(edges.num_chunks))]
        src, dst = (np.concatenate(ends) for ends in zip(*chunks, strict=True))
        simple = (both_ways if undirected else simple_edges)(src, dst, edges.num_nodes)
        return cls(name=name, num_nodes=edges.num_nodes, edges={"": simple}, undirected=undirected)

    @property
    def src(self) -> GlobalIndices:
        """Return the sources of all edges, one relation after the other."""
        return np.concatenate([src for src, _ in self.edges.values()])

    @property
    def dst(self) -> GlobalIndices:
        """Return the targets of all edges, one relation after the other."""
        return np.concatenate([dst for _, dst in self.edges.values()])

    def to_scipy(self, relation: str | None = None) -> Any:
        """Return the adjacency of a relation, or the sum of all, as float64 CSR with rows dst."""
        src, dst = (self.src, self.dst) if relation is None else self.edges[relation]
        shape = (self.num_nodes, self.num_nodes)
        return sparse.csr_matrix((np.ones(src.size), (dst, src)), shape=shape)

    def with_split(self, seed: int) -> "GalleryGraph":
        """Return the same graph with a random 60/20/20 split."""
        return replace(self, split=random_split(self.num_nodes, seed))

    def write(
        self, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None
    ) -> None:
        """Write the graph as a store."""
        store_from_arrays(path, replace(self, provenance=provenance))


def simple_edges(src: GlobalIndices, dst: GlobalIndices, num_nodes: int) -> Edges:
    """Return the edges without self-loops and duplicates, sorted by (dst, src)."""
    keys = np.unique((dst * num_nodes + src)[src != dst])
    return keys % num_nodes, keys // num_nodes


def both_ways(src: GlobalIndices, dst: GlobalIndices, num_nodes: int) -> Edges:
    """Return the edges and their reverses, without self-loops and duplicates."""
    return simple_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), num_nodes)


def random_split(num_nodes: int, seed: int) -> NDArray[np.uint8]:
    """Return a random split: 60 % training, 20 % validation, the rest for testing."""
    split = np.full(num_nodes, Split.TEST, np.uint8)
    order = np.random.default_rng(seed).permutation(num_nodes)
    num_train, num_known = 6 * num_nodes // 10, 8 * num_nodes // 10
    split[order[:num_train]] = Split.TRAIN
    split[order[num_train:num_known]] = Split.VALID
    return split
