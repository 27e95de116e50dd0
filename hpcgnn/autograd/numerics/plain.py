"""How torch's functions multiply and add rows of nodes: as is fastest, or so that no order shows.

A rank's rows meet numbers that all ranks share (weights, means, the loss) in a few operations only:
a product of rows and a matrix, and sums over rows. The functions of this package ask `arithmetic`
for these. This one leaves a sum over rows as the share of its rank, and its order to the library;
`hpcgnn.autograd.numerics.exact` has one whose results do not depend on who holds which rows.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd.ending import Ending, column_sums, end_gradient, end_rows
from hpcgnn.autograd.losses.sigmoid import sigmoid_entropy_sum
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import (
    add_multiplied,
    like_rows,
    multiply,
    row_chunks,
    weight_gradient,
    widened,
)
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray

_FEW_ROWS = 1 << 11


class Arithmetic:
    """Products and sums of rows; the fastest of torch, a sum over rows being this rank's share."""

    sums_are_whole = False
    """Whether sums over rows are those of all ranks, so that nothing is left to add up."""

    def product(self, rows: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """Return ``rows matrix``, in `out` or in memory that fills fast; without history."""
        if out is None:
            out = memory_of(rows).empty(rows, (len(rows), matrix.shape[1]))
        return multiply(rows, matrix, out)

    def add_product(self, total: Tensor, rows: Tensor, matrix: Tensor) -> None:
        """Add ``rows matrix`` to `total`."""
        add_multiplied(total, rows, matrix)

    def shifted_product(self, bias: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
        """Return ``rows matrix + bias``, without history."""
        # Two passes take less time than torch's, which begins with copies of the bias.
        out = self.product(rows, matrix)
        end_rows(out, bias, None)
        return out

    def contract(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ``leftᵀ right``, a sum over rows, in the dtype of weights; without history."""
        return weight_gradient(left, right)

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over rows, of all but the first dimension; without history."""
        return column_sums(rows)

    def total_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the sum of ``left right``, number by number, of all rows; without history."""
        total = left.new_zeros((), dtype=widened(left[:0]).dtype)
        # Products of a few rows stay in cache.
        for few, others in zip(
            torch.split(left, _FEW_ROWS), torch.split(right, _FEW_ROWS), strict=True
        ):
            total += (widened(few) * others).sum()
        return total

    @collective
    def added(self, add: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Return what `add` makes of rows (any, width): sums of them, of any ranks; no history."""
        return add(rows)

    @collective
    def rows_of(self, shared: Tensor, numbers: Tensor) -> Tensor:
        """Return (..., width) rows of shared numbers (any, width), differentiable in these.

        Its backward pass is collective.
        """
        return shared[numbers]

    def loss(self, values: Tensor) -> Tensor:
        """Return a scalar that adds up to the sum of `values` (rows,) over ranks."""
        return values.sum()

    def cross_entropies(
        self, logits: Tensor, target: Tensor, factors: Tensor | None, divisor: float
    ) -> Tensor:
        """Return a scalar that adds up to the sigmoid cross entropies over ranks, differentiable.

        `target` is of the shape of the logits, (rows, C), and factors are (rows, 1); None: ones.
        The sum is divided by the divisor.
        """
        return sigmoid_entropy_sum(logits, target, factors, divisor)

    def sigmoid(self, rows: Tensor) -> Tensor:
        """Return ``1 / (1 + exp(-x))``."""
        return rows.sigmoid()

    def softplus(self, rows: Tensor) -> Tensor:
        """Return ``log(1 + exp(x))``, differentiable."""
        return functional.softplus(rows)

    def linear(
        self,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        ending: Ending | None = None,
    ) -> Tensor:
        """Return ``rows weightᵀ + bias``, ended, differentiable in all three.

        It is in memory that fills fast.
        """
        return _Linear.apply(self, rows, weight, bias, ending)  # type: ignore[no-untyped-call]

    def matmul(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """Return ``rows matrix``, differentiable in both."""
        if self.sums_are_whole or rows.dtype != matrix.dtype:
            return self.linear(rows, matrix.t())
        return rows @ matrix

    def multiply_each(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Return (rows, O) each row (rows, I) times a matrix of its own (rows, I, O)."""
        return torch.bmm(rows[:, None], matrices)[:, 0]

    def layer_norm(self, rows: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        """Return rows (any, width) brought to mean zero and unit variance each, differentiable.

        `scale` and `shift` are (width,); `eps` is added to the variances.
        """
        if rows.is_cuda and rows.dtype != scale.dtype:
            # Only torch's kernels of CPUs take rows of 16 bits beside weights of 32.
            wide = functional.layer_norm(widened(rows), scale.shape, scale, shift, eps)
            return wide.to(rows.dtype)
        return functional.layer_norm(rows, scale.shape, scale, shift, eps)

    def for_rows(self, shared: Tensor, num_rows: int) -> Tensor:
        """Return numbers that all rows share as broadcasting takes them, differentiable."""
        return shared

    @collective
    def sums_and_count(self, rows: Tensor, sums: RankSums) -> FloatArray:
        """Return the sums over the rows (rows, width) of all ranks, and their number behind them.

        float64, in main memory; `sums` adds up over the ranks.
        """
        totals = np.empty(rows.shape[1] + 1)
        totals[:-1] = 0
        for chunk in row_chunks(rows):
            totals[:-1] += widened(rows[chunk]).sum(0, dtype=torch.float64).cpu().numpy()
        totals[-1] = len(rows)
        sums(totals)
        return totals

    @collective
    def complete(self, gradient: FloatArray, sums: RankSums) -> None:
        """Replace a gradient that sums over rows left by that of all ranks."""
        sums(gradient)

    def elu(self, rows: Tensor) -> Tensor:
        """Return ``x`` where it is positive, else ``exp(x) - 1``, differentiable."""
        return functional.elu(rows)

    def gelu(self, rows: Tensor) -> Tensor:
        """Return ``x Φ(x)`` with the normal distribution Φ, differentiable."""
        return functional.gelu(rows)

    def linear_by_head(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return (rows, H, O) ``W_h x_h`` of rows (rows, H, I) and weights (H, O, I)."""
        return torch.einsum("nhi,hoi->nho", rows, weights)

    def combine(self, coefficients: Tensor, matrices: Tensor) -> Tensor:
        """Return ``Σ_b a_rb V_b`` of weights, (R, B) and (B, I, O), differentiable in both."""
        return torch.einsum("rb,bio->rio", coefficients, matrices)

    def on_weights(self) -> AbstractContextManager[None]:
        """Return the context of work on weights, which all ranks do alike."""
        return nullcontext()


class _Linear(torch.autograd.Function):
    """A linear map whose passes, forward and backward, an arithmetic computes."""

    @staticmethod
    def forward(
        ctx: Any,
        how: Arithmetic,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ending: Ending | None,
    ) -> Tensor:
        narrow = like_rows(weight, rows)
        ctx.how, ctx.ending = how, ending
        result = how.product(rows, narrow.t())
        end_rows(result, bias, ending)
        ctx.save_for_backward(rows, narrow, None if ending is None else result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (rows, narrow, result), how = ctx.saved_tensors, ctx.how
        _, for_rows, for_weight, for_bias, _ = ctx.needs_input_grad
        own_sums = for_bias and not how.sums_are_whole
        gradient, sums = end_gradient(
            gradients[0].contiguous(), result, ctx.ending, of_bias=own_sums
        )
        if for_bias and not own_sums:
            sums = how.total(gradient)
        return (
            None,
            how.product(gradient, narrow) if for_rows else None,
            how.contract(gradient, rows) if for_weight else None,
            sums,
            None,
        )


_FASTEST = Arithmetic()
_arithmetic: ContextVar[Arithmetic | None] = ContextVar("arithmetic", default=None)


def arithmetic() -> Arithmetic:
    """Return what the functions of this package multiply and add with."""
    return _arithmetic.get() or _FASTEST


class _LossSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.num_rows = len(values)
        return arithmetic().loss(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].expand(ctx.num_rows)


@collective
def loss_sum(values: Tensor) -> Tensor:
    """Return a scalar that adds up to the sum of `values` (rows,) over ranks, differentiable."""
    total: Tensor = _LossSum.apply(values)  # type: ignore[no-untyped-call]
    return total


@contextmanager
def computing_with(chosen: Arithmetic) -> Iterator[None]:
    """Let the enclosed passes, forward and backward, multiply and add in another way."""
    token = _arithmetic.set(chosen)
    try:
        yield
    finally:
        _arithmetic.reset(token)
