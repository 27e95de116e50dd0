"""Integer matrices with separate scale factors.

Sums of integers are exact in any order, as long as none exceeds 2^53; see `hpcgnn.spmm.exact`.
"""

from dataclasses import dataclass, field, fields

import numpy as np

from hpcgnn.comm import ProcessGrid, allreduce_max
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.sparse.matrix import DistCSR
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray, LocalIndices

_WEIGHT_BITS = 24
"""Bits of the largest weight, as in float32."""


@dataclass(frozen=True, eq=False)
class Factors:
    """Scale factors of a matrix: `rows` and `columns` of this rank, float64, or None for ones.

    `unit` is a power of two that multiplies all entries.
    """

    rows: FloatArray | None = None
    columns: FloatArray | None = None
    unit: float = 1.0

    def of(self, rows: LocalIndices | None, columns: LocalIndices | None) -> "Factors":
        """Return the factors of some rows and columns (None: all)."""
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
        """Return an integer matrix with its share of `factors`, which are for all nodes."""
        own = {part.name: getattr(matrix, part.name) for part in fields(DistCSR)}
        return cls(**own, factors=factors.of(matrix.row_nodes, matrix.column_nodes))

    @collective
    def magnitudes(self, grid: ProcessGrid) -> DistCSR:
        """Return the matrix of absolute values; itself if no rank has a negative value."""
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
    """Round weights to integer multiples of a unit; return the integer matrix and the unit.

    Without weights (None for ones) the matrix is returned unchanged, with unit 1.
    """
    parts = matrix.diagonal, matrix.remote
    # A rank without edges may have no weights while others have some.
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
