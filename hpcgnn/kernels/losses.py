"""Cross entropies of a softmax or of sigmoids in one pass over the logits, and their gradients."""

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
    state: FloatArray,
    **run: Unpack[Run],
) -> None:
    """Write ``-Σ_c t_ic log softmax(x_i)_c`` of each row to `losses`, ``(m,)`` like the logits.

    `state` ``(m, 2)``, of their dtype too, is what the gradient needs.
    """
    t = targets
    _kernels.softmax_loss(t.logits, t.labels, t.smoothing, losses, state, *execution(**run))


def softmax_loss_gradient(
    targets: SoftmaxTargets,
    state: FloatArray,
    out: FloatArray,
    *,
    factors: FloatArray | None = None,
    scale: float = 1.0,
    **run: Unpack[Run],
) -> None:
    """Write ``s f_i (softmax(x_i)_c - t_ic)``, the gradient of ``s Σ_i f_i loss_i``.

    `state` is what `softmax_loss` wrote for the same targets; f, `factors`, are ``(m,)`` of the
    dtype of the logits, None: ones.
    """
    t = targets
    _kernels.softmax_loss_gradient(
        t.logits, t.labels, t.smoothing, state, factors, scale, out, *execution(**run)
    )


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
