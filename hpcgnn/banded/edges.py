"""Typed edges of a supergraph, and propagation along them as a sparse pattern."""

from dataclasses import dataclass

import numpy as np

from hpcgnn import kernels
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.operator import Meanwhile, OperatorSize
from hpcgnn.sparse import LocalCSR
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices, Mask, Offsets


@dataclass(frozen=True, eq=False)
class TypedEdges:
    """Messages pass from `sources` to `targets` along edges of `num_types` types.

    They and `types` are (e,) int32, sorted by type, then target, then source.
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
        """Return the number of edges (num_nodes, num_types) int64 into each node by type."""
        keys = self.targets.astype(np.int64) * self.num_types + self.types
        counts = np.bincount(keys, minlength=self.num_nodes * self.num_types)
        return counts.reshape(self.num_nodes, self.num_types)


def both_ways(
    types: Array, edges: Array, num_nodes: int, num_forward: int, *, self_edges: bool = False
) -> TypedEdges:
    """Return edges (e, 2), source, target, and their reverses, of types `num_forward` and up.

    `self_edges` adds an edge from each node to itself, of the last type.
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
    """A sparse matrix of ones on one rank, with its transpose, from an int64, int32 pattern."""

    def __init__(
        self, indptr: Offsets, indices: LocalIndices, num_columns: int, trace: TraceRecorder
    ) -> None:
        self.trace = trace
        self._pattern = indptr, indices
        back = kernels.transpose_csr(indptr, indices, None, num_columns)
        self._transpose = back[0], back[1]
        rows = len(indptr) - 1
        self.size = OperatorSize(rows, num_columns, len(indices), 0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of the result and of the input."""
        return self.size.num_rows, self.size.num_columns

    @property
    def both_ways(self) -> tuple[LocalCSR, LocalCSR]:
        """The matrix and its transpose."""
        return (
            LocalCSR(*self._pattern, None, self.shape),
            LocalCSR(*self._transpose, None, self.shape[::-1]),
        )

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x``."""
        del meanwhile
        return self._multiply("interior.forward", self._pattern, x)

    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g``."""
        del meanwhile
        return self._multiply("interior.reverse", self._transpose, gradient)

    def _multiply(self, name: str, pattern: tuple[Offsets, LocalIndices], x: Array) -> Array:
        with self.trace.span(name):
            out = np.empty((len(pattern[0]) - 1, x.shape[1]), x.dtype)
            kernels.spmm(kernels.SparseMatrix(*pattern), x, out)
            return out


class TypedPairs:
    """The adjacency matrices of all types without their empty rows, ordered by type.

    The states that edges of a type bring to a node are summed first, so that a step maps as many
    rows as there are pairs, not one for each edge, nor one for each node and type: `gather` sums
    from nodes to pairs, `scatter` from pairs to nodes. `type_starts` (P + 1,) are the first pairs
    of the types.
    """

    def __init__(self, edges: TypedEdges, trace: TraceRecorder) -> None:
        keys = edges.types.astype(np.int64) * edges.num_nodes + edges.targets
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        indptr = np.append(firsts, len(keys)).astype(np.int64)
        self.gather = LocalOperator(indptr, edges.sources, edges.num_nodes, trace)
        types, targets = edges.types[firsts], edges.targets[firsts]
        self.type_starts: Offsets = np.searchsorted(types, np.arange(edges.num_types + 1))
        order = np.argsort(targets, kind="stable").astype(np.int32)
        counts = np.bincount(targets, minlength=edges.num_nodes)
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.scatter = LocalOperator(starts, order, len(firsts), trace)


class DeviceLocalOperator:
    """A `LocalOperator` on the current device."""

    def __init__(self, host: LocalOperator) -> None:
        self.trace, self.size = host.trace, host.size
        self._matrix, self._transpose = (DeviceCSR.upload(each) for each in host.both_ways)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of the result and of the input."""
        return self.size.num_rows, self.size.num_columns

    def apply(self, x: DeviceArray, meanwhile: Meanwhile | None = None) -> DeviceArray:
        """Return ``A x``."""
        del meanwhile
        return self._multiply("interior.forward", self._matrix, x)

    def apply_transpose(
        self, gradient: DeviceArray, meanwhile: Meanwhile | None = None
    ) -> DeviceArray:
        """Return ``Aᵀ g``."""
        del meanwhile
        return self._multiply("interior.reverse", self._transpose, gradient)

    def _multiply(self, name: str, matrix: DeviceCSR, x: DeviceArray) -> DeviceArray:
        with self.trace.span(name):
            out = load_cupy().empty((matrix.host.shape[0], x.shape[1]), x.dtype)
            matrix.matmul(x, out)
            return out


@dataclass(frozen=True, eq=False)
class DevicePairs:
    """`TypedPairs` on a device."""

    gather: DeviceLocalOperator
    scatter: DeviceLocalOperator
    type_starts: Offsets

    @classmethod
    def upload(cls, pairs: TypedPairs) -> "DevicePairs":
        """Copy pairs to the current device."""
        gather, scatter = (DeviceLocalOperator(each) for each in (pairs.gather, pairs.scatter))
        return cls(gather, scatter, pairs.type_starts)
