"""Aggregates of mapped rows with a share of the rows themselves: ``A Y + s Y₀ + b``.

Where own rows and neighbours have one map, ``Y = X W``, this takes one dense product each way where
two maps take two.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from hpcgnn.autograd.aggregate import applied
from hpcgnn.autograd.ending import end_gradient, end_rows
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
