"""What every layer multiplies with, wherever it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

__all__ = ["AggregationOperator", "OperatorSize", "RankSums", "Transposed"]

RankSums: TypeAlias = Callable[[Array], None]
"""Replaces an array by its sum over the block rows; collective, equal results on all ranks."""


@dataclass(frozen=True)
class OperatorSize:
    """Sums over all block rows, equal on all ranks, so that ranks decide alike.

    Parameters
    ----------
    num_rows, num_columns
        Rows of the result and of the input.
    num_entries
        Non-zeros.
    num_moved
        Rows and partial sums that one product moves between ranks.
    """

    num_rows: int
    num_columns: int
    num_entries: int
    num_moved: int

    @property
    def transposed(self) -> "OperatorSize":
        """The sizes of the adjoint."""
        return OperatorSize(self.num_columns, self.num_rows, self.num_entries, self.num_moved)


class AggregationOperator(Protocol):
    """A linear map of node rows and its adjoint.

    `apply` and `apply_transpose` are collective over the ranks that share the operator, and satisfy
    ⟨A x, y⟩ = ⟨x, Aᵀ y⟩ summed over ranks.
    """

    trace: TraceRecorder
    size: OperatorSize

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        ...

    def apply(self, x: Array) -> Array:
        """Return ``A x`` for `x` of (input rows, width)."""
        ...

    def apply_transpose(self, gradient: Array) -> Array:
        """Return ``Aᵀ g`` for `gradient` of (result rows, width)."""
        ...


class Transposed:
    """The adjoint of an operator as an operator: aggregates along out-edges with the same plan."""

    def __init__(self, operator: AggregationOperator) -> None:
        self._operator = operator
        self.trace, self.size = operator.trace, operator.size.transposed

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        rows, columns = self._operator.shape
        return columns, rows

    def apply(self, x: Array) -> Array:
        """Return ``Aᵀ x``.

        Collective.
        """
        return self._operator.apply_transpose(x)

    def apply_transpose(self, gradient: Array) -> Array:
        """Return ``A g``.

        Collective.
        """
        return self._operator.apply(gradient)
