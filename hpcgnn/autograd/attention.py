"""Attention over the edges of a graph as a torch function; coefficients are never stored.

Values are the projected input, computed for some heads at a time, in the forward pass and again in
the backward one: no array of all heads but the result waits between the passes, and what is in
memory or on the wire at one time shrinks with the number of passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hpcgnn.autograd.attention_passes import (
    PassBuffer,
    PassGradients,
    TargetMap,
    columns_of,
    numbers,
    passes,
    rows_of,
)
from hpcgnn.autograd.attention_shared import SharedLayer, attend_shared
from hpcgnn.autograd.dropout import DropoutKey
from hpcgnn.autograd.memory import memory_of
from hpcgnn.sparse import (
    AdditiveScores,
    AttentionOperator,
    EdgeDraw,
    Scores,
    Softmax,
    heads_share_input,
)
from hpcgnn.typing import FloatArray

__all__ = ["Heads", "ScoresOf", "attend", "edge_draw"]

ScoresOf: TypeAlias = Callable[[FloatArray], Scores]
"""Makes the scores of edges from their weights."""


@dataclass(frozen=True, eq=False)
class Heads:
    """How the heads of a layer attend.

    Parameters
    ----------
    operator
        The pattern of edges.
    make_scores
        Makes the scores of the edges from the weights of some heads.
    average
        Whether the result is the mean of the heads, and not all of them side by side.
    draw
        Edges and weights to leave out, of `edge_draw`.
    """

    operator: AttentionOperator
    make_scores: ScoresOf
    average: bool = False
    draw: EdgeDraw | None = None

    def scores(self, weights: Tensor, heads: slice) -> tuple[Scores, EdgeDraw | None]:
        """Return the scores of some heads and what they leave out.

        Not collective.
        """
        draw = None if self.draw is None else self.draw.of_heads(heads.start)
        return self.make_scores(rows_of(weights[heads])), draw

    def shared(self, in_width: int, weights: Tensor) -> SharedLayer | None:
        """Return the layer for which attention comes before projection; None where it must not.

        Not collective.
        """
        pattern, scores = self.operator.whole, self.make_scores(rows_of(weights))
        if pattern is None or not isinstance(scores, AdditiveScores):
            return None
        if not heads_share_input(in_width, *weights.shape):
            return None
        return SharedLayer(pattern, scores.slope, self.average, self.draw, self.operator.trace)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        projection: Tensor,
        own: Tensor,
        target_map: Tensor,
        weights: Tensor,
        bias: Tensor,
        heads: Heads,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        by_pass, softmaxes = [], []
        targets = TargetMap(own, target_map).targets
        result = numbers(targets, (len(targets), len(bias)))
        if heads.average:
            result[:] = bias
        buffer, memory = PassBuffer(x, weights), memory_of(x)
        for part, columns in passes(weights):
            scores, draw = heads.scores(weights, part)
            values = buffer.project(projection[columns])
            shares = rows_of(columns_of(targets, part, weights))
            if heads.average:
                out, shift = numbers(targets, (len(targets), values.shape[1])), None
                by_pass.append(out)
            else:
                out, shift = result[:, columns], rows_of(bias[columns])
            arguments = scores, values, shares, draw, memory.array(out)
            with memory.ordered():
                softmaxes.append(heads.operator.attend(*arguments, bias=shift, keep=keep))
            if heads.average:
                for head in out.chunk(part.stop - part.start, dim=1):
                    result.add_(head, alpha=1 / len(weights))
        # Saved twice, it might be computed twice.
        others = [] if own is x else [own]
        outs = by_pass or [result]
        ctx.save_for_backward(x, projection, target_map, weights, bias, *outs, *others)
        ctx.heads, ctx.softmaxes, ctx.own_is_input = heads, softmaxes, own is x
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, projection, matrix, weights, bias, *outs = ctx.saved_tensors
        target_map = TargetMap(x if ctx.own_is_input else outs.pop(), matrix)
        targets, heads, softmaxes = target_map.targets, ctx.heads, ctx.softmaxes
        # The graph may live longer than this pass; the values of other ranks need not.
        ctx.softmaxes = [Softmax(each.lse, None) for each in softmaxes]
        (gradient,) = gradients
        by_pass = PassGradients(gradient.contiguous(), outs, weights, bias, heads.average)
        for_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        for_projection, for_weights = torch.empty_like(projection), torch.empty_like(weights)
        for_targets = torch.empty_like(targets)
        buffer, memory = PassBuffer(x, weights), memory_of(x)
        for index, (part, columns) in enumerate(passes(weights)):
            scores, draw = heads.scores(weights, part)
            values = buffer.project(projection[columns])
            shares = rows_of(columns_of(targets, part, weights))
            softmax, softmaxes[index] = softmaxes[index], None
            with memory.ordered():
                found = heads.operator.attend_transpose(
                    scores, values, shares, softmax, *by_pass.of(index, part, columns), draw
                )
            del softmax
            for_values = memory.tensor(found.values)
            if for_x is not None:
                for_x.addmm_(for_values, projection[columns])
            torch.mm(for_values.t(), x, out=for_projection[columns])
            for_weights[part] = memory.tensor(found.weights)
            columns_of(for_targets, part, weights)[:] = memory.tensor(found.targets)
        into = for_x if ctx.own_is_input else None
        for_own, for_map = target_map.gradients(for_targets, into, needed=ctx.needs_input_grad[2])
        return for_x, for_projection, for_own, for_map, for_weights, gradient.sum(0), None


def attend(
    x: Tensor,
    projection: Tensor,
    own: Tensor,
    target_map: Tensor,
    weights: Tensor,
    bias: Tensor,
    heads: Heads,
) -> Tensor:
    """Return, for each row and head, the mean of its columns' values weighted by a softmax.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    With `AdditiveScores` this is graph attention (GAT; SAR paper, equation 3), with `DynamicScores`
    GATv2. The values are ``x projectionᵀ``.

    Parameters
    ----------
    x
        (input rows, F) float32 or float64, where the pattern is.
    projection
        (H * D, F), a head after the other.
    own
        (result rows, F), same dtype: the input of the result's nodes, which may be `x`.
    target_map
        (H, F) or (H * D, F), as the scores take the rows' share, ``own target_mapᵀ``.
    weights
        (H, D), equal on all ranks; its gradient is this rank's share.
    bias
        (H * D,), or (D,) where heads are averaged, to add to every row.
    heads
        The pattern, and how it is used.

    Returns
    -------
    Tensor
        (result rows, H * D), or (result rows, D); the bias alone for rows without edges.
    """
    shared = heads.shared(x.shape[1], weights)
    if shared is not None:
        return attend_shared(x, projection, own, target_map, weights, bias, shared)
    result: Tensor = _Attend.apply(  # type: ignore[no-untyped-call]
        x, projection, own, target_map, weights, bias, heads
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
