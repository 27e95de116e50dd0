"""Aggregates of mapped rows with a share of the rows themselves: ``A Y + s Y₀ + b``.

Where own rows and neighbours have one map, ``Y = X W``, this takes one dense product each way where
two maps take two.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hpcgnn.autograd.aggregate import applied
from hpcgnn.autograd.ending import Ending, end_gradient, end_rows
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
        ending: Ending | None,
    ) -> Tensor:
        result = applied(operator.apply, rows)
        result.addcmul_(own, share.to(own.dtype))
        end_rows(result, bias, ending)
        ctx.operator, ctx.own_is_input, ctx.ending = operator, own is rows, ending
        ctx.save_for_backward(own, share, None if ending is None else result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        own, share, result = ctx.saved_tensors
        whole, ending = arithmetic().sums_are_whole, ctx.ending
        gradient, for_bias = end_gradient(
            gradients[0].contiguous(), result, ending, of_bias=not whole
        )
        if whole:
            for_bias = arithmetic().total(gradient)
        for_share = arithmetic().total_product(gradient, own).to(share.dtype)
        for_rows = applied(ctx.operator.apply_transpose, gradient)
        if ctx.own_is_input:
            for_rows.addcmul_(gradient, share.to(gradient.dtype))
            return None, for_rows, None, for_share, for_bias, None
        return None, for_rows, gradient * share, for_share, for_bias, None


def add_own_share(
    operator: AggregationOperator,
    rows: Tensor,
    own: tuple[Tensor, Tensor],
    bias: Tensor,
    ending: Ending | None = None,
) -> Tensor:
    """Return ``A Y + s Y₀ + b``, ended, (result rows, width), differentiable in all but A.

    Collective, and so is its backward pass. `rows` Y are (input rows, width), `own` the scalar s
    and Y₀, rows of the result, which may be `rows`; `bias` is (width,).
    """
    share, own_rows = own
    return _OwnShare.apply(  # type: ignore[no-untyped-call]
        operator, rows, own_rows, share, bias, ending
    )


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
