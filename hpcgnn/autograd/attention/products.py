"""Attention by inner products of queries and keys as a torch function (transformers).

A row's logit for a column is the product of its target and the column's key; coefficients are never
stored. The function takes values and keys, not the maps that make them: a layer that computes them
again for the backward pass keeps neither. Heads are processed in passes, as in `attend`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.attention import AttentionInput, AttentionOperator, ProductScores
from hpcgnn.autograd.attention.head_passes import columns_of, new_empty, passes, rows_of
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import widened
from hpcgnn.kernels import EdgeDraw
from hpcgnn.spmd import collective


@dataclass(frozen=True, eq=False)
class ProductHeads:
    """How the heads of a layer attend; `draw`, from `edge_draw`, has what to leave out."""

    operator: AttentionOperator
    draw: EdgeDraw | None = None

    def scores(self, weights: Tensor, part: slice) -> tuple[ProductScores, EdgeDraw | None]:
        """Return the scores of some heads, and their draw of what to leave out."""
        draw = None if self.draw is None else self.draw.of_heads(part.start)
        return ProductScores(rows_of(weights[part])), draw


class _AttendProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pairs: Tensor, targets: Tensor, weights: Tensor, heads: ProductHeads
    ) -> tuple[Tensor, Tensor]:
        keep, memory = any(ctx.needs_input_grad), memory_of(pairs)
        result = new_empty(targets, targets.shape)
        lse = new_empty(targets, (len(targets), len(weights)))
        softmaxes = []
        for part, columns in passes(_by_head(targets, weights)):
            scores, draw = heads.scores(weights, part)
            operands = rows_of(columns_of(pairs, part, weights)), rows_of(targets[:, columns])
            into = memory.array(result[:, columns])
            with memory.ordered():
                inputs = AttentionInput(scores, *operands, draw)
                softmax = heads.operator.attend(inputs, into, keep=keep)
            lse[:, part] = memory.tensor(softmax.lse)
            softmaxes.append(softmax)
        ctx.save_for_backward(pairs, targets, weights, result)
        ctx.heads, ctx.softmaxes = heads, softmaxes
        ctx.set_materialize_grads(False)
        return result, lse

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        pairs, targets, weights, result = ctx.saved_tensors
        heads, softmaxes, memory = ctx.heads, ctx.softmaxes, memory_of(pairs)
        # The graph may live longer than this pass; the values of other ranks need not.
        ctx.softmaxes = [softmax.released() for softmax in softmaxes]
        gradient, for_lse = gradients
        gradient = torch.zeros_like(result) if gradient is None else gradient.contiguous()
        for_pairs, for_targets = torch.empty_like(pairs), torch.empty_like(targets)
        for_weights = torch.empty_like(weights)
        for index, (part, columns) in enumerate(passes(_by_head(targets, weights))):
            scores, draw = heads.scores(weights, part)
            operands = rows_of(columns_of(pairs, part, weights)), rows_of(targets[:, columns])
            delta = new_empty(targets, (len(targets), part.stop - part.start))
            softmax, softmaxes[index] = softmaxes[index], None
            with memory.ordered():
                pair = memory.array(gradient[:, columns]), memory.array(result[:, columns])
                memory.kernels.attention_delta(*pair, memory.array(delta))
            if for_lse is not None:
                # The derivatives of the log-sum-exp by its logits are the coefficients, so its
                # gradient is subtracted from the inner products.
                delta -= for_lse[:, part]
            rows = rows_of(gradient[:, columns]), rows_of(delta)
            with memory.ordered():
                inputs = AttentionInput(scores, *operands, draw)
                shares = heads.operator.attend_transpose(inputs, softmax, *rows)
            columns_of(for_pairs, part, weights)[:] = memory.tensor(shares.values)
            for_targets[:, columns] = memory.tensor(shares.targets)
            for_weights[part] = memory.tensor(shares.weights)
        return for_pairs, for_targets, for_weights, None


def _by_head(targets: Tensor, weights: Tensor) -> Tensor:
    """Return an uninitialised tensor (H, D), whose shape `passes` reads."""
    return targets.new_empty(len(weights), targets.shape[1] // len(weights))


@collective
def attend_products(
    pairs: Tensor, targets: Tensor, weights: Tensor, heads: ProductHeads
) -> tuple[Tensor, Tensor]:
    """Return, for each row and head, the mean of its columns' values weighted by a softmax.

    ``softmax_j <target_i, k_j + W_e e_ij>`` weighs ``v_j + W_e e_ij`` ("Masked label prediction",
    Shi et al. 2021, equations 3 and 4; the term of the edge where the operator has features of
    edges). Collective, and so is its backward pass: all ranks must differentiate the same
    expression.

    The first result is (rows, H * D), in the dtype of the targets; zeros for rows without edges.
    The second is (rows, H) the log of the sum of exponentiated logits, which is needed to join
    results over several sets of edges; -inf for rows without edges. Both are differentiable.

    `pairs` (input rows, H * 2 D) float32 or float64, or bfloat16, are k_j and then v_j of each
    head; `targets` (rows, H * D) float32 or float64 include the scale of the products. `weights`
    (H, D * F) are the maps W_e, (H, 0) without features, equal on all ranks; their gradient is this
    rank's share.
    """
    return _AttendProducts.apply(  # type: ignore[no-untyped-call]
        pairs, widened(targets), weights, heads
    )
