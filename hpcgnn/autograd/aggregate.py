"""Aggregation of node rows as a differentiable torch function."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.operator import AggregationOperator, Meanwhile


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: AggregationOperator) -> Tensor:
        ctx.operator = operator
        return applied(operator.apply, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return applied(ctx.operator.apply_transpose, gradient), None


def applied(product: Callable[..., Any], x: Tensor, meanwhile: Meanwhile | None = None) -> Tensor:
    """Return `product` of the rows `x`, computed in their memory, without autograd history.

    Collective if the product is.
    """
    memory = memory_of(x)
    with memory.ordered():
        rows = memory.array(x.contiguous())
        return memory.tensor(product(rows) if meanwhile is None else product(rows, meanwhile))


def aggregate(operator: AggregationOperator, x: Tensor) -> Tensor:
    """Return ``A x``; its gradient is ``Aᵀ g``, which is also correct for directed graphs.

    Collective, and so is its backward pass: all ranks must differentiate the same expression. On a
    GPU, the backward pass sends messages from torch's thread, which MPI must be initialised for.
    `x` is (input rows, width) float32 or float64 in the memory of the matrix; the result is
    (result rows, width) of the same dtype. On a GPU neither is copied.
    """
    return _Aggregate.apply(x, operator)  # type: ignore[no-untyped-call]
