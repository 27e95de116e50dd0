"""Softmax and sigmoid cross entropies with their gradients, in one pass over the logits."""

from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import Array, FloatArray, GlobalIndices


@dataclass(frozen=True, eq=False)
class LogitMap:
    """Logits ``x Wᵀ + b`` that a loss computes for a few rows at a time, and that are never whole.

    `rows` x are ``(m, k)`` float32, float64, or bfloat16 as uint16; `weight` W ``(C, k)`` and
    `bias` b ``(C,)``, or None, are float64 if the rows are, else float32. The gradient of a loss of
    such logits is a `LogitMap`, too: those of the three operands, like them. Its rows may be None,
    where they are not wanted, and it has a bias where the map has one.
    """

    rows: Array | None
    weight: FloatArray
    bias: FloatArray | None = None


Logits: TypeAlias = FloatArray | LogitMap
_Loss: TypeAlias = tuple[
    GlobalIndices | None, float, FloatArray | None, FloatArray, FloatArray | None, float
]
"""Labels, smoothing, targets, losses, factors and scale."""


@dataclass(frozen=True, eq=False)
class SoftmaxTargets:
    """Logits and class labels of a softmax cross entropy.

    `logits` x are ``(m, C)`` float32 or float64, or a map; `labels` ``(m,)`` int64 in [0, C).
    `smoothing` in [0, 1) is the part of the target t that is spread evenly over all classes (label
    smoothing).
    """

    logits: Logits
    labels: GlobalIndices
    smoothing: float = 0.0


def softmax_loss(
    targets: SoftmaxTargets,
    losses: FloatArray,
    gradient: Logits | None = None,
    *,
    factors: FloatArray | None = None,
    scale: float = 1.0,
    **run: Unpack[Run],
) -> None:
    """Write ``-Σ_c t_ic log softmax(x_i)_c`` of each row to `losses`, ``(m,)`` like the logits.

    `gradient`, like the logits, gets ``s f_i (softmax(x_i)_c - t_ic)``, the gradient of ``s
    Σ_i f_i loss_i``; None skips it. It may be the logits. `factors` f are ``(m,)`` of the same
    dtype; None means ones.
    """
    t, more = targets, (losses, factors, scale)
    if isinstance(t.logits, LogitMap):
        _of_map(t.logits, (t.labels, t.smoothing, None, *more), gradient, **run)
        return
    _kernels.softmax_loss(t.logits, t.labels, t.smoothing, *more, gradient, *execution(**run))


@dataclass(frozen=True, eq=False)
class SigmoidTargets:
    """Logits and targets of a sigmoid cross entropy.

    `logits` x and `targets` t in [0, 1] are both ``(m, C)`` float32, or both float64; or the logits
    are a map.
    """

    logits: Logits
    targets: FloatArray


def sigmoid_loss(
    targets: SigmoidTargets,
    losses: FloatArray,
    gradient: Logits | None = None,
    *,
    factors: FloatArray | None = None,
    scale: float = 1.0,
    **run: Unpack[Run],
) -> None:
    """Write ``Σ_c log(1 + exp(x_ic)) - t_ic x_ic`` of each row to `losses`, ``(m,)`` like x.

    `gradient`, like x, gets ``s f_i (sigmoid(x_ic) - t_ic)``, the gradient of ``s Σ_i f_i
    loss_i``; None skips it. It may be x. `factors` f are ``(m,)`` of the same dtype; None means
    ones.
    """
    t, more = targets, (losses, factors, scale)
    if isinstance(t.logits, LogitMap):
        _of_map(t.logits, (None, 0.0, t.targets, *more), gradient, **run)
        return
    _kernels.sigmoid_loss(t.logits, t.targets, *more, gradient, *execution(**run))


def _of_map(x: LogitMap, loss: _Loss, gradient: Logits | None, **run: Unpack[Run]) -> None:
    """Write a loss of a map, and its gradient."""
    if x.rows is None or not isinstance(gradient, LogitMap):
        raise TypeError("a map has rows, and its loss the gradient of a map")
    into = gradient.rows, gradient.weight, gradient.bias
    threads, isa = execution(**run)
    _kernels.mapped_loss(x.rows, x.weight, x.bias, *loss, *into, threads, "bfloat16", isa)
