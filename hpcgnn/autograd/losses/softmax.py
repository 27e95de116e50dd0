"""Softmax cross entropy; the forward pass saves only the gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.losses.kept_gradient import empty_gradient, gradient_of
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.plain import arithmetic


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        labels: Tensor,
        smoothing: float,
        factors: Tensor | None,
        divisor: float,
    ) -> Tensor:
        logits, labels = logits.contiguous(), labels.contiguous()
        losses, gradient = logits.new_empty(len(logits)), empty_gradient(ctx, logits)
        factors = None if factors is None else factors.to(logits.dtype).contiguous()
        kernels.softmax_loss(
            kernels.SoftmaxTargets(logits.detach().numpy(), labels.numpy(), smoothing),
            losses.numpy(),
            gradient,
            factors=None if factors is None else factors.numpy(),
            scale=1 / divisor,
        )
        return arithmetic().loss(losses if factors is None else losses * factors) / divisor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradient_of(ctx, gradients[0]), None, None, None, None


def cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    factors: Tensor | None = None,
    divisor: float = 1.0,
) -> Tensor:
    """Return ``-Σ_i f_i Σ_c t_ic log softmax(x_i)_c / d``, a scalar, differentiable in the logits.

    The logits x are (N, C) float32 or float64, labels (N,) int64 in [0, C), and factors f (N,), or
    None for ones. Smoothing is the share ε in [0, 1) of the target t that is spread equally over
    all classes; the label gets the rest. The divisor d is not 0.
    """
    if memory_of(logits).kernels is not kernels:
        loss = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return (loss if factors is None else loss * factors).sum() / divisor
    return _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits, labels, smoothing, factors, divisor
    )


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``-log softmax(x_i)_c`` (N,) of logits (N, C) and labels c (N,), without history."""
    if memory_of(logits).kernels is not kernels:
        return functional.cross_entropy(logits.detach(), labels, reduction="none")
    losses, logits = logits.new_empty(len(logits)), logits.detach().contiguous()
    targets = kernels.SoftmaxTargets(logits.numpy(), labels.contiguous().numpy())
    kernels.softmax_loss(targets, losses.numpy())
    return losses
