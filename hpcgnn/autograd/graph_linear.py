"""Aggregation with a linear map, ``A X Wᵀ``, in the cheaper order of the two products."""

from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.aggregate import applied
from hpcgnn.sparse import AggregationOperator, ComputationOrder, choose_order

__all__ = ["graph_linear"]


class _GraphLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, operator: AggregationOperator, order: ComputationOrder
    ) -> Tensor:
        ctx.operator, ctx.order = operator, order
        if order.aggregate_first:
            aggregated = applied(operator.apply, x)
            ctx.save_for_backward(aggregated, weight)
            with operator.trace.span("dense.project", order=order.forward):
                return aggregated @ weight.t()
        ctx.save_for_backward(x, weight)
        with operator.trace.span("dense.project", order=order.forward):
            projected = x @ weight.t()
        return applied(operator.apply, projected)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        kept, weight = ctx.saved_tensors
        (gradient,) = gradients
        operator, order = ctx.operator, ctx.order
        needs_input = ctx.needs_input_grad[0]
        for_input = None
        if order.aggregate_first and order.project_first and needs_input:
            with operator.trace.span("dense.project", order=order.backward):
                projected = gradient @ weight
            for_input = applied(operator.apply_transpose, projected)
        elif needs_input or not order.aggregate_first:
            aggregated = applied(operator.apply_transpose, gradient)
            if needs_input:
                with operator.trace.span("dense.project", order=order.backward):
                    for_input = aggregated @ weight
            if not order.aggregate_first:
                gradient = aggregated
        with operator.trace.span("dense.weight_gradient"):
            for_weight = gradient.t() @ kept
        return for_input, for_weight, None, None


def graph_linear(operator: AggregationOperator, x: Tensor, weight: Tensor) -> Tensor:
    """Return ``A X Wᵀ``, differentiable in X and W.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    The order of the products is `choose_order`'s, forward and backward; the trace names it in the
    ``order`` of its ``dense.project`` spans.

    Parameters
    ----------
    operator
        The matrix A.
    x
        (input rows, in_width) float32 or float64, where the matrix is.
    weight
        (out_width, in_width), as in `torch.nn.Linear`.

    Returns
    -------
    Tensor
        (result rows, out_width), same dtype.
    """
    out_width, in_width = weight.shape
    order = choose_order(operator.size, in_width, out_width, needs_input_gradient=x.requires_grad)
    result: Tensor = _GraphLinear.apply(x, weight, operator, order)  # type: ignore[no-untyped-call]
    return result
