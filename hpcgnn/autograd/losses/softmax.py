"""Softmax cross entropy; the forward pass saves only the gradient."""

from torch import Tensor
from torch.nn import functional

from hpcgnn import kernels
from hpcgnn.autograd.losses.row_loss import RowLoss
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.kernels.losses import Logits
from hpcgnn.typing import FloatArray


def cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    factors: Tensor | None = None,
    divisor: float = 1.0,
) -> Tensor:
    """Return ``-Σ_i f_i Σ_c t_ic log softmax(x_i)_c / d``, a scalar, differentiable in the logits.

    The logits x are (N, C) float32 or float64, or a `MappedRows`; labels are (N,) int64 in [0, C),
    and factors f (N,), or None for ones. Smoothing is the share ε in [0, 1) of the target t that is
    spread equally over all classes; the label gets the rest. The divisor d is not 0.
    """
    if memory_of(logits).kernels is not kernels:
        loss = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        return (loss if factors is None else loss * factors).sum() / divisor
    classes = labels.contiguous().numpy()
    if factors is not None:
        factors = factors.to(logits.dtype).contiguous()

    def write(chunk: slice, logits: Logits, losses: FloatArray, gradient: Logits | None) -> None:
        targets = kernels.SoftmaxTargets(logits, classes[chunk], smoothing)
        shares = None if factors is None else factors[chunk].numpy()
        kernels.softmax_loss(targets, losses, gradient, factors=shares, scale=1 / divisor)

    return RowLoss(write, factors, divisor, arithmetic().loss)(logits)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``-log softmax(x_i)_c`` (N,) of logits (N, C) and labels c (N,), without history."""
    if memory_of(logits).kernels is not kernels:
        return functional.cross_entropy(logits.detach(), labels, reduction="none")
    losses, logits = logits.new_empty(len(logits)), logits.detach().contiguous()
    targets = kernels.SoftmaxTargets(logits.numpy(), labels.contiguous().numpy())
    kernels.softmax_loss(targets, losses.numpy())
    return losses
