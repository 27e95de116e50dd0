"""Cross entropy of sigmoids: nothing waits for the gradient beside logits and targets."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of


class _SigmoidEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, factors: Tensor | None) -> Tensor:
        logits, target = logits.contiguous(), target.to(logits.dtype).contiguous()
        if factors is not None:
            factors = factors.to(logits.dtype).reshape(-1).contiguous()
        losses = logits.new_empty(len(logits))
        kernels.sigmoid_loss(_targets(logits, target), losses.numpy())
        ctx.save_for_backward(logits, target, factors)
        return (losses if factors is None else losses * factors).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, factors = ctx.saved_tensors
        memory = memory_of(logits)
        result = memory.empty(logits, logits.shape)
        kernels.sigmoid_loss_gradient(
            _targets(logits, target),
            memory.array(result),
            factors=None if factors is None else factors.numpy(),
            scale=gradients[0].item(),
        )
        return result, None, None


def _targets(logits: Tensor, target: Tensor) -> kernels.SigmoidTargets:
    return kernels.SigmoidTargets(logits.detach().numpy(), target.numpy())


def sigmoid_entropy_sum(logits: Tensor, target: Tensor, factors: Tensor | None = None) -> Tensor:
    """Return ``Σ_i f_i Σ_c log(1 + exp(x_ic)) - t_ic x_ic``, a scalar, differentiable in x.

    x, the logits, are (N, C) float32 or float64, targets t (N, C) in [0, 1], factors f (N, 1) or
    None for ones.
    """
    if memory_of(logits).kernels is not kernels:
        return functional.binary_cross_entropy_with_logits(
            logits, target, weight=factors, reduction="sum"
        )
    return _SigmoidEntropy.apply(logits, target, factors)  # type: ignore[no-untyped-call]
