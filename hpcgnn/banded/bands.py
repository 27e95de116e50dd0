"""Propagation within a band as three batched products of dense blocks, plus supernode slices."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.banded.edges import TypedEdges
from hpcgnn.banded.supernodes import Supernodes, SupernodeSlices
from hpcgnn.comm import RunPosition
from hpcgnn.operator import Meanwhile, OperatorSize
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, Mask


def inside_band(edges: TypedEdges, block: int) -> Mask:
    """Tell which edges lie in the band of blocks of size `block`.

    Edges shorter than `block` always do, edges of length ``block`` to ``2 block - 1`` do if they
    join neighbouring blocks (U and L are full squares here), and longer ones never do.
    """
    return np.abs(edges.targets // block - edges.sources // block) <= 1


def held_edges(edges: TypedEdges, block: int, supernodes: Supernodes | None) -> Mask:
    """Tell which edges lie in the band of blocks of size `block` or in slices of `supernodes`."""
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

    This is Algorithm 1 of the dense-hardware paper, lines 1 to 3. In `blocks`, ``C_k`` holds the
    edges inside block k, ``U_k`` those from block k + 1 to block k, and ``L_k`` those from block k
    to block k + 1, each for all P types. Row ``s P + p`` of a block is type p of its node s, so a
    result of shape (K, S P, H) can be viewed as (K S, P H) without a copy.

    `block` is S. Edges outside the band are left out; `dropped` counts them. Edges of `supernodes`
    are kept in `slices` however long they are. `dtype` is float32 or float64.
    """

    def __init__(
        self,
        edges: TypedEdges,
        block: int,
        dtype: type[np.float32] | type[np.float64],
        trace: TraceRecorder,
        supernodes: Supernodes | None = None,
    ) -> None:
        self.trace, self.run_position = trace, RunPosition()
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
        """Number of (node, type) pairs, and number of nodes."""
        return self._num_nodes * self._num_types, self._num_nodes

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks and slices."""
        blocks = self.blocks
        more = 0 if self.slices is None else self.slices.num_bytes
        return more + sum(array.nbytes for array in (blocks.centre, blocks.upper, blocks.lower))

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return (n P, H) the sums of the source rows of `x` (n, H) by target node and type."""
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
        # Parallel edges of one type add up.
        for array, chosen, first in (
            (blocks.centre, to == of, to),
            (blocks.upper, to < of, to),
            (blocks.lower, to > of, of),
        ):
            if chosen.any():
                index = (first[chosen], rows[chosen], columns[chosen])
                np.add.at(array.reshape(-1), np.ravel_multi_index(index, array.shape), 1)
        return blocks

    def _padded(self, rows: Array, block: int) -> Array:
        """Return rows (n, H) as blocks (K, `block`, H), the last padded with zeros."""
        whole = self._num_blocks * block
        if len(rows) < whole:
            rows = np.concatenate([rows, np.zeros((whole - len(rows), rows.shape[1]), rows.dtype)])
        return rows.reshape(self._num_blocks, block, rows.shape[1])
