"""Dense rows and columns beside the band, for the few nodes that have many neighbours."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.banded.edges import TypedEdges
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Mask

__all__ = ["Slice", "SupernodeSlices", "Supernodes"]


@dataclass(frozen=True, eq=False)
class Supernodes:
    """The supernodes of a supergraph: the first nodes of some of its graphs.

    Not collective.

    Parameters
    ----------
    firsts
        (k,) int64: first node of each graph that has any, rising.
    counts
        (k,) int64: its supernodes are ``firsts`` to ``firsts + counts - 1``.
    stops
        (k,) int64: the node after the graph's last.
    """

    firsts: GlobalIndices
    counts: GlobalIndices
    stops: GlobalIndices

    def __len__(self) -> int:
        return int(self.counts.sum())

    def touch(self, edges: TypedEdges) -> Mask:
        """Tell which of `edges` begin or end at a supernode.

        Not collective.
        """
        chosen = np.zeros(edges.num_nodes, np.bool_)
        for first, count in zip(self.firsts.tolist(), self.counts.tolist(), strict=True):
            chosen[first : first + count] = True
        touched: Mask = chosen[edges.targets] | chosen[edges.sources]
        return touched


@dataclass(frozen=True, eq=False)
class Slice:
    """Of one graph of n nodes, c of them supernodes: `columns` (n P, c), `rows` (c P, n).

    `nodes` are the graph's nodes, supernodes first, and `pairs` their pairs with types.
    """

    nodes: slice
    pairs: slice
    columns: FloatArray
    rows: FloatArray


class SupernodeSlices:
    """Slices of the stacked adjacency matrix: columns from supernodes, rows to them.

    Not collective.

    What the paper's discussion calls supernode propagation, with slices that end where the graph
    does: a supergraph holds many graphs, and none hears of another's supernodes.

    Parameters
    ----------
    edges
        Edges that touch a supernode, all of them.
    supernodes
        Which those are.
    dtype
        float32 or float64.
    """

    def __init__(
        self,
        edges: TypedEdges,
        supernodes: Supernodes,
        dtype: type[np.float32] | type[np.float64],
    ) -> None:
        owners = np.searchsorted(supernodes.firsts, edges.targets, side="right") - 1
        bounds = zip(supernodes.firsts, supernodes.counts, supernodes.stops, strict=True)
        self.parts = [
            _fill(edges.select(owners == number), int(first), int(count), int(stop), dtype)
            for number, (first, count, stop) in enumerate(bounds)
        ]

    @property
    def num_bytes(self) -> int:
        """Bytes of the slices."""
        return sum(each.columns.nbytes + each.rows.nbytes for each in self.parts)

    def add(self, x: Array, sums: Array) -> None:
        """Add to `sums` (n P, H) the rows of `x` (n, H) that come from and to supernodes.

        Not collective.
        """
        for each in self.parts:
            mine, count = x[each.nodes], each.columns.shape[1]
            into = sums[each.pairs]
            into += each.columns @ mine[:count]
            into[: len(each.rows)] += each.rows @ mine

    def add_transpose(self, gradient: Array, sums: Array) -> None:
        """Add to `sums` (n, H) the adjoint of `add` on `gradient` (n P, H).

        Not collective.
        """
        for each in self.parts:
            mine, count = gradient[each.pairs], each.columns.shape[1]
            into = sums[each.nodes]
            into[:count] += each.columns.T @ mine
            into += each.rows.T @ mine[: len(each.rows)]


def _fill(
    edges: TypedEdges,
    first: int,
    count: int,
    stop: int,
    dtype: type[np.float32] | type[np.float64],
) -> Slice:
    num_types = edges.num_types
    columns = np.zeros(((stop - first) * num_types, count), dtype)
    rows = np.zeros((count * num_types, stop - first), dtype)
    places = (edges.targets - first) * num_types + edges.types
    sources = edges.sources - first
    # An edge between two supernodes stands in a column only.
    leaves = sources < count
    for array, chosen in ((columns, leaves), (rows, ~leaves)):
        np.add.at(array, (places[chosen], sources[chosen]), 1)
    pairs = slice(first * num_types, stop * num_types)
    return Slice(slice(first, stop), pairs, columns, rows)
