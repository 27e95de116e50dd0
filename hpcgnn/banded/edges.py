"""Typed edges of a supergraph, and propagation along them as a sparse pattern."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RunPosition
from hpcgnn.operator import Meanwhile, OperatorSize
from hpcgnn.sparse import LocalCSR, LocalMatrix
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices, Mask, Offsets


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """Edges of `num_types` types, along which messages pass from `sources` to `targets`.

    `types`, `targets` and `sources` are (e,) int32, sorted by type, then target, then source.
    """

    num_nodes: int
    num_types: int
    types: LocalIndices
    targets: LocalIndices
    sources: LocalIndices

    def __len__(self) -> int:
        return len(self.types)

    def select(self, chosen: Mask) -> "TypedEdges":
        """Return the edges where `chosen` (e,) is true, in order."""
        return TypedEdges(
            self.num_nodes,
            self.num_types,
            self.types[chosen],
            self.targets[chosen],
            self.sources[chosen],
        )

    def counts(self) -> Array:
        """Return (num_nodes, num_types) int64 the number of edges into each node by type."""
        keys = self.targets.astype(np.int64) * self.num_types + self.types
        counts = np.bincount(keys, minlength=self.num_nodes * self.num_types)
        return counts.reshape(self.num_nodes, self.num_types)


def both_ways(
    types: Array, edges: Array, num_nodes: int, num_forward: int, *, self_edges: bool = False
) -> TypedEdges:
    """Return edges (e, 2), each (source, target), and their reverses.

    The reverse of type t is type ``num_forward + t``. `self_edges` adds an edge from each node to
    itself, of the last type.
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


class LocalOperator:
    """A matrix on one rank and its transpose, in main memory or on a device."""

    def __init__(self, matrix: LocalMatrix, trace: TraceRecorder) -> None:
        # Transpose now: operators are made ahead of the step that needs them.
        self.trace, self.matrix, self._transposed = trace, matrix, matrix.transposed
        self.run_position = RunPosition()
        self.size = OperatorSize(*matrix.shape, matrix.nnz, 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows of the result, and of the input."""
        return self.matrix.shape

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x``."""
        del meanwhile
        return self._multiply("interior.forward", self.matrix, x)

    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g``."""
        del meanwhile
        return self._multiply("interior.reverse", self._transposed, gradient)

    def on_device(self) -> "LocalOperator":
        """Return the same on the current device."""
        assert isinstance(self.matrix, LocalCSR), "the matrix is on a device already"
        return LocalOperator(DeviceCSR.upload(self.matrix), self.trace)

    def _multiply(self, name: str, matrix: LocalMatrix, x: Array) -> Array:
        with self.trace.span(name):
            out = matrix.memory.empty((matrix.shape[0], x.shape[1]), x.dtype)
            matrix.matmul(x, out)
            return out


@dataclass(frozen=True, eq=False)
class TypedPairs:
    """The adjacency matrices of all types without their empty rows, ordered by type.

    A pair is a target node and a type with at least one edge. `gather` sums source states into
    pairs and `scatter` sums pairs into nodes, so a step's linear maps run on one row per pair
    instead of one per edge or one per node and type. `type_starts` (P + 1,) are the first pairs of
    the types.
    """

    gather: LocalOperator
    scatter: LocalOperator
    type_starts: Offsets

    @classmethod
    def of(cls, edges: TypedEdges, trace: TraceRecorder) -> "TypedPairs":
        """Return the pairs of `edges`, in main memory."""
        keys = edges.types.astype(np.int64) * edges.num_nodes + edges.targets
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        indptr = np.append(firsts, len(keys)).astype(np.int64)
        gather = LocalCSR(indptr, edges.sources, None, (len(firsts), edges.num_nodes))
        types, targets = edges.types[firsts], edges.targets[firsts]
        order = np.argsort(targets, kind="stable").astype(np.int32)
        counts = np.bincount(targets, minlength=edges.num_nodes)
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        scatter = LocalCSR(starts, order, None, gather.shape[::-1])
        type_starts = np.searchsorted(types, np.arange(edges.num_types + 1))
        return cls(LocalOperator(gather, trace), LocalOperator(scatter, trace), type_starts)

    def on_device(self) -> "TypedPairs":
        """Return the same on the current device."""
        return TypedPairs(self.gather.on_device(), self.scatter.on_device(), self.type_starts)
