"""What every layer multiplies with, wherever it comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from hpcgnn.sparse.scores import EdgeDraw, Gradients, Scores
from hpcgnn.sparse.shared_heads import WholePattern
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray

__all__ = [
    "AggregationOperator",
    "AttentionOperator",
    "OperatorSize",
    "RankSums",
    "Softmax",
    "Transposed",
]

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
    is_kept
        Whether the product with the one input is at hand, see `KeptProduct`.
    """

    num_rows: int
    num_columns: int
    num_entries: int
    num_moved: int
    is_kept: bool = False

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


@dataclass(frozen=True, eq=False)
class Softmax:
    """What the backward pass of an attention needs of the forward pass beside the result.

    Parameters
    ----------
    lse
        (rows, H) log of the sum of exponentiated scores; -inf for rows without edges.
    kept
        Values of other ranks from the forward pass; None when they are to be fetched again.
    """

    lse: FloatArray
    kept: tuple[Array, ...] | None


@runtime_checkable
class AttentionOperator(AggregationOperator, Protocol):
    """A pattern of edges over which rows attend to columns, without any array of edges."""

    @property
    def whole(self) -> WholePattern | None:
        """The pattern where one rank holds all of it; None on all ranks otherwise."""
        ...

    def attend(
        self,
        scores: Scores,
        values: FloatArray,
        targets: FloatArray,
        draw: EdgeDraw | None,
        out: FloatArray,
        *,
        bias: FloatArray | None = None,
        keep: bool,
    ) -> Softmax:
        """Write, for each row and head, the mean of its columns' values weighted by the softmax.

        Collective.

        Parameters
        ----------
        scores
            The scores of the edges, with weights that are equal on all ranks.
        values
            (columns, H * D), C-contiguous.
        targets
            (rows, H) or (rows, H * D), as `scores` takes them.
        draw
            Edges and weights to leave out; None: none.
        out
            (rows, H * D), overwritten, perhaps columns of a wider array: the means, which are zero
            for rows without edges, plus the bias.
        bias
            (H * D,) to add to every row; None: nothing.
        keep
            Whether a backward pass will follow.
        """
        ...

    def attend_transpose(
        self,
        scores: Scores,
        values: FloatArray,
        targets: FloatArray,
        softmax: Softmax,
        gradient: FloatArray,
        delta: FloatArray,
        draw: EdgeDraw | None,
    ) -> Gradients:
        """Return the gradients of values, targets and weights; weights' are this rank's share.

        Collective.

        Parameters
        ----------
        scores, values, targets, draw
            As in `attend`.
        softmax
            What it returned.
        gradient
            (rows, H * D) of the result.
        delta
            (rows, H) inner products of the gradient and the result without bias.
        """
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
