"""The protocol of aggregation operators, and wrappers of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from hpcgnn.comm import RunPosition
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

RankSums: TypeAlias = Callable[[Array], None]
"""Replaces an array by its sum over the block rows; collective, equal results on all ranks."""

Meanwhile: TypeAlias = Callable[[], None]
"""Work that is independent of a product. An operator may call it once while rows travel; if it does
not, the caller does the work itself."""


@dataclass(frozen=True)
class OperatorSize:
    """Sizes summed over all block rows, equal on all ranks, so that all ranks decide the same.

    `num_moved` counts the rows and partial sums that one product moves between ranks. `is_kept`
    says that the product with its one input is stored, see `CachedProduct`; `is_sequential` that
    exchanges hold few ghosts at a time, so memory matters more than a second product;
    `chooses_columns` that the operator is a `ChoosingOperator`.
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
    ⟨A x, y⟩ = ⟨x, Aᵀ y⟩ summed over ranks. `run_position` numbers its products.
    """

    trace: TraceRecorder
    size: OperatorSize
    run_position: RunPosition

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x`` for `x` of (input rows, width)."""

    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g`` for `gradient` of (result rows, width)."""


class ChoosingOperator(AggregationOperator, Protocol):
    """An operator with several relations, whose entries can read the columns of their relation.

    Rows then have a block of columns for each relation.
    """

    def apply_chosen(self, x: Array, num_relations: int) -> Array:
        """Return products (result rows, w) with the entries' blocks of `x` (input rows, R w)."""

    def apply_chosen_transpose(self, gradient: Array, num_relations: int) -> Array:
        """Return the adjoint (input rows, R w) for `gradient` of (result rows, w)."""


class Transposed:
    """The adjoint of an operator, which aggregates along out-edges with the same plan."""

    def __init__(self, operator: AggregationOperator) -> None:
        self._operator = operator
        self.trace, self.size = operator.trace, operator.size.transposed
        self.run_position = operator.run_position

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


class CachedProduct:
    """An operator A with a stored product, that with one C-contiguous input x.

    Neither x nor the product may be changed; the adjoint takes any rows.
    """

    @collective
    def __init__(self, operator: AggregationOperator, x: Array) -> None:
        self._operator, self._x = operator, x
        self.trace, self.size = operator.trace, replace(operator.size, is_kept=True)
        self.run_position = operator.run_position
        self.product = operator.apply(x)

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._operator.shape

    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x``; raises `ValueError` if `x` is another array than that of the product."""
        del meanwhile
        # Empty arrays have no address.
        if x.shape != self._x.shape or (x.size > 0 and _address(x) != _address(self._x)):
            raise ValueError("the product was made for other rows")
        return self.product

    @collective
    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g``."""
        return self._operator.apply_transpose(gradient, meanwhile)


def _address(array: Any) -> int:
    """Return the address of an array on the host or on a GPU."""
    on_gpu = getattr(array, "__cuda_array_interface__", None)
    return (on_gpu or array.__array_interface__)["data"][0]
