"""Positions of nodes by the leading eigenvectors of the graph, on the operators of the ranks."""

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.operator import AggregationOperator
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray

_DEGREE = 8
_ROUNDS = 8


class SpectralPositions:
    """The leading eigenvectors of ``D^-1/2 (A + t/n 1 1ᵀ) D^-1/2`` with ``D = diag(A 1) + t``.

    t is the mean degree: small components and nodes with few neighbours would otherwise have the
    leading eigenvectors to themselves (Qin and Rohe, "Regularized spectral clustering under the
    degree-corrected stochastic blockmodel", NIPS 2013). The first one, ``D^1/2 1``, is known and
    left out.

    They are found by subspace iteration with a Chebyshev filter (Zhou, Saad, Tiago and Chelikowsky,
    J. Comput. Phys. 219, 2006), in a fixed number of rounds, so that the result is a smooth
    function of the graph and of the first vectors. Of equal eigenvalues the basis is theirs.

    Parameters
    ----------
    adjacency
        The product with the symmetric A.
    num_nodes
        n.
    start
        (num_local, columns) float64 first vectors.
    """

    @collective
    def __init__(
        self, grid: ProcessGrid, adjacency: AggregationOperator, num_nodes: int, start: FloatArray
    ) -> None:
        self._grid, self._adjacency, self._num_nodes = grid, adjacency, num_nodes
        # More columns than nodes span nothing more.
        self._start = start[:, : max(num_nodes - 1, 0)]
        degrees = adjacency.apply(np.ones((len(start), 1))).copy()
        self._more = float(self._sum(degrees.sum(keepdims=True))[0, 0]) / max(num_nodes, 1)
        # Without edges every vector is as good.
        root = np.sqrt(degrees + (self._more or 1.0))
        self._scale = 1 / root
        self._first = root / np.sqrt(self._sum((root**2).sum(keepdims=True)))

    @collective
    def find(self, columns: int) -> FloatArray:
        """Return (num_local, columns) float64 positions, by falling eigenvalue.

        Columns have length sqrt(n), times their eigenvalue, and the sign by which they are on the
        side of the first vectors. A graph with fewer nodes has columns of 0 at the end.
        """
        x = self._orthonormal(self._start)
        values = np.zeros(x.shape[1])
        low = 0.0
        for _ in range(_ROUNDS):
            x = self._orthonormal(self._filtered(x, low))
            small = self._sum(x.T @ self._product(x))
            # Sums over ranks may differ in the last bit from rank to rank.
            values, turn = self._grid.layer.bcast(np.linalg.eigh((small + small.T) / 2))
            values, x = values[::-1], x @ turn[:, ::-1]
            low = float(values[-1]) if len(values) else 0.0
        count = min(columns, x.shape[1])
        side = self._sum((x * self._start).sum(axis=0, keepdims=True))
        signs = np.where(side < 0, -1.0, 1.0)
        found = np.zeros((len(x), columns))
        length = np.sqrt(self._num_nodes)
        found[:, :count] = (x * signs * values * length)[:, :count]
        return found

    def _product(self, x: FloatArray) -> FloatArray:
        scaled = np.ascontiguousarray(self._scale * x)
        near = self._adjacency.apply(scaled)
        mean = self._sum(scaled.sum(axis=0, keepdims=True)) / max(self._num_nodes, 1)
        return self._scale * (near + self._more * mean)

    def _filtered(self, x: FloatArray, low: float) -> FloatArray:
        """Return the Chebyshev polynomial that is small on [-1, low], and grows above."""
        # A filter up to the last value would leave nothing to tell the others by.
        low = min(max(low, 0.0), 0.95)
        half, centre = (low + 1) / 2, (low - 1) / 2
        before, now = x, (self._product(x) - centre * x) / half
        for _ in range(_DEGREE - 1):
            before, now = now, 2 * (self._product(now) - centre * now) / half - before
        return now

    def _orthonormal(self, x: FloatArray) -> FloatArray:
        """Return an orthonormal basis beside the known eigenvector."""
        # Twice: once loses digits where columns are nearly dependent.
        for _ in range(2):
            x = x - self._first * self._sum(self._first.T @ x)
            lengths = np.sqrt(self._sum((x**2).sum(axis=0, keepdims=True)))
            x = x / np.where(lengths > 0, lengths, 1)
            gram = self._grid.layer.bcast(self._sum(x.T @ x))
            values, vectors = np.linalg.eigh(gram)
            # Symmetric: keeps columns as near to what they were as they can be.
            x = x @ (vectors / np.sqrt(np.maximum(values, 1e-14)) @ vectors.T)
        return x

    def _sum(self, mine: FloatArray) -> FloatArray:
        total = np.ascontiguousarray(mine, np.float64).copy()
        allreduce_sum(self._grid.layer, total)
        return total
