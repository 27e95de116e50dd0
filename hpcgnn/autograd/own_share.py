"""Aggregates of mapped rows with a share of the rows themselves: ``A Y + s Y₀ + b``.

Where own rows and neighbours have one map, ``Y = X W``, this takes one dense product each way where
two maps take two.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hpcgnn.autograd.aggregate import applied
from hpcgnn.autograd.ending import end_gradient, end_rows
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import row_chunks, widened
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.operator import AggregationOperator


class _OwnShare(Function):
    @staticmethod
    def forward(
        ctx: Any,
        operator: AggregationOperator,
        rows: Tensor,
        own: Tensor,
        share: Tensor,
        bias: Tensor,
    ) -> Tensor:
        result = applied(operator.apply, rows)
        result += own * share
        end_rows(result, bias, None)
        ctx.operator, ctx.own_is_input = operator, own is rows
        ctx.save_for_backward(own, share)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own, share = ctx.saved_tensors
        gradient, whole = gradients[0].contiguous(), arithmetic().sums_are_whole
        _, for_bias = end_gradient(gradient, None, None, of_bias=not whole)
        if whole:
            for_bias = arithmetic().total(gradient)
        for_share = arithmetic().total(gradient * own).sum().to(share.dtype)
        for_own = gradient * share
        for_rows = applied(ctx.operator.apply_transpose, gradient)
        if ctx.own_is_input:
            return None, for_rows.add_(for_own), None, for_share, for_bias
        return None, for_rows, for_own, for_share, for_bias


def add_own_share(
    operator: AggregationOperator, rows: Tensor, own: Tensor, share: Tensor, bias: Tensor
) -> Tensor:
    """Return ``A Y + s Y₀ + b``, (result rows, width), differentiable in all but A.

    Collective, and so is its backward pass. `rows` Y are (input rows, width), `own` Y₀ those of the
    result, which may be `rows`; `share` s is a scalar, `bias` (width,).
    """
    return _OwnShare.apply(operator, rows, own, share, bias)  # type: ignore[no-untyped-call]


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, rows: Tensor, share: Tensor) -> Tensor:
        ctx.save_for_backward(rows, share)
        out = memory_of(rows).empty(rows, rows.shape)
        for chunk in row_chunks(rows):
            out[chunk] = (share[None] * rows[chunk]).to(rows.dtype) + total[chunk]
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, share = ctx.saved_tensors
        gradient, for_share = gradients[0], torch.zeros_like(share)
        for_rows = memory_of(rows).empty(rows, rows.shape)
        # Without rows too: where sums are of all ranks, all add up.
        for chunk in row_chunks(rows) or [slice(0)]:
            wide = widened(gradient[chunk])
            for_rows[chunk] = share[None] * wide
            for_share += arithmetic().total(wide * rows[chunk]).sum()
        return gradient, for_rows, for_share


def add_share(total: Tensor, rows: Tensor, share: Tensor) -> Tensor:
    """Return ``T + s Y`` of rows (any, width) and a scalar s, differentiable in all three.

    Rows of 16 bits are not widened at once.
    """
    return _Share.apply(total, rows, share)  # type: ignore[no-untyped-call]
