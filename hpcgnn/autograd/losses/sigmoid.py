"""Sigmoid cross entropy; the forward pass saves only the gradient."""

from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.losses.row_loss import RowLoss
from hpcgnn.autograd.memory import memory_of
from hpcgnn.kernels.losses import Logits
from hpcgnn.typing import FloatArray


def sigmoid_entropy_sum(
    logits: Tensor, target: Tensor, factors: Tensor | None = None, divisor: float = 1.0
) -> Tensor:
    """Return ``Σ_i f_i Σ_c (log(1 + exp(x_ic)) - t_ic x_ic) / d``, a scalar, differentiable in x.

    The logits x are (N, C) float32 or float64, or a `MappedRows`; targets t are (N, C) in [0, 1],
    and factors f (N, 1), or None for ones. The divisor d is not 0.
    """
    if memory_of(logits).kernels is not kernels:
        total = functional.binary_cross_entropy_with_logits(
            logits, target, weight=factors, reduction="sum"
        )
        return total / divisor
    target = target.to(logits.dtype).contiguous()
    if factors is not None:
        factors = factors.to(logits.dtype).reshape(-1).contiguous()

    def write(chunk: slice, logits: Logits, losses: FloatArray, gradient: Logits | None) -> None:
        targets = kernels.SigmoidTargets(logits, target[chunk].numpy())
        shares = None if factors is None else factors[chunk].numpy()
        kernels.sigmoid_loss(targets, losses, gradient, factors=shares, scale=1 / divisor)

    return RowLoss(write, factors, divisor, Tensor.sum)(logits)
