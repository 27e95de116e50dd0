"""How an attention model scores an edge: which operands its fused kernels get.

A score belongs to an edge and a head; it comes from the value of the column's node, the *target* of
the row's node and weights that all ranks hold. Values travel alone: shares of scores that belong to
a column are computed where they are used, from the same (perhaps rounded) numbers in the forward
and the backward pass.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from hpcgnn.kernels import (
    AdditiveScore,
    Draw,
    DynamicScore,
    Gradients,
    Score,
    SoftmaxGradient,
    SoftmaxState,
)
from hpcgnn.kernels.arguments import WireFormat
from hpcgnn.sparse.memory import LocalMatrix, Memory
from hpcgnn.typing import Array, FloatArray


class Scores(ABC):
    """The scores of an attention model; `heads` H of them an edge.

    Parameters
    ----------
    weights
        (H, D), C-contiguous.
    slope
        Of the leaky rectifier for negative arguments.
    """

    narrow_targets: ClassVar[bool]
    """Whether targets are logits, (R, H), which must not be rounded on the wire."""

    def __init__(self, weights: FloatArray, slope: float) -> None:
        self.weights, self.slope = weights, slope
        self.heads = len(weights)

    @abstractmethod
    def operands(
        self, memory: Memory, values: Array, targets: FloatArray, half: WireFormat | None = None
    ) -> Score:
        """Return what the kernels of a memory take; `half` says what uint16 values hold."""

    def forward(
        self, block: LocalMatrix, score: Score, state: SoftmaxState, draw: Draw | None
    ) -> None:
        """Add the edges of a block to the state of its rows; `draw` names all rows."""
        own = None if draw is None else draw.of_stored(block.rows)
        block.memory.kernels.attention_forward(block.edges, score, state, own)

    def backward(
        self,
        block: LocalMatrix,
        transposed: LocalMatrix,
        score: Score,
        saved: SoftmaxGradient,
        gradients: Gradients,
        draw: Draw | None,
    ) -> None:
        """Add the gradients through the edges of a block.

        Parameters
        ----------
        block, transposed
            The block, and its transpose with all columns as rows.
        score, draw
            As in `forward`.
        saved
            Of all rows.
        gradients
            Added to, those of the weights among them.
        """
        del block
        kernels = transposed.memory.kernels
        kernels.attention_backward(transposed.edges, score, saved, gradients, draw)


class AdditiveScores(Scores):
    """``leaky_relu(target_i + <a, z_j>)`` for each head: graph attention (GAT, ICLR 2018).

    The weights are a, the share of the column's node; the row's is in the targets, (R, H).
    """

    narrow_targets = True

    def operands(
        self, memory: Memory, values: Array, targets: FloatArray, half: WireFormat | None = None
    ) -> Score:
        """Return what the kernels of a memory take; see `Scores`."""
        source = memory.arrays.empty((values.shape[0], self.heads), self.weights.dtype)
        memory.kernels.attention_scores(values, self.weights, source, half=half)
        return AdditiveScore(
            values=values,
            target=targets,
            slope=self.slope,
            half=half,
            source=source,
            weights=self.weights,
        )

    def backward(
        self,
        block: LocalMatrix,
        transposed: LocalMatrix,
        score: Score,
        saved: SoftmaxGradient,
        gradients: Gradients,
        draw: Draw | None,
    ) -> None:
        """Add the gradients through the edges of a block; see `Scores`."""
        arrays, shape = transposed.memory.arrays, (score.values.shape[0], self.heads)
        with_source = replace(gradients, source=arrays.zeros(shape, score.target.dtype))
        super().backward(block, transposed, score, saved, with_source, draw)


class DynamicScores(Scores):
    """``<a, leaky_relu(target_i + z_j)>`` for each head (Brody, Alon and Yahav, ICLR 2022).

    The weights are a; targets are (R, H * D).
    """

    narrow_targets = False

    def operands(
        self, memory: Memory, values: Array, targets: FloatArray, half: WireFormat | None = None
    ) -> Score:
        """Return what the kernels of a memory take; see `Scores`."""
        del memory
        return DynamicScore(
            values=values, target=targets, slope=self.slope, half=half, vector=self.weights
        )

    def backward(
        self,
        block: LocalMatrix,
        transposed: LocalMatrix,
        score: Score,
        saved: SoftmaxGradient,
        gradients: Gradients,
        draw: Draw | None,
    ) -> None:
        """Add the gradients through the edges of a block; see `Scores`."""
        own = None if draw is None else draw.of_stored(block.rows)
        kernels = block.memory.kernels
        kernels.attention_backward_rows(block.edges, score, saved, gradients, own)
        super().backward(block, transposed, score, saved, gradients, draw)
