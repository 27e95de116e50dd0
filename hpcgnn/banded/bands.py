"""Propagation within a band as three batched products of dense blocks, and slices beside it."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.banded.edges import TypedEdges
from hpcgnn.banded.supernodes import Supernodes, SupernodeSlices
from hpcgnn.comm import Moment
from hpcgnn.operator import Meanwhile, OperatorSize
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, Mask


def inside_band(edges: TypedEdges, block: int) -> Mask:
    """Tell which edges the blocks of size `block` hold.

    Edges shorter than `block` always are, those of ``block`` to ``2 block - 1`` where they join
    neighbouring blocks (U and L are full squares here), longer ones never.
    """
    return np.abs(edges.targets // block - edges.sources // block) <= 1


def held_edges(edges: TypedEdges, block: int, supernodes: Supernodes | None) -> Mask:
    """Tell which edges the blocks of size `block` and the slices of `supernodes` hold."""
    held = inside_band(edges, block)
    return held if supernodes is None else held | supernodes.touch(edges)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Dense blocks: `centre` (K, S P, S), `upper` and `lower` (K - 1, S P, S)."""

    centre: FloatArray
    upper: FloatArray
    lower: FloatArray


class BandedOperator:
    """The adjacency matrices of all types, stacked: rows are (node, type) pairs, columns nodes.

    Algorithm 1 of the dense-hardware paper, lines 1 to 3. Of the `blocks`, ``C_k`` holds the edges
    inside block k, ``U_k`` those from block k + 1 to block k, ``L_k`` those from block k to block k
    + 1, each for all P types: row ``s P + p`` of a block is type p of its node s, so that a result
    of shape (K, S P, H) is one of shape (K S, P H) without moving anything.

    Edges beyond the band of blocks of size `block`, S, are left out: `dropped`. Those of
    `supernodes` are held in `slices` beside the blocks, however long they are. `dtype` is float32
    or float64.
    """

    def __init__(
        self,
        edges: TypedEdges,
        block: int,
        dtype: type[np.float32] | type[np.float64],
        trace: TraceRecorder,
        supernodes: Supernodes | None = None,
    ) -> None:
        self.trace, self.moment = trace, Moment()
        self._block, self._num_types = block, edges.num_types
        self._num_nodes = edges.num_nodes
        self._num_blocks = max(1, -(-edges.num_nodes // block))
        self.slices: SupernodeSlices | None = None
        kept = edges.select(held_edges(edges, block, supernodes))
        self.dropped = len(edges) - len(kept)
        rows, columns = self.shape
        self.size = OperatorSize(rows, columns, len(kept), 0)
        if supernodes is not None:
            touched = supernodes.touch(kept)
            self.slices = SupernodeSlices(kept.select(touched), supernodes, dtype)
            kept = kept.select(~touched)
        self.blocks = self._fill(kept, dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """Pairs of nodes and types, and nodes."""
        return self._num_nodes * self._num_types, self._num_nodes

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks and slices."""
        blocks = self.blocks
        more = 0 if self.slices is None else self.slices.num_bytes
        return more + sum(array.nbytes for array in (blocks.centre, blocks.upper, blocks.lower))

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return the sums (n P, H) of the rows of `x` (n, H) that edges of each type bring."""
        del meanwhile
        with self.trace.span("interior.forward"):
            tall = self._padded(x, self._block)
            sums: Array = np.matmul(self.blocks.centre, tall)
            if self._num_blocks > 1:
                sums[:-1] += np.matmul(self.blocks.upper, tall[1:])
                sums[1:] += np.matmul(self.blocks.lower, tall[:-1])
            result = sums.reshape(-1, x.shape[1])[: self.shape[0]]
            if self.slices is not None:
                self.slices.add(x, result)
            return result

    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return (n, H): the adjoint of `apply` on `gradient` (n P, H)."""
        del meanwhile
        with self.trace.span("interior.reverse"):
            tall = self._padded(gradient, self._block * self._num_types)
            centre, upper, lower = (
                array.transpose(0, 2, 1)
                for array in (self.blocks.centre, self.blocks.upper, self.blocks.lower)
            )
            sums: Array = np.matmul(centre, tall)
            if self._num_blocks > 1:
                sums[1:] += np.matmul(upper, tall[:-1])
                sums[:-1] += np.matmul(lower, tall[1:])
            result = sums.reshape(-1, gradient.shape[1])[: self._num_nodes]
            if self.slices is not None:
                self.slices.add_transpose(gradient, result)
            return result

    def _fill(self, edges: TypedEdges, dtype: type[np.float32] | type[np.float64]) -> Blocks:
        size, types = self._block, self._num_types
        shape = (size * types, size)
        count = self._num_blocks
        blocks = Blocks(
            np.zeros((count, *shape), dtype),
            np.zeros((count - 1, *shape), dtype),
            np.zeros((count - 1, *shape), dtype),
        )
        to, of = edges.targets // size, edges.sources // size
        rows = edges.targets % size * types + edges.types
        columns = edges.sources % size
        # Several edges of one type between two nodes count as many times.
        for array, chosen, first in (
            (blocks.centre, to == of, to),
            (blocks.upper, to < of, to),
            (blocks.lower, to > of, of),
        ):
            place = (first[chosen], rows[chosen], columns[chosen])
            if chosen.any():
                flat = np.ravel_multi_index(place, array.shape)
                np.add.at(array.reshape(-1), flat, 1)
        return blocks

    def _padded(self, rows: Array, block: int) -> Array:
        """Return rows (n, H) as blocks (K, `block`, H), the last filled up with zeros."""
        whole = self._num_blocks * block
        if len(rows) < whole:
            rows = np.concatenate([rows, np.zeros((whole - len(rows), rows.shape[1]), rows.dtype)])
        return rows.reshape(self._num_blocks, block, rows.shape[1])
