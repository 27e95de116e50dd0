"""Softmax and sigmoid cross entropies with their gradients, in one pass over the logits."""

from dataclasses import dataclass

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class SoftmaxTargets:
    """Logits and class labels of a softmax cross entropy.

    `logits` x are ``(m, C)`` float32 or float64, `labels` ``(m,)`` int64 in [0, C). `smoothing` in
    [0, 1) is the part of the target t that is spread evenly over all classes (label smoothing).
    """

    logits: FloatArray
    labels: GlobalIndices
    smoothing: float = 0.0


def softmax_loss(
    targets: SoftmaxTargets,
    losses: FloatArray,
    gradient: FloatArray | None = None,
    *,
    factors: FloatArray | None = None,
    scale: float = 1.0,
    **run: Unpack[Run],
) -> None:
    """Write ``-Σ_c t_ic log softmax(x_i)_c`` of each row to `losses`, ``(m,)`` like the logits.

    `gradient`, shaped like the logits, gets ``s f_i (softmax(x_i)_c - t_ic)``, the gradient of ``s
    Σ_i f_i loss_i``; None skips it. It may be the logits. `factors` f are ``(m,)`` of the same
    dtype; None means ones.
    """
    t = targets
    more = factors, scale, gradient
    _kernels.softmax_loss(t.logits, t.labels, t.smoothing, losses, *more, *execution(**run))


@dataclass(frozen=True, eq=False)
class SigmoidTargets:
    """Logits and targets of a sigmoid cross entropy.

    `logits` x and `targets` t in [0, 1] are both ``(m, C)`` float32, or both float64.
    """

    logits: FloatArray
    targets: FloatArray


def sigmoid_loss(
    targets: SigmoidTargets,
    losses: FloatArray,
    gradient: FloatArray | None = None,
    *,
    factors: FloatArray | None = None,
    scale: float = 1.0,
    **run: Unpack[Run],
) -> None:
    """Write ``Σ_c log(1 + exp(x_ic)) - t_ic x_ic`` of each row to `losses`, ``(m,)`` like x.

    `gradient`, shaped like x, gets ``s f_i (sigmoid(x_ic) - t_ic)``, the gradient of ``s Σ_i f_i
    loss_i``; None skips it. It may be x. `factors` f are ``(m,)`` of the same dtype; None means
    ones.
    """
    t, more = targets, (factors, scale, gradient)
    _kernels.sigmoid_loss(t.logits, t.targets, losses, *more, *execution(**run))
