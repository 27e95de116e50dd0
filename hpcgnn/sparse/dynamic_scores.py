"""Scores that weigh the sum of both nodes' features after the rectifier (GATv2)."""

import numpy as np

from hpcgnn import kernels
from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse.local import LocalCSR
from hpcgnn.sparse.scores import BlockDraw, Gradients, kernel_draw
from hpcgnn.sparse.softmax import SoftmaxState
from hpcgnn.typing import Array, FloatArray

__all__ = ["DynamicScores"]


class DynamicScores:
    """``<a, leaky_relu(target_i + z_j)>`` for each head (Brody, Alon and Yahav, ICLR 2022).

    Parameters
    ----------
    weights
        (H, D) a; targets are (R, H * D).
    slope
        Of the rectifier for negative sums.
    """

    narrow_targets = False

    def __init__(self, weights: FloatArray, slope: float) -> None:
        self.weights, self._slope = np.ascontiguousarray(weights), slope
        self.heads = len(weights)

    def forward(
        self,
        block: LocalCSR,
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
        kernels.attention_v2_forward(
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
        )

    def backward(
        self,
        block: LocalCSR,
        transposed: LocalCSR,
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
        kernels.attention_v2_backward_rows(
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
        )
        weight_draw, edge_draw = kernel_draw(draw, None)
        kernels.attention_v2_backward_columns(
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
        )
