"""Aggregation of node rows as a torch function: the primal and its adjoint."""

from typing import Any

import torch
from torch import Tensor

from hpcgnn.sparse import AggregationOperator

__all__ = ["aggregate"]


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: AggregationOperator) -> Tensor:
        ctx.operator = operator
        return torch.from_numpy(operator.apply(x.detach().contiguous().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        rows = ctx.operator.apply_transpose(gradient.contiguous().numpy())
        return torch.from_numpy(rows), None


def aggregate(operator: AggregationOperator, x: Tensor) -> Tensor:
    """Return ``A x``; its gradient is ``Aᵀ g``, so it is right on directed graphs too.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    Parameters
    ----------
    operator
        The matrix A.
    x
        (input rows, width) float32 or float64, on the CPU.

    Returns
    -------
    Tensor
        (result rows, width), same dtype.
    """
    result: Tensor = _Aggregate.apply(x, operator)  # type: ignore[no-untyped-call]
    return result
