"""Propagation along a sparse pattern: a row for each pair of a node and a type of its edges."""

import numpy as np

from hpcgnn import kernels
from hpcgnn.banded.edges import TypedEdges
from hpcgnn.sparse import LocalCSR, OperatorSize
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices, Offsets

__all__ = ["LocalOperator", "TypedPairs"]


class LocalOperator:
    """A sparse matrix of ones on one rank, with its transpose.

    Not collective.

    Parameters
    ----------
    indptr, indices
        (m + 1,) int64, (nnz,) int32: the pattern.
    num_columns
        Columns.
    trace
        Where the time goes.
    """

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

    def apply(self, x: Array) -> Array:
        """Return ``A x``.

        Not collective.
        """
        return self._multiply("interior.forward", self._pattern, x)

    def apply_transpose(self, gradient: Array) -> Array:
        """Return ``Aᵀ g``.

        Not collective.
        """
        return self._multiply("interior.reverse", self._transpose, gradient)

    def _multiply(self, name: str, pattern: tuple[Offsets, LocalIndices], x: Array) -> Array:
        with self.trace.span(name):
            out = np.empty((len(pattern[0]) - 1, x.shape[1]), x.dtype)
            kernels.spmm(*pattern, None, x, out)
            return out


class TypedPairs:
    """The adjacency matrices of all types without their empty rows, ordered by type.

    Not collective.

    The states that edges of a type bring to a node are summed first, so that a step maps as many
    rows as there are pairs, not one for each edge, nor one for each node and type.

    Attributes
    ----------
    gather
        From nodes to pairs: sums what the edges of a pair bring.
    scatter
        From pairs to nodes: sums what the pairs of a node brought.
    type_starts
        (P + 1,) first pair of each type.
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
