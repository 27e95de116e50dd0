"""An operator that multiplies one input only, which never changes, and does so once."""

from dataclasses import replace
from typing import Any

from hpcgnn.sparse.operator import AggregationOperator
from hpcgnn.typing import Array

__all__ = ["KeptProduct"]


class KeptProduct:
    """An operator and its product with one input, which `apply` returns.

    Collective. An `AggregationOperator`; its adjoint takes any rows.

    Parameters
    ----------
    operator
        The matrix A.
    x
        (input rows, width), C-contiguous. Nobody may change it, nor the product.
    """

    def __init__(self, operator: AggregationOperator, x: Array) -> None:
        self._operator, self._x = operator, x
        self.trace, self.size = operator.trace, replace(operator.size, is_kept=True)
        self.product = operator.apply(x)

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._operator.shape

    def apply(self, x: Array) -> Array:
        """Return ``A x``.

        Not collective.

        Raises
        ------
        ValueError
            When `x` is not the input that the product was made of.
        """
        # No rows have no place in memory.
        if x.shape != self._x.shape or (x.size > 0 and _place(x) != _place(self._x)):
            raise ValueError("the product with other rows is not at hand")
        return self.product

    def apply_transpose(self, gradient: Array) -> Array:
        """Return ``Aᵀ g``.

        Collective.
        """
        return self._operator.apply_transpose(gradient)


def _place(array: Any) -> int:
    """Return where an array of the host or of a GPU begins."""
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    place: int = (on_gpu or array.__array_interface__)["data"][0]
    return place
