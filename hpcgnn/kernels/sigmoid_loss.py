"""The cross entropy of sigmoids in one pass over the logits, and its gradient in another."""

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


def sigmoid_loss(targets: SigmoidTargets, losses: FloatArray, **run: Unpack[Run]) -> None:
    """Write ``Σ_c log(1 + exp(x_ic)) - t_ic x_ic`` of each row to `losses`, ``(m,)`` like x."""
    _kernels.sigmoid_loss(targets.logits, targets.targets, losses, *execution(**run))


def sigmoid_loss_gradient(
    targets: SigmoidTargets,
    out: FloatArray,
    *,
    factors: FloatArray | None = None,
    scale: float = 1.0,
    **run: Unpack[Run],
) -> None:
    """Write ``s f_i (sigmoid(x_ic) - t_ic)``, the gradient of ``s Σ_i f_i loss_i``.

    f, `factors`, are ``(m,)`` of the dtype of the logits, None: ones.
    """
    t = targets
    _kernels.sigmoid_loss_gradient(t.logits, t.targets, factors, scale, out, *execution(**run))
