"""The cross entropy of sigmoids and its gradient, in one pass over the logits."""

from dataclasses import dataclass

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import FloatArray


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
