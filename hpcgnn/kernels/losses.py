"""Cross entropies of a softmax or of sigmoids, and their gradients, in one pass over the logits."""

from dataclasses import dataclass

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class SoftmaxTargets:
    """Rows that softmaxes are taken of, and what they should be.

    `logits` x are ``(m, C)`` float32 or float64, `labels` ``(m,)`` int64 in [0, C); `smoothing` is
    the share in [0, 1) of the target t that all classes get alike; the label gets the rest.
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

    `gradient`, like the logits, gets ``s f_i (softmax(x_i)_c - t_ic)``, that of ``s Σ_i f_i
    loss_i``; None: it is not wanted. f, `factors`, are ``(m,)`` of their dtype, None: ones.
    """
    t = targets
    more = factors, scale, gradient
    _kernels.softmax_loss(t.logits, t.labels, t.smoothing, losses, *more, *execution(**run))


@dataclass(frozen=True, eq=False)
class SigmoidTargets:
    """Numbers that sigmoids are taken of, and what these should be.

    `logits` x and `targets` t, in [0, 1], are ``(m, C)`` float32 or float64, of one dtype.
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

    `gradient`, like x, gets ``s f_i (sigmoid(x_ic) - t_ic)``, that of ``s Σ_i f_i loss_i``; None:
    it is not wanted. f, `factors`, are ``(m,)`` of their dtype, None: ones.
    """
    t, more = targets, (factors, scale, gradient)
    _kernels.sigmoid_loss(t.logits, t.targets, losses, *more, *execution(**run))
