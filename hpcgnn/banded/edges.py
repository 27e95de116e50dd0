"""Typed edges of a supergraph: what every propagator is made from."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.typing import Array, LocalIndices, Mask

__all__ = ["TypedEdges", "both_ways"]


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """Messages pass from `sources` to `targets` along edges of `num_types` types.

    Not collective.

    Parameters
    ----------
    num_nodes, num_types
        Bounds of what follows.
    types, targets, sources
        (e,) int32, sorted by type, then target, then source.
    """

    num_nodes: int
    num_types: int
    types: LocalIndices
    targets: LocalIndices
    sources: LocalIndices

    def __len__(self) -> int:
        return len(self.types)

    def select(self, chosen: Mask) -> "TypedEdges":
        """Return the edges where `chosen` (e,) is true, in order.

        Not collective.
        """
        return TypedEdges(
            self.num_nodes,
            self.num_types,
            self.types[chosen],
            self.targets[chosen],
            self.sources[chosen],
        )

    def counts(self) -> Array:
        """Return the number of edges (num_nodes, num_types) int64 into each node by type.

        Not collective.
        """
        keys = self.targets.astype(np.int64) * self.num_types + self.types
        counts = np.bincount(keys, minlength=self.num_nodes * self.num_types)
        return counts.reshape(self.num_nodes, self.num_types)


def both_ways(
    types: Array, edges: Array, num_nodes: int, num_forward: int, *, self_edges: bool = False
) -> TypedEdges:
    """Return edges and their reverses, which are of types `num_forward` and up.

    Not collective.

    Parameters
    ----------
    types
        (e,) forward types.
    edges
        (e, 2) source, target.
    num_nodes
        Nodes of the supergraph.
    num_forward
        Forward types.
    self_edges
        Add an edge from each node to itself, of the last type.
    """
    kinds = np.concatenate([types, types + np.int32(num_forward)]).astype(np.int32)
    sources = np.concatenate([edges[:, 0], edges[:, 1]]).astype(np.int32)
    targets = np.concatenate([edges[:, 1], edges[:, 0]]).astype(np.int32)
    order = np.lexsort((sources, targets, kinds))
    kinds, targets, sources = kinds[order], targets[order], sources[order]
    if self_edges:
        nodes = np.arange(num_nodes, dtype=np.int32)
        kinds = np.concatenate([kinds, np.full(num_nodes, 2 * num_forward, np.int32)])
        targets, sources = np.concatenate([targets, nodes]), np.concatenate([sources, nodes])
    return TypedEdges(num_nodes, 2 * num_forward + self_edges, kinds, targets, sources)
