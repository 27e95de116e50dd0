"""What attention layers multiply with, wherever it comes from."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hpcgnn.attention.scores import Scores
from hpcgnn.attention.shared import WholePattern
from hpcgnn.kernels import EdgeDraw, Gradients
from hpcgnn.operator import AggregationOperator
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray


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

    @collective
    def attend(
        self,
        scores: Scores,
        values: Array,
        targets: FloatArray,
        draw: EdgeDraw | None,
        out: FloatArray,
        *,
        bias: FloatArray | None = None,
        keep: bool,
    ) -> Softmax:
        """Write, for each row and head, the mean of its columns' values weighted by the softmax.

        Parameters
        ----------
        scores
            The scores of the edges, with weights that are equal on all ranks.
        values
            (columns, H * D), C-contiguous, in the dtype of targets, or bfloat16 as uint16.
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

    @collective
    def attend_transpose(
        self,
        scores: Scores,
        values: Array,
        targets: FloatArray,
        softmax: Softmax,
        gradient: FloatArray,
        delta: FloatArray,
        draw: EdgeDraw | None,
    ) -> Gradients:
        """Return the gradients of values, targets and weights; weights' are this rank's share.

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
