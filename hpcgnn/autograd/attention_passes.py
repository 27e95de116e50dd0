"""The passes of an attention over its heads: which they are, and the arrays that they share."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.typing import FloatArray

__all__ = [
    "PassBuffer",
    "PassGradients",
    "columns_of",
    "heads_in_pass",
    "numbers",
    "passes",
    "rows_of",
]

_PASS_COLUMNS = 64
"""Of a pass, at least: narrower rows waste lines of memory and messages, wider ones memory."""


class PassBuffer:
    """The values of one pass after the other, in the same memory.

    Not collective.

    Parameters
    ----------
    x
        (input rows, F).
    weights
        (H, D) of the scores.
    """

    def __init__(self, x: Tensor, weights: Tensor) -> None:
        self._x = x
        self._memory = np.empty(len(x) * max(_widths(weights)), _dtype(x))

    def project(self, projection: Tensor) -> FloatArray:
        """Return ``x projectionᵀ``, valid until the next call."""
        shape = len(self._x), len(projection)
        values = self._memory[: shape[0] * shape[1]].reshape(shape)
        torch.mm(self._x, projection.t(), out=torch.from_numpy(values))
        return values


class PassGradients:
    """The gradient of the result of each pass, and its inner products with that result.

    Not collective.

    Parameters
    ----------
    gradient
        Of the layer's result, C-contiguous.
    outs
        The layer's result; where heads are averaged, that of each pass.
    weights
        (H, D) of the scores.
    bias
        What was added to the layer's result.
    average
        Whether heads are averaged.
    """

    def __init__(
        self, gradient: Tensor, outs: list[Tensor], weights: Tensor, bias: Tensor, average: bool
    ) -> None:
        self._gradient, self._outs = gradient, outs
        self._bias = None if average else rows_of(bias)
        if average:
            self._gradient = gradient / len(weights)
        self._memory = np.empty(len(gradient) * max(_widths(weights)), _dtype(gradient))

    def of(self, index: int, part: slice, columns: slice) -> tuple[FloatArray, FloatArray]:
        """Return both for pass `index`, valid until the next call."""
        shape = len(self._gradient), columns.stop - columns.start
        gradient = self._memory[: shape[0] * shape[1]].reshape(shape)
        delta = np.empty((shape[0], part.stop - part.start), gradient.dtype)
        if self._bias is None:
            for head in torch.from_numpy(gradient).chunk(part.stop - part.start, dim=1):
                head.copy_(self._gradient)
            kernels.attention_delta(gradient, rows_of(self._outs[index]), delta)
        else:
            theirs, result = (each.numpy()[:, columns] for each in (self._gradient, self._outs[0]))
            bias = self._bias[columns]
            kernels.attention_delta(theirs, result, delta, bias=bias, copy=gradient)
        return gradient, delta


def passes(weights: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the heads of each pass, and their columns.

    Not collective.

    Parameters
    ----------
    weights
        (H, D) of the scores.
    """
    num_heads, width = weights.shape
    step = heads_in_pass(weights)
    for first in range(0, num_heads, step):
        last = min(first + step, num_heads)
        yield slice(first, last), slice(first * width, last * width)


def heads_in_pass(weights: Tensor) -> int:
    """Return how many heads a pass has, at most.

    Not collective.

    Parameters
    ----------
    weights
        (H, D) of the scores.
    """
    return max(1, _PASS_COLUMNS // max(1, weights.shape[1]))


def _widths(weights: Tensor) -> list[int]:
    return [columns.stop - columns.start for _, columns in passes(weights)]


def columns_of(targets: Tensor, part: slice, weights: Tensor) -> Tensor:
    """Return the targets of some heads, of one or of D columns each.

    Not collective.
    """
    width = targets.shape[1] // len(weights)
    return targets[:, part.start * width : part.stop * width]


def _dtype(x: Tensor) -> np.dtype[np.generic]:
    return np.dtype(str(x.dtype).removeprefix("torch."))


def numbers(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised tensor of a dtype; numpy asks for huge pages, which fill faster.

    Not collective.
    """
    return torch.from_numpy(np.empty(shape, _dtype(like)))


def rows_of(x: Tensor) -> FloatArray:
    """Return a tensor as a C-contiguous array, copied only where it is not one.

    Not collective.
    """
    rows: FloatArray = x.detach().contiguous().numpy()
    return rows
