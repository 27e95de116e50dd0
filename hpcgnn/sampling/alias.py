"""Tables for independent draws with given probabilities (the alias method)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.sampling import _sampling
from hpcgnn.sampling.topology import Topology
from hpcgnn.typing import FloatArray, GlobalIndices

__all__ = ["AliasTable", "edge_table", "edge_weights", "node_table", "node_weights"]


@dataclass(frozen=True, eq=False)
class AliasTable:
    """A draw in O(1): twelve bytes an item, in arrays that processes can share.

    Parameters
    ----------
    thresholds, aliases
        (size,) uint32 and int64.
    """

    thresholds: NDArray[np.uint32]
    aliases: GlobalIndices

    @classmethod
    def build(cls, weights: FloatArray) -> "AliasTable":
        """Make a table for probabilities proportional to `weights`.

        Not collective.

        Raises
        ------
        ValueError
            Unless the weights are finite and not negative, and one is positive.
        """
        thresholds = np.empty(len(weights), np.uint32)
        aliases = np.empty(len(weights), np.int64)
        _sampling.build_alias(np.ascontiguousarray(weights, np.float64), thresholds, aliases)
        return cls(thresholds, aliases)


def edge_weights(topology: Topology) -> FloatArray:
    """Return (E,) weights 1/deg(u) + 1/deg(v) of the entries (u, v).

    Not collective. They lower the variance of aggregations (GraphSAINT). On a directed graph the
    degrees are those of rows, and a node without entries of its own counts as one with one. Entries
    of rows that no walk starts at are never drawn.
    """
    by_node = 1.0 / np.maximum(topology.degrees(), 1)
    weights: NDArray[Any] = by_node[topology.entry_rows()] + by_node[topology.indices]
    weights[topology.indptr[topology.num_roots] :] = 0
    return weights


def node_weights(topology: Topology) -> FloatArray:
    """Return (N,) squared norms of the columns of (D + I)^-1 (A + I).

    Not collective. They lower the variance of aggregations (GraphSAINT); the identity gives
    isolated nodes a chance.
    """
    squares = 1.0 / (topology.degrees() + 1.0) ** 2
    return squares + np.bincount(
        topology.indices, squares[topology.entry_rows()], minlength=topology.num_nodes
    )


def edge_table(topology: Topology) -> AliasTable:
    """Return the table that `EdgeSampler` draws from.

    Not collective.

    Raises
    ------
    ValueError
        When the graph has no edges.
    """
    return AliasTable.build(edge_weights(topology))


def node_table(topology: Topology) -> AliasTable:
    """Return the table that `NodeSampler` draws from.

    Not collective.

    Raises
    ------
    ValueError
        When the graph has no nodes.
    """
    return AliasTable.build(node_weights(topology))
