"""Means over the neighbours of each relation, mapped and added up: ``Y + Σ_r S_r (M_r X) W_r``.

The means are one tall array with a row for every node and relation that meet, several times as
large as X. Under a resident schedule they wait for the backward pass. Under a sequential one they
are computed again there ("Sequential Aggregation and Rematerialization", case 2), and what they
leave takes the gradients of the means, relation by relation: of all layers together, only one tall
array is in memory at one time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.aggregate import applied
from hpcgnn.autograd.arithmetic import arithmetic
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.mixed import like_rows, widened
from hpcgnn.operator import AggregationOperator
from hpcgnn.typing import LocalIndices


class _RelationLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operator: AggregationOperator, rows: Sequence[LocalIndices], *tensors: Tensor
    ) -> Tensor:
        x, weights, out = tensors
        ctx.begun = operator.moment.now
        means, memory, weights = applied(operator.apply, x), memory_of(out), like_rows(weights, x)
        # Of 16 bits every addition would round.
        total = widened(out)
        for where, mine, weight in zip(rows, _parts(means, rows), weights, strict=True):
            mapped = arithmetic().product(mine, weight)
            with memory.ordered():
                kernels, sums = memory.kernels, memory.array(total)
                kernels.scatter_add_rows(memory.array(mapped), where, sums, half="bfloat16")
        if total is not out:
            out.copy_(total)
        ctx.mark_dirty(out)
        ctx.operator, ctx.rows = operator, rows
        ctx.computes_again = operator.size.is_sequential and not operator.size.is_kept
        ctx.save_for_backward(x if ctx.computes_again else means, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, weights = ctx.saved_tensors
        operator, rows, gradient = ctx.operator, ctx.rows, gradients[0].contiguous()
        means, memory = saved, memory_of(gradient)
        if ctx.computes_again:
            with operator.moment.again(ctx.begun):
                means = applied(operator.apply, saved)
        needs_input = ctx.needs_input_grad[2]
        for_means = means
        if needs_input and not ctx.computes_again:
            for_means = memory.empty(means, means.shape)
        for_weights = []
        parts = zip(rows, _parts(means, rows), _parts(for_means, rows), strict=True)
        for relation, (where, mine, for_mine) in enumerate(parts):
            theirs = memory.empty(gradient, (len(where), gradient.shape[1]))
            with memory.ordered():
                source, target = memory.array(gradient), memory.array(theirs)
                memory.kernels.gather_rows(source, where, target)
            for_weights.append(arithmetic().contract(mine, theirs))
            if needs_input:
                # Where means were computed again, over them: nobody else reads them.
                arithmetic().product(theirs, weights[relation].t(), for_mine)
        for_x = applied(operator.apply_transpose, for_means) if needs_input else None
        return None, None, for_x, torch.stack(for_weights), gradients[0]


def _parts(tall: Tensor, rows: Sequence[LocalIndices]) -> Iterator[Tensor]:
    """Return the rows of each relation."""
    return iter(torch.split(tall, [len(each) for each in rows]))


def relation_linear(
    operator: AggregationOperator,
    rows: Sequence[LocalIndices],
    x: Tensor,
    weights: Tensor,
    out: Tensor,
) -> Tensor:
    """Add the mapped means of every relation to `out`, and return it; differentiable.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    Parameters
    ----------
    operator
        The means M_r, one under the other, of `Aggregation.MEAN_BY_RELATION`.
    rows
        For each relation (m_r,) int32 rows of `out` that its means belong to, CuPy arrays for rows
        on a GPU; they may repeat, and then add up in order on the CPU, in any order on a GPU.
    x
        (input rows, in_width) float32 or float64, or bfloat16 beside float32 weights.
    weights
        (R, in_width, out_width).
    out
        (k, out_width), C-contiguous, of the dtype of `x` and in the same place; it is changed, so
        that nothing may have saved it for its backward pass.
    """
    return _RelationLinear.apply(  # type: ignore[no-untyped-call]
        operator, tuple(rows), x, weights, out
    )
