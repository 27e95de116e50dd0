"""What every layer multiplies with, wherever it comes from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from hpcgnn.comm import Moment
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

RankSums: TypeAlias = Callable[[Array], None]
"""Replaces an array by its sum over the block rows; collective, equal results on all ranks."""


Meanwhile: TypeAlias = Callable[[], None]
"""Work that needs nothing of a product. An operator may do it while rows travel, once; who hands it
over does it where the operator did not."""


@dataclass(frozen=True)
class OperatorSize:
    """Sums over all block rows, equal on all ranks, so that all ranks decide the same.

    `num_moved` are rows and partial sums that one product moves between ranks. `is_kept`: the
    product with the one input is at hand, see `KeptProduct`. `is_sequential`: exchanges have few
    ghosts in memory at one time; then memory is worth more than a second product.
    `chooses_columns`: the operator is a `ChoosingOperator`.
    """

    num_rows: int
    num_columns: int
    num_entries: int
    num_moved: int
    is_kept: bool = False
    is_sequential: bool = False
    chooses_columns: bool = False

    @property
    def transposed(self) -> "OperatorSize":
        """The sizes of the adjoint."""
        return replace(self, num_rows=self.num_columns, num_columns=self.num_rows, is_kept=False)


class AggregationOperator(Protocol):
    """A linear map of node rows and its adjoint.

    `apply` and `apply_transpose` are collective over the ranks that share the operator, and satisfy
    ⟨A x, y⟩ = ⟨x, Aᵀ y⟩ summed over ranks. `moment` numbers its products.
    """

    trace: TraceRecorder
    size: OperatorSize
    moment: Moment

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x`` for `x` of (input rows, width)."""

    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g`` for `gradient` of (result rows, width)."""


class ChoosingOperator(AggregationOperator, Protocol):
    """Of several relations: an entry can read those columns alone that are of its relation.

    Rows then have as many blocks of columns side by side as there are relations.
    """

    def apply_chosen(self, x: Array, num_relations: int) -> Array:
        """Return (result rows, w) products of each row with its block of `x`, (input rows, R w)."""

    def apply_chosen_transpose(self, gradient: Array, num_relations: int) -> Array:
        """Return (input rows, R w), the adjoint for `gradient` of (result rows, w)."""


class Transposed:
    """The adjoint of an operator as an operator: aggregates along out-edges with the same plan."""

    def __init__(self, operator: AggregationOperator) -> None:
        self._operator = operator
        self.trace, self.size = operator.trace, operator.size.transposed
        self.moment = operator.moment

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        rows, columns = self._operator.shape
        return columns, rows

    @collective
    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ x``."""
        return self._operator.apply_transpose(x, meanwhile)

    @collective
    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A g``."""
        return self._operator.apply(gradient, meanwhile)


class KeptProduct:
    """An operator A and its product with one input x, C-contiguous, which `apply` returns.

    Nobody may change x, nor the product; the adjoint takes any rows.
    """

    @collective
    def __init__(self, operator: AggregationOperator, x: Array) -> None:
        self._operator, self._x = operator, x
        self.trace, self.size = operator.trace, replace(operator.size, is_kept=True)
        self.moment = operator.moment
        self.product = operator.apply(x)

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._operator.shape

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x``; raises `ValueError` where `x` is not what the product was made of."""
        del meanwhile
        # No rows have no place in memory.
        if x.shape != self._x.shape or (x.size > 0 and _place(x) != _place(self._x)):
            raise ValueError("the product was made for other rows")
        return self.product

    @collective
    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g``."""
        return self._operator.apply_transpose(gradient, meanwhile)


def _place(array: Any) -> int:
    """Return where an array of the host or of a GPU begins."""
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]
