"""Sigmoid cross entropy; the forward pass saves only the gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.losses.kept_gradient import empty_gradient, gradient_of
from hpcgnn.autograd.memory import memory_of


class _SigmoidEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, factors: Tensor | None, divisor: float
    ) -> Tensor:
        logits, target = logits.contiguous(), target.to(logits.dtype).contiguous()
        losses, gradient = logits.new_empty(len(logits)), empty_gradient(ctx, logits)
        if factors is not None:
            factors = factors.to(logits.dtype).reshape(-1).contiguous()
        kernels.sigmoid_loss(
            kernels.SigmoidTargets(logits.detach().numpy(), target.numpy()),
            losses.numpy(),
            gradient,
            factors=None if factors is None else factors.numpy(),
            scale=1 / divisor,
        )
        return (losses if factors is None else losses * factors).sum() / divisor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradient_of(ctx, gradients[0]), None, None, None


def sigmoid_entropy_sum(
    logits: Tensor, target: Tensor, factors: Tensor | None = None, divisor: float = 1.0
) -> Tensor:
    """Return ``Σ_i f_i Σ_c (log(1 + exp(x_ic)) - t_ic x_ic) / d``, a scalar, differentiable in x.

    The logits x are (N, C) float32 or float64, targets t (N, C) in [0, 1], and factors f (N, 1), or
    None for ones; the divisor d is not 0.
    """
    if memory_of(logits).kernels is not kernels:
        total = functional.binary_cross_entropy_with_logits(
            logits, target, weight=factors, reduction="sum"
        )
        return total / divisor
    return _SigmoidEntropy.apply(  # type: ignore[no-untyped-call]
        logits, target, factors, divisor
    )
