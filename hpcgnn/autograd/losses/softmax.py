"""Cross entropy of a softmax: of a row two numbers wait for the gradient, beside the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.plain import arithmetic


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, factors: Tensor | None
    ) -> Tensor:
        logits = logits.contiguous()
        losses, state = logits.new_empty(len(logits)), logits.new_empty(len(logits), 2)
        labels = labels.contiguous()
        factors = None if factors is None else factors.to(logits.dtype).contiguous()
        targets = kernels.SoftmaxTargets(logits.detach().numpy(), labels.numpy(), smoothing)
        kernels.softmax_loss(targets, losses.numpy(), state.numpy())
        ctx.save_for_backward(logits, labels, state, factors)
        ctx.smoothing = smoothing
        return arithmetic().loss(losses if factors is None else losses * factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, state, factors = ctx.saved_tensors
        memory = memory_of(logits)
        result = memory.empty(logits, logits.shape)
        kernels.softmax_loss_gradient(
            kernels.SoftmaxTargets(logits.detach().numpy(), labels.numpy(), ctx.smoothing),
            state.numpy(),
            memory.array(result),
            factors=None if factors is None else factors.numpy(),
            scale=gradients[0].item(),
        )
        return result, None, None, None


def cross_entropy_sum(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, factors: Tensor | None = None
) -> Tensor:
    """Return ``-Σ_i f_i Σ_c t_ic log softmax(x_i)_c``, a scalar, differentiable in the logits.

    x, the logits, are (N, C) float32 or float64, labels (N,) int64 in [0, C), factors f (N,), None:
    ones. Smoothing is the share ε in [0, 1) of the target t that all classes get alike; the label
    gets the rest.
    """
    if memory_of(logits).kernels is not kernels:
        each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return (each if factors is None else each * factors).sum()
    return _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits, labels, smoothing, factors
    )
