"""Cross entropy of a softmax together with its gradient: one array is made and waits."""

from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.arithmetic import arithmetic
from hpcgnn.autograd.memory import memory_of


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, factors: Tensor | None
    ) -> Tensor:
        marked = labels[:, None]
        shares = memory_of(logits).empty(logits, logits.shape)
        torch.ops.aten._log_softmax.out(logits, 1, False, out=shares)
        each = shares.gather(1, marked)[:, 0]
        if smoothing > 0:
            each = (1 - smoothing) * each + smoothing * shares.mean(1)
        total = -arithmetic().loss(each if factors is None else each * factors)
        # From here on the gradient: the softmax minus the target.
        shares.exp_()
        if smoothing > 0:
            shares -= smoothing / logits.shape[1]
        shares.scatter_add_(1, marked, shares.new_full(marked.shape, smoothing - 1))
        if factors is not None:
            shares *= factors[:, None]
        ctx.save_for_backward(shares)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (shares,) = ctx.saved_tensors
        result = memory_of(shares).empty(shares, shares.shape)
        return torch.mul(shares, gradients[0], out=result), None, None, None


def cross_entropy_sum(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, factors: Tensor | None = None
) -> Tensor:
    """Return ``-Σ_i f_i Σ_c t_ic log softmax(x_i)_c``, a scalar, differentiable in the logits.

    Parameters
    ----------
    logits
        x, (N, C) float32 or float64.
    labels
        (N,) int64 in [0, C).
    smoothing
        Share ε in [0, 1) of the target t that all classes get alike; the label gets the rest.
    factors
        f, (N,); None: ones.
    """
    return _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits, labels, smoothing, factors
    )
