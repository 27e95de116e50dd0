"""Scores that weigh the sum of both nodes' features after the rectifier (GATv2)."""

from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse.memory import LocalMatrix
from hpcgnn.sparse.scores import BlockDraw, Gradients, kernel_draw
from hpcgnn.sparse.softmax import SoftmaxState
from hpcgnn.typing import Array, FloatArray

__all__ = ["DynamicScores"]


class DynamicScores:
    """``<a, leaky_relu(target_i + z_j)>`` for each head (Brody, Alon and Yahav, ICLR 2022).

    Parameters
    ----------
    weights
        (H, D) a, C-contiguous; targets are (R, H * D).
    slope
        Of the rectifier for negative sums.
    """

    narrow_targets = False

    def __init__(self, weights: FloatArray, slope: float) -> None:
        self.weights, self._slope = weights, slope
        self.heads = len(weights)

    def forward(
        self,
        block: LocalMatrix,
        values: Array,
        targets: FloatArray,
        state: SoftmaxState,
        draw: BlockDraw | None,
        half: Half | None,
    ) -> None:
        """Add the edges of a block to the state of its rows; see `Scores`.

        Not collective.
        """
        weight_draw, edge_draw = kernel_draw(draw, block)
        block.memory.kernels.attention_v2_forward(
            block.indptr,
            block.indices,
            values,
            targets,
            self.weights,
            state.top,
            state.total,
            state.out,
            slope=self._slope,
            rows=block.rows,
            dropout=weight_draw,
            edge_dropout=edge_draw,
            half=half,
            **block.attention_options,
        )

    def backward(
        self,
        block: LocalMatrix,
        transposed: LocalMatrix,
        values: Array,
        targets: FloatArray,
        saved: tuple[FloatArray, FloatArray, FloatArray],
        gradients: Gradients,
        draw: BlockDraw | None,
        half: Half | None,
    ) -> None:
        """Add the gradients through the edges of a block; see `Scores`.

        Not collective.
        """
        weight_draw, edge_draw = kernel_draw(draw, block)
        block.memory.kernels.attention_v2_backward_rows(
            block.indptr,
            block.indices,
            values,
            targets,
            self.weights,
            *saved,
            gradients.targets,
            gradients.weights,
            slope=self._slope,
            rows=block.rows,
            dropout=weight_draw,
            edge_dropout=edge_draw,
            half=half,
            **block.attention_options,
        )
        weight_draw, edge_draw = kernel_draw(draw, None)
        transposed.memory.kernels.attention_v2_backward_columns(
            transposed.indptr,
            transposed.indices,
            values,
            targets,
            self.weights,
            *saved,
            gradients.values,
            slope=self._slope,
            dropout=weight_draw,
            edge_dropout=edge_draw,
            half=half,
            **transposed.attention_options,
        )
