"""A step of Adam in two passes over weights, with the roots of a library of the caller's."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.typing import Array, FloatArray

AdamUpdate: TypeAlias = tuple[FloatArray, FloatArray, FloatArray, FloatArray, Array]
"""Weights, their gradient, the running means of it and of its square, of one size, in float32 or
float64, and the number of steps that were made, (), float32."""


@dataclass(frozen=True)
class AdamRule:
    """Adam (Kingma and Ba, ICLR 2015).

    `decay` times the weights adds to gradients, or where it is `decoupled` weights shrink by it
    times the rate (Loshchilov and Hutter, ICLR 2019).
    """

    rate: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0
    decoupled: bool = False


def adam_means(
    updates: Sequence[AdamUpdate], rule: AdamRule, squares: FloatArray, **run: Unpack[Run]
) -> None:
    """Update running means and numbers of steps, and shrink weights where decay is decoupled.

    The means of squares go to `squares`, too, (numbers of all weights,) in the dtype of these, one
    of `updates` after the other. Arrays are C-contiguous. As for `adam_weights`, the bits of a
    number do not depend on where in an array it is.
    """
    betas, decay, shrink = (rule.beta1, rule.beta2), rule.decay, 1.0
    if rule.decoupled:
        decay, shrink = 0.0, 1 - rule.rate * rule.decay
    _kernels.adam_means(updates, *betas, decay, shrink, squares, *execution(**run))


def adam_weights(
    updates: Sequence[AdamUpdate], rule: AdamRule, roots: FloatArray, **run: Unpack[Run]
) -> bool:
    """Update weights, given the roots of what `adam_means` wrote; return whether all are finite."""
    betas = rule.beta1, rule.beta2
    return _kernels.adam_weights(updates, rule.rate, *betas, rule.eps, roots, *execution(**run))
