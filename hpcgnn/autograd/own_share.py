"""Aggregates with a share of the rows themselves, ``A Y + s Y₀ + b``, and maps of such.

Where own rows and neighbours have one map, ``Y = X W``, this takes one dense product each way where
two maps take two.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hpcgnn.autograd.aggregate import applied
from hpcgnn.autograd.epilogue import Epilogue, apply_epilogue
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import cache_chunks, like_rows, row_chunks, widened
from hpcgnn.autograd.numerics.plain import arithmetic, before_epilogue, with_epilogue
from hpcgnn.operator import AggregationOperator


class _OwnShare(Function):
    @staticmethod
    def forward(
        ctx: Any, operator: AggregationOperator, rows: Tensor, own: Tensor, share: Tensor
    ) -> Tensor:
        result = applied(operator.apply, rows)
        result.addcmul_(own, share.to(own.dtype))
        ctx.operator, ctx.own_is_input = operator, own is rows
        ctx.save_for_backward(own, share)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (own, share), gradient = ctx.saved_tensors, gradients[0]
        for_share = arithmetic().total_product(gradient, own).to(share.dtype)
        for_rows = applied(ctx.operator.apply_transpose, gradient)
        if ctx.own_is_input:
            for_rows.addcmul_(gradient, share.to(gradient.dtype))
            return None, for_rows, None, for_share
        return None, for_rows, gradient * share, for_share


def add_own_share(
    operator: AggregationOperator,
    rows: Tensor,
    own: tuple[Tensor, Tensor],
    bias: Tensor,
    epilogue: Epilogue,
) -> Tensor:
    """Return ``A Y + s Y₀ + b`` after its epilogue, differentiable in all but A.

    The result is (result rows, width). Collective, and so is its backward pass. `rows` Y are (input
    rows, width), `own` the scalar s and Y₀, rows of the result, which may be `rows`; `bias` is
    (width,).
    """
    share, own_rows = own
    sums = _OwnShare.apply(operator, rows, own_rows, share)  # type: ignore[no-untyped-call]
    return with_epilogue(sums, bias, epilogue)


class _MappedShare(Function):
    @staticmethod
    def forward(
        ctx: Any,
        operator: AggregationOperator,
        rows: tuple[Tensor, Tensor],
        share: Tensor,
        weight: Tensor,
        bias: Tensor,
        epilogue: Epilogue,
    ) -> Tensor:
        x, own = rows
        sums, narrow = applied(operator.apply, x), like_rows(weight, x).t()
        result = memory_of(x).empty(x, (len(sums), len(weight)))
        with operator.trace.span("dense.project", order="(AX)W"):
            for chunk in cache_chunks(sums):
                mixed = torch.addcmul(sums[chunk], own[chunk], share.to(x.dtype))
                arithmetic().product(mixed, narrow, result[chunk])
        apply_epilogue(result, bias, epilogue)
        ctx.trace, ctx.epilogue = operator.trace, epilogue
        ctx.save_for_backward(sums, own, share, weight, result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, share, weight, result = ctx.saved_tensors
        gradient, for_bias = before_epilogue((gradients[0], result), ctx.epilogue, bias=True)
        with ctx.trace.span("dense.weight_gradient"):
            of_sums, of_own = arithmetic().contract_all(gradient, inputs)
        with arithmetic().on_weights():
            for_share = (of_own * weight).sum()
        return None, None, for_share, of_sums + share * of_own, for_bias, None


def map_with_share(
    operator: AggregationOperator,
    x: Tensor,
    own: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    epilogue: Epilogue,
) -> Tensor:
    """Return ``(A X + s X₀) Wᵀ + b`` after its epilogue, differentiable in s, W and b.

    The result is (result rows, out). Collective. `x` (input rows, width) are features, which need
    no gradient. `own` are the scalar s and X₀, (result rows, width); `weight` is (out, width) and
    `bias` (out,).
    """
    share, own_rows = own
    return _MappedShare.apply(  # type: ignore[no-untyped-call]
        operator, (x, own_rows), share, weight, bias, epilogue
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
