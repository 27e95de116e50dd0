"""Passes of an attention over some of its heads at a time, and the arrays that passes share."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import like_rows, row_chunks, widened
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.typing import FloatArray

_PASS_COLUMNS = 64
"""Most columns of a pass of several heads: narrower rows waste cache lines, wider ones memory."""
_DEVICE_PASS_COLUMNS = 512
"""The same on a GPU, where a pass costs a dozen launches, however few its columns are."""


class PassBuffer:
    """The values of passes over x (input rows, F), one after the other in the same memory."""

    def __init__(self, x: Tensor, weights: Tensor) -> None:
        self._x = x
        self._values = new_empty(x, (len(x) * max(_widths(weights)),))

    def project(self, projection: Tensor) -> FloatArray:
        """Return ``x projectionᵀ``, (columns, F) in the dtype of x, valid until the next call."""
        shape = len(self._x), len(projection)
        values = self._values[: math.prod(shape)].view(shape)
        arithmetic().product(self._x, projection.t(), values)
        return rows_of(values)


class PassGradients:
    """The gradient of the result of each pass, and its inner products with that result.

    `gradient` is that of the layer's result, C-contiguous; `outs` are this result or, where heads
    are averaged, the result of each pass. Weights are (H, D).
    """

    def __init__(
        self, gradient: Tensor, outs: list[Tensor], weights: Tensor, bias: Tensor, average: bool
    ) -> None:
        gradient = widened(gradient) if average else gradient
        self._gradient, self._outs = gradient, outs
        self._bias = None if average else bias
        if average:
            self._gradient = gradient / len(weights)
        widths = _widths(weights)
        # A pass over all columns reads the gradient itself.
        is_whole = len(widths) == 1 and not average and gradient.dtype == bias.dtype
        self._bias_of_all = bias if is_whole else None
        self._columns = new_empty(bias, (0 if is_whole else len(gradient) * max(widths),))

    def of(self, index: int, part: slice, columns: slice) -> tuple[FloatArray, FloatArray]:
        """Return gradient and inner products of pass `index`, valid until the next call."""
        shape = len(self._gradient), columns.stop - columns.start
        memory = memory_of(self._columns)
        attention_delta = memory.kernels.attention_delta
        delta = memory.array(new_empty(self._columns, (shape[0], part.stop - part.start)))
        if self._bias_of_all is not None:
            gradient, bias = memory.array(self._gradient), rows_of(self._bias_of_all)
            attention_delta(gradient, memory.array(self._outs[0]), delta, bias=bias)
            return gradient, delta
        copied = self._columns[: math.prod(shape)].view(shape)
        gradient = memory.array(copied)
        if self._bias is None:
            for head in copied.chunk(part.stop - part.start, dim=1):
                head.copy_(self._gradient)
            attention_delta(gradient, rows_of(widened(self._outs[index])), delta)
        elif self._gradient.dtype == torch.bfloat16:
            copied.copy_(self._gradient[:, columns])
            bias = rows_of(self._bias[columns])
            attention_delta(gradient, rows_of(self._outs[0][:, columns].float()), delta, bias=bias)
        else:
            both = self._gradient, self._outs[0]
            upper, result = (memory.array(rows[:, columns]) for rows in both)
            bias = rows_of(self._bias[columns])
            attention_delta(upper, result, delta, bias=bias, copy=gradient)
        return gradient, delta


class TargetMap:
    """The rows' share of the scores, ``X₀ Uᵀ``, computed again in the backward pass.

    X₀ is `own`, (result rows, F), and U the matrix, (H or H * D, F).
    """

    def __init__(self, own: Tensor, matrix: Tensor) -> None:
        self._own, self._matrix = own, matrix
        self.targets = new_empty(matrix, (len(own), len(matrix)))
        # Scores have the precision of weights, whatever that of rows is.
        for rows in row_chunks(own):
            arithmetic().product(widened(own[rows]), matrix.t(), self.targets[rows])

    def gradients(
        self, for_targets: Tensor, for_input: Tensor | None, *, needed: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Return the gradients of X₀, None if it is not `needed`, and of U.

        `for_targets` is that of the targets, in their dtype. If X₀ is the layer's input, its
        gradient is added to `for_input`, that of the input.
        """
        for_own = None
        narrow = for_targets.to(self._own.dtype)
        matrix = like_rows(self._matrix, self._own)
        if for_input is not None:
            arithmetic().add_product(for_input, narrow, matrix)
        elif needed:
            for_own = arithmetic().product(narrow, matrix)
        return for_own, arithmetic().contract(narrow, self._own)


def passes(weights: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield the heads of each pass and their columns, given the weights (H, D) of the scores."""
    num_heads, width = weights.shape
    step = heads_in_pass(weights)
    for first in range(0, num_heads, step):
        last = min(first + step, num_heads)
        yield slice(first, last), slice(first * width, last * width)


def heads_in_pass(weights: Tensor) -> int:
    """Return the largest number of heads of a pass, given the weights (H, D) of the scores."""
    columns = _DEVICE_PASS_COLUMNS if weights.is_cuda else _PASS_COLUMNS
    return max(1, columns // max(1, weights.shape[1]))


def _widths(weights: Tensor) -> list[int]:
    return [columns.stop - columns.start for _, columns in passes(weights)]


def columns_of(targets: Tensor, part: slice, weights: Tensor) -> Tensor:
    """Return the targets of some heads, one or D columns for each."""
    width = targets.shape[1] // len(weights)
    return targets[:, part.start * width : part.stop * width]


def new_empty(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised tensor with the dtype and the memory of another."""
    return memory_of(like).empty(like, shape)


def rows_of(x: Tensor) -> FloatArray:
    """Return a tensor as a C-contiguous array, copied only if it is not contiguous."""
    return memory_of(x).array(x.contiguous())
