"""How an attention model scores an edge: what the fused kernels of each model need.

A score belongs to an edge and a head; it comes from the value of the column's node, the *target* of
the row's node and weights that all ranks hold. Values travel alone: shares of scores that belong to
a column are computed where they are used, from the same (perhaps rounded) numbers in the forward
and the backward pass.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from hpcgnn import kernels
from hpcgnn.kernels.arguments import Half
from hpcgnn.sparse.memory import LocalMatrix
from hpcgnn.sparse.softmax import SoftmaxState
from hpcgnn.typing import Array, FloatArray, GlobalIndices

__all__ = ["AdditiveScores", "BlockDraw", "EdgeDraw", "Gradients", "Scores", "kernel_draw"]

_HEAD_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class EdgeDraw:
    """Which edges one training step of an attention leaves out: functions of original ids.

    Parameters
    ----------
    weight_word, weight_p
        Key and probability of dropping a weight of an edge and head, after the softmax.
    edge_word, edge_p
        Key and probability of dropping an edge, before the softmax.
    """

    weight_word: int
    weight_p: float
    edge_word: int
    edge_p: float

    def of_heads(self, first: int) -> "EdgeDraw":
        """Return the draw of the heads from `first` on, counted from 0 again."""
        return replace(self, weight_word=(self.weight_word + first * _HEAD_STEP) % 2**64)


@dataclass(frozen=True, eq=False)
class BlockDraw:
    """An `EdgeDraw` for the nodes of a block.

    Parameters
    ----------
    draw
        Keys and probabilities.
    row_ids, column_ids
        int64 original ids of the state's rows and of the block's columns.
    """

    draw: EdgeDraw
    row_ids: GlobalIndices
    column_ids: GlobalIndices


@dataclass(frozen=True, eq=False)
class Gradients:
    """Where a backward pass adds up.

    Parameters
    ----------
    values
        (columns, H * D).
    targets
        Of the rows.
    weights
        Of the weights, this rank's share.
    """

    values: FloatArray
    targets: FloatArray
    weights: FloatArray


class Scores(Protocol):
    """The scores of an attention model; `heads` H of them an edge."""

    heads: int
    weights: FloatArray

    @property
    def narrow_targets(self) -> bool:
        """Whether targets are logits, which must not be rounded on the wire."""
        ...

    def forward(
        self,
        block: LocalMatrix,
        values: Array,
        targets: FloatArray,
        state: SoftmaxState,
        draw: BlockDraw | None,
        half: Half | None,
    ) -> None:
        """Add the edges of a block to the state of its rows.

        Not collective.
        """
        ...

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
        """Add the gradients through the edges of a block.

        Not collective.

        Parameters
        ----------
        block, transposed
            The block, and its transpose with all columns as rows.
        values, targets, draw, half
            As in `forward`.
        saved
            Log-sum-exps (R, H), gradient of the result (R, H * D), and <gradient, result> (R, H).
        gradients
            Added to.
        """
        ...


class AdditiveScores:
    """``leaky_relu(target_i + <a, z_j>)`` for each head: graph attention (GAT, ICLR 2018).

    Parameters
    ----------
    weights
        (H, D) a, C-contiguous: the share of the column's node; the row's is in the targets, (R, H).
    slope
        Of the rectifier for negative scores.
    """

    narrow_targets = True

    def __init__(self, weights: FloatArray, slope: float) -> None:
        self.weights, self.slope = weights, slope
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
        block.memory.kernels.attention_forward(
            block.indptr,
            block.indices,
            values,
            self._sources(block, values, half),
            targets,
            state.top,
            state.total,
            state.out,
            slope=self.slope,
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
        del block
        weight_draw, edge_draw = kernel_draw(draw, None)
        memory = transposed.memory
        by_source = memory.arrays.zeros((values.shape[0], self.heads), targets.dtype)
        memory.kernels.attention_backward(
            transposed.indptr,
            transposed.indices,
            values,
            self._sources(transposed, values, half),
            targets,
            *saved,
            gradients.values,
            by_source,
            gradients.targets,
            slope=self.slope,
            weights=self.weights,
            dweights=gradients.weights,
            dropout=weight_draw,
            edge_dropout=edge_draw,
            half=half,
            **transposed.attention_options,
        )

    def _sources(self, block: LocalMatrix, values: Array, half: Half | None) -> FloatArray:
        memory = block.memory
        found: FloatArray = memory.arrays.empty((values.shape[0], self.heads), self.weights.dtype)
        memory.kernels.attention_scores(values, self.weights, found, half=half)
        return found


def kernel_draw(
    draw: BlockDraw | None, block: LocalMatrix | None
) -> tuple[kernels.WeightDropout | None, tuple[int, float] | None]:
    """Return a draw as the kernels take it, for the stored rows of a block or for all rows.

    Not collective.
    """
    if draw is None:
        return None, None
    stored = None if block is None else block.rows
    row_ids = draw.row_ids if stored is None else draw.row_ids[stored]
    keys = draw.draw
    weight = (keys.weight_word, keys.weight_p, row_ids, draw.column_ids)
    return weight, (keys.edge_word, keys.edge_p)
