"""What attention layers multiply with, wherever it comes from."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from hpcgnn.attention.scores import AttentionInput
from hpcgnn.attention.shared import WholePattern
from hpcgnn.comm import Instant
from hpcgnn.kernels import Gradients
from hpcgnn.operator import AggregationOperator
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray


@dataclass(frozen=True, eq=False)
class Softmax:
    """What the backward pass of an attention needs of the forward pass beside the result.

    `lse` (rows, H) is the log of the sum of exponentiated scores, -inf for rows without edges;
    `kept` are values of other ranks from the forward pass, None when they are to be fetched again,
    rounded as they were when `drawn`; None: nothing was.
    """

    lse: FloatArray
    kept: tuple[Array, ...] | None
    drawn: Instant | None = None

    def released(self) -> "Softmax":
        """Return the same without what is kept."""
        return replace(self, kept=None)


@runtime_checkable
class AttentionOperator(AggregationOperator, Protocol):
    """A pattern of edges over which rows attend to columns, without any array of edges."""

    @property
    def whole(self) -> WholePattern | None:
        """The pattern where one rank holds all of it; None on all ranks otherwise."""

    @collective
    def attend(
        self, given: AttentionInput, out: FloatArray, *, bias: FloatArray | None = None, keep: bool
    ) -> Softmax:
        """Write, for each row and head, the mean of its columns' values weighted by the softmax.

        `out` (rows, H * D) is overwritten, perhaps columns of a wider array: the means, which are
        zero for rows without edges, plus the bias (H * D,). `keep` tells whether a backward pass
        will follow.
        """

    @collective
    def attend_transpose(
        self, given: AttentionInput, softmax: Softmax, gradient: FloatArray, delta: FloatArray
    ) -> Gradients:
        """Return the gradients of values, targets and weights; weights' are this rank's share.

        `softmax` is what `attend` returned for the same input, `gradient` (rows, H * D) that of the
        result, `delta` (rows, H) inner products of the gradient and the result without bias.
        """
