"""Attention by relation as a torch function: each relation has its own maps and scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.attention import AttentionInput, AttentionOperator, RelationScores
from hpcgnn.autograd.attention.head_passes import new_empty, rows_of
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import widened
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.kernels import EdgeDraw
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices


@dataclass(frozen=True, eq=False)
class RelationHeads:
    """How heads attend over an operator with rows for each relation.

    `rows` has the result rows (int32) of each relation's rows, see `RowsView.relation_rows`;
    `slope` is that of the leaky rectifier; `draw` as in `Heads`.
    """

    operator: AttentionOperator
    rows: Sequence[LocalIndices]
    slope: float
    draw: EdgeDraw | None = None

    def inputs(self, x: Tensor, targets: Tensor, weights: Tensor) -> AttentionInput:
        """Return the operands of the attention."""
        *bounds, _ = accumulate((len(rows) for rows in self.rows), initial=0)
        matrix = rows_of(weights.flatten(1))
        scores = RelationScores(matrix, bounds, weights.shape[2], self.slope)
        return AttentionInput(scores, rows_of(x), rows_of(targets), self.draw)


class _AttendRelations(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: RelationHeads, *tensors: Tensor) -> Tensor:
        _, targets, weights = tensors
        result = new_empty(targets, (len(targets), len(weights) * weights.shape[2]))
        inputs, keep = heads.inputs(*tensors), any(ctx.needs_input_grad)
        ctx.softmax = heads.operator.attend(inputs, rows_of(result), keep=keep)
        ctx.save_for_backward(*tensors, result)
        ctx.heads = heads
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, result = ctx.saved_tensors
        x, targets, weights = tensors
        softmax, ctx.softmax = ctx.softmax, ctx.softmax.released()
        upper, delta = gradients[0].contiguous(), torch.empty_like(targets)
        memory = memory_of(x)
        memory.kernels.attention_delta(rows_of(upper), rows_of(result), rows_of(delta))
        inputs = replace(ctx.heads.inputs(*tensors), fixed=not ctx.needs_input_grad[1])
        share = ctx.heads.operator.attend_transpose(inputs, softmax, rows_of(upper), rows_of(delta))
        of_values, of_targets, of_weights = (
            memory.tensor(array) for array in (share.values, share.targets, share.weights)
        )
        return None, of_values.to(x.dtype), of_targets, of_weights.view_as(weights)


@collective
def attend_relations(
    x: Tensor, own: Tensor, maps: Tensor, vectors: tuple[Tensor, Tensor], heads: RelationHeads
) -> Tensor:
    """Return the sum over relations of the means of ``W_r x_j``, weighted by a softmax.

    Logits are ``leaky_relu(<t_r, W_r x_i> + <a_r, W_r x_j>)``, and each softmax is over the edges
    of one relation. Collective, and so is its backward pass: all ranks must differentiate the same
    expression. Rows x_j travel once for all relations, and are mapped where they arrive. The result
    is (result rows, H, D), in the precision of the maps.

    `x` (input rows, F) is float32 or float64, or bfloat16 beside float32 weights; `own` (result
    rows, F), of the same dtype, is the input of the result's nodes. `maps` (H, R, D, F) are W_r of
    each head, `vectors` (H, R, D) each a_r of sources and t_r of targets; all are equal on all
    ranks, and their gradients are this rank's share.
    """
    source, target = vectors
    own = widened(own)
    rows = torch.from_numpy(np.concatenate(heads.rows).astype(np.int64))
    parts = torch.split(rows, [len(numbers) for numbers in heads.rows])
    # <t, W x> as <Wᵀ t, x>: reads the narrow input, not the values of all heads.
    folded = (maps * target[..., None]).sum(2).permute(1, 2, 0)
    matmul = arithmetic().matmul
    targets = torch.cat([matmul(own[part], map_) for part, map_ in zip(parts, folded, strict=True)])
    weights = torch.cat([maps, source[..., None]], dim=-1)
    means = _AttendRelations.apply(heads, x, targets, weights)  # type: ignore[no-untyped-call]
    total = means.new_zeros(len(own), means.shape[1]).index_add(0, rows, means)
    return total.view(len(own), len(maps), maps.shape[2])
