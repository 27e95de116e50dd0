"""The arithmetic that this package's functions use to multiply and add rows, and its fastest form.

A rank's rows meet values that all ranks share (weights, means, the loss) in a few operations only:
products of rows and a matrix, and sums over rows. The functions of this package call `arithmetic`
for these. In the one here, a sum over rows is the share of its rank, in the library's order; that
of `hpcgnn.autograd.numerics.exact` has results that do not depend on the distribution of rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd.epilogue import (
    WIDENED,
    Epilogue,
    apply_epilogue,
    column_sums,
    epilogue_gradient,
)
from hpcgnn.autograd.losses.mapped_rows import MappedRows, is_mapped_late
from hpcgnn.autograd.losses.sigmoid import sigmoid_entropy_sum
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import (
    add_multiplied,
    empty_rows,
    like_rows,
    multiply,
    narrowed,
    row_chunks,
    weight_gradient,
    widened,
)
from hpcgnn.autograd.recompute import is_last_use
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray

_FEW_ROWS = 1 << 11
_COMPUTED_BYTES = 1 << 22
"""Size of a chunk of rows that are computed as they are read: an efficient product, in cache."""


class Arithmetic:
    """Products and sums of rows with torch's fastest functions; sums are this rank's share."""

    sums_are_whole = False
    """Whether sums over rows are already those of all ranks."""

    def product(self, rows: Tensor, matrix: Tensor, out: Tensor | None = None) -> Tensor:
        """Return ``rows matrix``, in `out` or in reused memory; without history."""
        if out is None:
            out = memory_of(rows).empty(rows, (len(rows), matrix.shape[1]))
        return self._multiply(rows, matrix, out, None, accumulate=False)

    def add_product(self, total: Tensor, rows: Tensor, matrix: Tensor) -> None:
        """Add ``rows matrix`` to `total`."""
        self._multiply(rows, matrix, total, None, accumulate=True)

    def affine(
        self,
        rows: Tensor,
        matrix: Tensor,
        bias: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return ``rows matrix + bias`` in `dtype`, that of the rows if None; without history."""
        out = empty_rows(rows, (len(rows), matrix.shape[1]), dtype)
        return self._multiply(rows, matrix, out, bias, accumulate=False)

    def _multiply(
        self, rows: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None, *, accumulate: bool
    ) -> Tensor:
        if not accumulate:
            return multiply(rows, matrix, out, bias)
        add_multiplied(out, rows, matrix)
        return out

    def contract(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ``leftᵀ right``, a sum over rows, in the dtype of weights; without history."""
        return weight_gradient(left, right)

    def contract_all(self, left: Tensor, rights: Sequence[Tensor]) -> list[Tensor]:
        """Return ``leftᵀ right`` for each of `rights`, as `contract` does."""
        return [self.contract(left, right) for right in rights]

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over rows, the first dimension; without history."""
        return column_sums(rows)

    def total_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the sum over the elementwise product ``left right``; without history."""
        total = left.new_zeros((), dtype=widened(left[:0]).dtype)
        # Multiply a few rows at a time, so that their products stay in cache.
        for part, factors in zip(
            torch.split(left, _FEW_ROWS), torch.split(right, _FEW_ROWS), strict=True
        ):
            total += (widened(part) * factors).sum()
        return total

    @collective
    def added(self, add: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        """Return `add` of rows (any, width), sums of them that may be over ranks; no history."""
        return add(rows)

    @collective
    def rows_of(self, shared: Tensor, numbers: Tensor) -> Tensor:
        """Return rows (..., width) of a table (any, width) that all ranks share, differentiable.

        Its backward pass is collective.
        """
        return shared[numbers]

    def loss(self, values: Tensor) -> Tensor:
        """Return a scalar whose sum over ranks is the sum of all `values` (rows,)."""
        return values.sum()

    def cross_entropies(
        self, logits: Tensor, target: Tensor, factors: Tensor | None, divisor: float
    ) -> Tensor:
        """Return a scalar whose sum over ranks is the sigmoid cross entropy, differentiable.

        `target` has the shape of the logits, (rows, C), and factors are (rows, 1), None for ones.
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
        epilogue: Epilogue | None = None,
    ) -> Tensor:
        """Return ``rows weightᵀ + bias`` after its epilogue, differentiable in all three.

        The result is in reused memory. `WIDENED` inside `late_maps` it may be a `MappedRows`.
        """
        if epilogue is WIDENED and not self.sums_are_whole and is_mapped_late(rows):
            return MappedRows.of((rows, weight, bias), partial(self.linear, epilogue=WIDENED))
        if has_epilogue_apart(epilogue, rows):
            mapped = _Linear.apply(self, rows, weight, None, None)  # type: ignore[no-untyped-call]
            return with_epilogue(mapped, bias, epilogue)
        return _Linear.apply(self, rows, weight, bias, epilogue)  # type: ignore[no-untyped-call]

    def matmul(self, rows: Tensor, matrix: Tensor) -> Tensor:
        """Return ``rows matrix``, differentiable in both."""
        if self.sums_are_whole or rows.dtype != matrix.dtype:
            return self.linear(rows, matrix.t())
        return rows @ matrix

    def multiply_each(self, rows: Tensor, matrices: Tensor) -> Tensor:
        """Return (rows, O): each row (rows, I) times its own matrix (rows, I, O)."""
        return torch.bmm(rows[:, None], matrices)[:, 0]

    def layer_norm(self, rows: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        """Return rows (any, width), each normalised to mean 0 and variance 1, differentiable.

        `scale` and `shift` are (width,); `eps` is added to the variances.
        """
        if rows.is_cuda and rows.dtype != scale.dtype:
            # Only torch's CPU kernels accept rows of 16 bits with weights of 32.
            wide = functional.layer_norm(widened(rows), scale.shape, scale, shift, eps)
            return wide.to(rows.dtype)
        return functional.layer_norm(rows, scale.shape, scale, shift, eps)

    def for_rows(self, shared: Tensor, num_rows: int) -> Tensor:
        """Return values shared by all rows in a form that broadcasts to them, differentiable."""
        return shared

    @collective
    def sums_and_count(self, rows: Tensor, sums: RankSums) -> FloatArray:
        """Return the sums over the rows (rows, width) of all ranks, followed by their number.

        The result is float64 in main memory; `sums` adds an array up over the ranks.
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
        """Replace a gradient summed over this rank's rows by that of all ranks."""
        sums(gradient)

    def elu(self, rows: Tensor) -> Tensor:
        """Return ``x`` if it is positive, else ``exp(x) - 1``, differentiable."""
        return functional.elu(rows)

    def gelu(self, rows: Tensor) -> Tensor:
        """Return ``x Φ(x)`` with the normal distribution Φ, differentiable."""
        return functional.gelu(rows)

    def linear_by_head(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return ``W_h x_h`` (rows, H, O) for rows (rows, H, I) and weights (H, O, I)."""
        return torch.einsum("nhi,hoi->nho", rows, weights)

    def combine(self, coefficients: Tensor, matrices: Tensor) -> Tensor:
        """Return ``Σ_b a_rb V_b`` for weights a (R, B) and V (B, I, O), differentiable in both."""
        return torch.einsum("rb,bio->rio", coefficients, matrices)

    def on_weights(self) -> AbstractContextManager[None]:
        """Return a context for work on weights, which all ranks repeat identically."""
        return nullcontext()


class _Linear(torch.autograd.Function):
    """A linear map whose forward and backward passes use a given arithmetic."""

    @staticmethod
    def forward(
        ctx: Any,
        rule: Arithmetic,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        epilogue: Epilogue | None,
    ) -> Tensor:
        narrow, wide = like_rows(weight, rows), epilogue is WIDENED
        epilogue = None if wide else epilogue
        ctx.rule, ctx.epilogue = rule, epilogue
        early = bias if epilogue is None else None
        result = rule.affine(rows, narrow.t(), early, dtype=weight.dtype if wide else None)
        if epilogue is not None:
            apply_epilogue(result, bias, epilogue)
        ctx.save_for_backward(rows, narrow, None if epilogue is None else result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (rows, narrow, result), rule = ctx.saved_tensors, ctx.rule
        _, for_rows, for_weight, for_bias, _ = ctx.needs_input_grad
        upper = narrowed(gradients[0].contiguous(), narrow.dtype, [narrow])
        gradient, sums = before_epilogue((upper, result), ctx.epilogue, bias=for_bias)
        return (
            None,
            rule.affine(gradient, narrow, dtype=narrow.dtype) if for_rows else None,
            rule.contract(gradient, rows) if for_weight else None,
            sums,
            None,
        )


_FASTEST = Arithmetic()
_arithmetic: ContextVar[Arithmetic | None] = ContextVar("arithmetic", default=None)


def arithmetic() -> Arithmetic:
    """Return the arithmetic that the functions of this package use now."""
    return _arithmetic.get() or _FASTEST


class _WithEpilogue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor | None, epilogue: Epilogue) -> Tensor:
        apply_epilogue(rows, bias, epilogue)
        ctx.mark_dirty(rows)
        ctx.epilogue, ctx.reads_in_chunks = epilogue, rows.is_cpu
        ctx.save_for_backward(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (result,), (gradient,), needs_bias = ctx.saved_tensors, gradients, ctx.needs_input_grad[1]
        out = result if is_last_use(result) else memory_of(result).empty(result, result.shape)
        totals: Tensor | None = None
        for chunk in gradient_chunks(gradient):
            rows = gradient[chunk], result[chunk]
            _, sums = before_epilogue(rows, ctx.epilogue, bias=needs_bias, out=out[chunk])
            totals = sums if totals is None or sums is None else totals + sums
        return out, totals, None


def with_epilogue(rows: Tensor, bias: Tensor | None, epilogue: Epilogue) -> Tensor:
    """Return rows (any, width) plus the bias (width,) after its epilogue, in the memory of `rows`.

    No other function may have saved `rows`. As a function of its own rather than the last step of a
    layer, its backward pass lets go of the result and its gradient before that of the layer begins.
    """
    return _WithEpilogue.apply(rows, bias, epilogue)  # type: ignore[no-untyped-call]


def has_epilogue_apart(epilogue: Epilogue | None, *inputs: Tensor) -> TypeGuard[Epilogue]:
    """Return whether `with_epilogue` should follow: gradients of a layer's inputs need memory."""
    rectifies = epilogue is not None and epilogue is not WIDENED
    return rectifies and any(rows.requires_grad for rows in inputs)


def gradient_chunks(gradient: Tensor) -> list[slice]:
    """Return slices, at least one, for work that reads a gradient (rows, any) once.

    Each stays in cache if reading widens or computes its rows, see `RowProducts`.
    """
    if not gradient.is_cpu or arithmetic().sums_are_whole:
        return [slice(None)]
    if type(gradient) is Tensor:
        return row_chunks(gradient) or [slice(None)]
    step = max(1, _COMPUTED_BYTES // max(1, gradient.shape[1] * gradient.element_size()))
    return [slice(start, start + step) for start in range(0, max(1, len(gradient)), step)]


def before_epilogue(
    rows: tuple[Tensor, Tensor | None],
    epilogue: Epilogue | None,
    *,
    bias: bool,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of rows before their epilogue, and that of the bias if it is asked for.

    `rows` are the gradient (rows, width) of the result and the result, which is None without
    `epilogue`. `out` is memory for the former, which may be the result's.
    """
    (gradient, result), whole = rows, arithmetic().sums_are_whole
    before, sums = epilogue_gradient(
        gradient.contiguous(), result, epilogue, of_bias=bias and not whole, out=out
    )
    return before, arithmetic().total(before) if bias and whole else sums


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
    """Return a scalar whose sum over ranks is that of all `values` (rows,), differentiable."""
    total: Tensor = _LossSum.apply(values)  # type: ignore[no-untyped-call]
    return total


@contextmanager
def computing_with(chosen: Arithmetic) -> Iterator[None]:
    """Use another arithmetic for the enclosed forward and backward passes."""
    token = _arithmetic.set(chosen)
    try:
        yield
    finally:
        _arithmetic.reset(token)
