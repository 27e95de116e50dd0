"""What every layer multiplies with, wherever it comes from."""

from typing import Protocol

from hpcgnn.typing import Array

__all__ = ["AggregationOperator", "Transposed"]


class AggregationOperator(Protocol):
    """A linear map of node rows and its adjoint.

    `apply` and `apply_transpose` are collective over the ranks that share the operator, and satisfy
    ⟨A x, y⟩ = ⟨x, Aᵀ y⟩ summed over ranks.
    """

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
