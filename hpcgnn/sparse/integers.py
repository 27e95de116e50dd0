"""Matrices of integers, with what their entries are scaled by beside them.

Integers add up exactly, in any order, as long as no sum passes 2^53; see `hpcgnn.spmm.exact`.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_max
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray, LocalIndices

_WEIGHT_BITS = 24
"""Of a weight, below the largest: those of float32."""


@dataclass(frozen=True, eq=False)
class Factors:
    """What the entries of a matrix are scaled by: `rows` and `columns`, float64 of this rank.

    None are ones. `unit` is a power of two that all entries are multiplied with.
    """

    rows: FloatArray | None = None
    columns: FloatArray | None = None
    unit: float = 1.0

    def of(self, rows: LocalIndices | None, columns: LocalIndices | None) -> "Factors":
        """Return the factors of some rows and columns; None: of all."""
        by_row, by_column = self.rows, self.columns
        if by_row is not None and rows is not None:
            by_row = by_row[rows]
        if by_column is not None and columns is not None:
            by_column = by_column[columns]
        return Factors(by_row, by_column, self.unit)


@dataclass(frozen=True, eq=False)
class IntegerCSR(DistCSR):
    """A `DistCSR` of integers in float64, or None for ones, scaled by `factors`."""

    factors: Factors = field(default_factory=Factors)

    @classmethod
    def of(cls, matrix: DistCSR, factors: Factors) -> "IntegerCSR":
        """Return a matrix of integers with factors for all nodes, cut down to its own."""
        own = {part.name: getattr(matrix, part.name) for part in fields(DistCSR)}
        return cls(**own, factors=factors.of(matrix.row_nodes, matrix.column_nodes))

    @collective
    def magnitudes(self, grid: ProcessGrid) -> DistCSR:
        """Return the matrix of absolute values: itself where no rank has a negative one."""
        values = [part.values for part in (self.diagonal, self.remote)]
        lowest = min(0.0 if part is None else part.min(initial=0) for part in values)
        below = np.array([-lowest])
        allreduce_max(grid.layer, below)
        if below[0] == 0:
            return self
        diagonal, remote = (None if part is None else np.abs(part) for part in values)
        return self.with_values(diagonal, remote)


@collective
def round_weights(grid: ProcessGrid, matrix: DistCSR) -> tuple[DistCSR, float]:
    """Return a matrix of integers and the unit of its weights, which they are next to.

    Weights are None for ones.
    """
    parts = matrix.diagonal, matrix.remote
    # A rank without edges has no weights where others have some.
    top = np.array([_largest(part) for part in parts]).max(keepdims=True)
    allreduce_max(grid.layer, top)
    if top[0] < 0:
        return matrix, 1.0
    unit = float(np.ldexp(1.0, np.frexp(top[0])[1] - _WEIGHT_BITS))
    return matrix.with_values(*(_integers(part, unit) for part in parts)), unit


def _largest(part: LocalCSR) -> float:
    return -1.0 if part.values is None else float(np.abs(part.values).max(initial=0))


def _integers(part: LocalCSR, unit: float) -> FloatArray:
    if part.values is None:
        return np.full(part.nnz, np.rint(1 / unit))
    return np.rint(part.values.astype(np.float64) / unit)
