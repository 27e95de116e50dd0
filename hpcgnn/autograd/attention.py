"""Attention over the edges of a graph as a torch function; coefficients are never stored."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hpcgnn.autograd.dropout import DropoutKey
from hpcgnn.sparse import Attended, AttentionOperator, EdgeDraw, Scores
from hpcgnn.typing import FloatArray

__all__ = ["ScoresOf", "attend", "edge_draw"]

ScoresOf: TypeAlias = Callable[[FloatArray], Scores]
"""Makes the scores of edges from their weights."""


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        targets: Tensor,
        weights: Tensor,
        bias: Tensor | None,
        operator: AttentionOperator,
        make_scores: ScoresOf,
        draw: EdgeDraw | None,
    ) -> Tensor:
        scores = make_scores(_rows(weights))
        keep = any(ctx.needs_input_grad)
        result = operator.attend(scores, _rows(values), _rows(targets), draw, keep=keep)
        out = torch.from_numpy(result.out)
        if bias is not None:
            # In place: a sum beside it would be a second tensor of all heads until the backward.
            out += bias
        ctx.save_for_backward(values, targets, weights, bias, out)
        ctx.arguments = operator, make_scores, draw
        ctx.lse, ctx.kept = result.lse, result.kept
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, targets, weights, bias, out = ctx.saved_tensors
        operator, make_scores, draw = ctx.arguments
        scores = make_scores(_rows(weights))
        added = None if bias is None else _rows(bias)
        attended = Attended(_rows(out), ctx.lse, ctx.kept, added)
        # The graph may live longer than this pass; the values of other ranks need not.
        ctx.kept = None
        found = operator.attend_transpose(
            scores, _rows(values), _rows(targets), attended, _rows(gradients[0]), draw
        )
        shares = (found.values, found.targets, found.weights)
        for_bias = None if bias is None else gradients[0].sum(0)
        return *(torch.from_numpy(each) for each in shares), for_bias, None, None, None


def _rows(x: Tensor) -> FloatArray:
    rows: FloatArray = x.detach().contiguous().numpy()
    return rows


def attend(
    operator: AttentionOperator,
    values: Tensor,
    targets: Tensor,
    weights: Tensor,
    make_scores: ScoresOf,
    *,
    bias: Tensor | None = None,
    draw: EdgeDraw | None = None,
) -> Tensor:
    """Return, for each row and head, the mean of its columns' values weighted by a softmax.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    With `AdditiveScores` this is graph attention (GAT; SAR paper, equation 3), with `DynamicScores`
    GATv2.

    Parameters
    ----------
    operator
        The pattern of edges.
    values
        (input rows, H * D) float32 or float64, on the CPU, a head after the other.
    targets
        (result rows, H) or (result rows, H * D), same dtype, as the scores take them.
    weights
        (H, D), equal on all ranks; its gradient is this rank's share.
    make_scores
        Makes the scores of the edges from the weights.
    bias
        (H * D,) to add to every row; None: nothing.
    draw
        Edges and weights to leave out, of `edge_draw`.

    Returns
    -------
    Tensor
        (result rows, H * D); the bias alone for rows without edges.
    """
    result: Tensor = _Attend.apply(  # type: ignore[no-untyped-call]
        values, targets, weights, bias, operator, make_scores, draw
    )
    return result


def edge_draw(key: DropoutKey | None, weight_p: float, edge_p: float) -> EdgeDraw | None:
    """Return what one step of a layer leaves out; None in evaluation and without dropout.

    Not collective.

    Parameters
    ----------
    key
        The draw of the layer, which node dropout uses too; None evaluates.
    weight_p, edge_p
        Probabilities, in [0, 1).
    """
    if key is None or weight_p == edge_p == 0.0:
        return None
    # Places of layers are not negative.
    weights, edges = key.at(-1 - 2 * key.place), key.at(-2 - 2 * key.place)
    return EdgeDraw(weights.word(), weight_p, edges.word(), edge_p)
