"""Reproducible arithmetic: results have the same bits for any number of ranks and threads.

A product of rows and a matrix sums each of its numbers in the order of the columns, whichever rows
a rank has. A sum over rows has no natural order, so it is a sum of integers: every term is rounded
once to a multiple of a power of two, which depends only on the largest term of all ranks, and
integers add up exactly. (Pre-rounding, as in Demmel and Nguyen, "Fast reproducible floating-point
summation", ARITH 2013; the products of the integers' digits follow Ozaki et al., Numerical
Algorithms 59, 2012.) Sums that meet weights are always those of all ranks, so that everything
computed from them is the same on all ranks.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from hpcgnn import kernels
from hpcgnn.autograd.epilogue import apply_epilogue
from hpcgnn.autograd.numerics.plain import Arithmetic
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.comm import ProcessGrid, allreduce_max, allreduce_sum
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.spmm import IntegerSums
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray

_DIGITS = {torch.float32: 1, torch.float64: 3}
"""Digits of a factor: with one, a product has 44 bits below its largest term, with three 66."""
_BITS, _LIMB = kernels.CONTRACT_BITS, kernels.LIMB_BITS
_CHUNK = 512
"""Rows whose products of two digits add up exactly in float64: 2 * 22 + 9 = 53 bits."""
_INDEX_ENTRIES = 1 << 18
"""Entries in a chunk of rows that are multiplied by matrices of their own."""
_NOT_FINITE = 1 << 20
_ONE_INTEGER = 1 << 63
"""Sums below this are sent as one integer."""


class ExactArithmetic(Arithmetic):
    """Products and sums of rows with the same bits for any number of ranks and threads.

    Replicas have equal rows, which count once.
    """

    sums_are_whole = True

    def __init__(self, grid: ProcessGrid, trace: TraceRecorder | None = None) -> None:
        self._grid = grid
        self._trace = trace if trace is not None else TraceRecorder.off()

    @override
    def _multiply(
        self, rows: Tensor, matrix: Tensor, out: Tensor, bias: Tensor | None, *, accumulate: bool
    ) -> Tensor:
        # There are no rows of 16 bits.
        assert out.dtype == rows.dtype
        if isinstance(rows, SparseFeatures):
            rows.write_product(matrix, out, accumulate=accumulate)
        else:
            # BLAS libraries guarantee no order of summation.
            factors = rows.contiguous().numpy(), matrix.contiguous().numpy()
            kernels.ordered_product(*factors, out.numpy(), accumulate=accumulate)
        apply_epilogue(out, bias, None)
        return out

    @collective
    def contract(self, left: Tensor, right: Tensor) -> Tensor:
        """Return ``leftᵀ right`` over the rows of all ranks."""
        if isinstance(right, SparseFeatures):
            return self._contract_sparse(left, right)
        if isinstance(left, SparseFeatures):
            return self._contract_sparse(right, left).t()
        tables = left.contiguous().numpy(), right.contiguous().numpy()
        exponents, num_rows = self._exponents(*tables)
        first, second = (_powers(_BITS - exponent) for exponent in exponents)
        levels = kernels.exact_contract(*tables, (first, second), _DIGITS[left.dtype])
        bound = len(levels) * num_rows << 2 * _BITS
        product = self._whole(levels, np.add.outer(*exponents) - 2 * _BITS, bound)
        return torch.from_numpy(product).to(left.dtype)

    @collective
    def _contract_sparse(self, left: Tensor, right: SparseFeatures) -> Tensor:
        """Return the result of `contract` for sparse rows, from their non-zeros only."""
        entries = right.by_column(_CHUNK)
        tables = left.contiguous().numpy(), entries.largest(right.shape[1]).numpy()[None]
        (first, second), num_rows = self._exponents(*tables)
        count = 2 if left.dtype == torch.float32 else 3
        levels = torch.zeros((count, 2, right.shape[1], left.shape[1]), dtype=torch.int64)
        a = _digits(left, torch.from_numpy(_powers(_BITS - first)), count)
        factors = torch.from_numpy(_powers(_BITS - second))[entries.columns]
        b = _digits(entries.values, factors, count)
        # Level l is the sum of the products of digits d and l - d.
        for level, sums in enumerate(levels):
            for digit in range(level + 1):
                _count(entries.product(b[digit], a[level - digit]), sums, entries.runs)
        units = np.add.outer(second, first) - 2 * _BITS
        total = self._whole(levels.numpy(), units, count * num_rows << 2 * _BITS)
        return torch.from_numpy(total).t().to(left.dtype)

    @collective
    def total(self, rows: Tensor) -> Tensor:
        """Return the sum over the rows of all ranks."""
        return self.wide_total(rows).to(rows.dtype)

    @collective
    def total_product(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the sum of the elementwise products of the rows of all ranks."""
        return self.total(left * right).sum()

    @collective
    def wide_total(self, rows: Tensor) -> Tensor:
        """Return the sum over the rows of all ranks in float64."""
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:])).contiguous().numpy()
        (exponents,), num_rows = self._exponents(flat)
        sums = kernels.exact_total(flat, _powers(_LIMB - exponents))
        whole = self._whole(sums[None], exponents - 2 * _LIMB, num_rows << 2 * _LIMB)
        return torch.from_numpy(whole).reshape(rows.shape[1:])

    @collective
    def total_of(self, rows: FloatArray) -> FloatArray:
        """Return the sum over the rows of all ranks, for an array in main memory."""
        return self.total(torch.from_numpy(rows)).numpy()

    @collective
    def contract_of(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return ``leftᵀ right`` over the rows of all ranks, for arrays in main memory."""
        return self.contract(torch.from_numpy(left), torch.from_numpy(right)).numpy()

    def product_of(self, rows: FloatArray, matrix: FloatArray) -> FloatArray:
        """Return ``rows matrix`` for arrays in main memory."""
        return self.product(torch.from_numpy(rows), torch.from_numpy(matrix)).numpy()

    @collective
    @override
    def sums_and_count(self, rows: Tensor, sums: RankSums) -> FloatArray:
        count = np.array([len(rows)], np.float64)
        sums(count)
        return np.concatenate([self.wide_total(rows).numpy(), count])

    def complete(self, gradient: FloatArray, sums: RankSums) -> None:
        """Leave a gradient unchanged, as it is already that of all ranks."""

    @collective
    @override
    def added(self, add: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:

        def added(integers: Array) -> FloatArray:
            return add(torch.from_numpy(integers.astype(np.float64))).numpy()

        counts = added(np.ones((len(rows), 1), np.int32))
        sums = IntegerSums.of(self._grid, self._trace, counts)
        return torch.from_numpy(sums.run(added, rows.contiguous().numpy()))

    @collective
    @override
    def rows_of(self, shared: Tensor, numbers: Tensor) -> Tensor:
        return _RowsOf.apply(self, shared, numbers)  # type: ignore[no-untyped-call]

    @collective
    def loss(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks on the first block row, and zero on the others."""
        whole = self.total(values[:, None])[0]
        return whole if self._grid.block == 0 else torch.zeros_like(whole)

    @override
    def cross_entropies(
        self, logits: Tensor, target: Tensor, factors: Tensor | None, divisor: float
    ) -> Tensor:
        # Use only exponentials and logarithms: torch's sigmoid computes the last elements of an
        # array, those beyond the last full vector, differently.
        entropies = _softplus(logits.double()) - logits.double() * target
        rows = (entropies if factors is None else entropies * factors).sum(1)
        total: Tensor = _Loss.apply(self, rows.to(logits.dtype))  # type: ignore[no-untyped-call]
        return total / divisor

    @override
    def sigmoid(self, rows: Tensor) -> Tensor:
        small = _minus_abs(rows).exp()
        return torch.where(rows > 0, 1, small) / (1 + small)

    @override
    def softplus(self, rows: Tensor) -> Tensor:
        return _softplus(rows.double()).to(rows.dtype)

    @override
    def for_rows(self, shared: Tensor, num_rows: int) -> Tensor:
        return _ForRows.apply(self, shared, num_rows)  # type: ignore[no-untyped-call]

    @override
    def elu(self, rows: Tensor) -> Tensor:
        # torch's own computes the last elements, beyond the last full vector, differently.
        below = torch.exp(rows.clamp(max=0).double()).sub(1).to(rows.dtype)
        return torch.where(rows > 0, rows, below)

    @override
    def gelu(self, rows: Tensor) -> Tensor:
        # See `elu`; torch's error function is the same for all elements.
        return rows * (0.5 * (1 + torch.erf(rows * math.sqrt(0.5))))

    @override
    def linear_by_head(self, rows: Tensor, weights: Tensor) -> Tensor:
        heads = zip(rows.unbind(1), weights, strict=True)
        return torch.stack([self.linear(*head) for head in heads], dim=1)

    @override
    def layer_norm(self, rows: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        normed = functional.layer_norm(rows, scale.shape, eps=eps)
        scale, shift = (self.for_rows(parameter, len(rows)) for parameter in (scale, shift))
        return normed * scale + shift

    @override
    def multiply_each(self, rows: Tensor, matrices: Tensor) -> Tensor:
        return _MultiplyEach.apply(rows, matrices)  # type: ignore[no-untyped-call]

    @override
    def combine(self, coefficients: Tensor, matrices: Tensor) -> Tensor:
        flat = matrices.reshape(len(matrices), -1)
        result: Tensor = _Combine.apply(  # type: ignore[no-untyped-call]
            self, coefficients, flat
        )
        return result.view(-1, *matrices.shape[1:])

    def on_weights(self) -> AbstractContextManager[None]:
        """Return a context with one torch thread: its loops then do not depend on threads."""
        return _one_thread()

    @collective
    def sum_over_ranks(self, integers: Tensor) -> None:
        """Replace integers in float64 by their sums over all ranks."""
        with self._span(integers.numpy()):
            allreduce_sum(self._grid.layer, integers.numpy())

    def _exponents(self, *tables: FloatArray) -> tuple[list[NDArray[np.int32]], int]:
        """Return, by column, the exponent of the smallest power of two above all its numbers.

        The second result is an upper bound of the number of rows of all ranks.
        """
        rows = np.array([len(tables[0])], np.float64)
        top = np.concatenate([*map(kernels.column_largest, tables), rows])
        with self._span(top):
            allreduce_max(self._grid.layer, top)
        top, num_rows = top[:-1], int(top[-1]) * self._grid.num_blocks
        exponents = np.frexp(top)[1].astype(np.int32)
        exponents[np.isinf(top)] = _NOT_FINITE
        ends = np.cumsum([table.shape[1] for table in tables])[:-1]
        return np.split(exponents, ends), num_rows

    def _span(self, share: Array) -> AbstractContextManager[Any]:
        size = share.nbytes * (self._grid.num_blocks > 1)
        return self._trace.span("reduce.exact", bytes=size)

    def _whole(self, levels: NDArray[np.int64], units: NDArray[np.int32], bound: int) -> FloatArray:
        """Return the float64 sums over ranks of levels (L, 2, ...), which have two limbs each.

        `units` are exponents of the first level's unit; no sum of all ranks exceeds `bound`.
        """
        # Send both limbs as one integer if it holds them.
        sums = (levels[:, :1] << _LIMB) + levels[:, 1:] if bound < _ONE_INTEGER else levels
        with self._span(sums):
            allreduce_sum(self._grid.layer, sums)
        if sums is not levels:
            upper = sums >> _LIMB
            levels = np.concatenate([upper, sums - (upper << _LIMB)], axis=1)
        whole, missing = np.zeros(units.shape), units > _NOT_FINITE // 2
        units = np.where(missing, 0, units)
        # Start with the smallest: a level's unit is 2^-22 of that before.
        for number, (upper, lower) in reversed(list(enumerate(levels))):
            carried = lower >> _LIMB
            high, low = upper + carried, lower - (carried << _LIMB)
            value = high.astype(np.float64) * (1 << _LIMB) + low
            whole += value * _powers(units - number * _BITS)
        whole[missing] = np.nan
        return whole


def _softplus(wide: Tensor) -> Tensor:
    return torch.where(wide > 0, wide, 0) + (1 + _minus_abs(wide).exp()).log()


def _minus_abs(x: Tensor) -> Tensor:
    """Return ``-abs(x)`` with a derivative of 1 at 0, where `torch.abs` would have 0."""
    return torch.where(x > 0, -x, x)


def _powers(exponents: NDArray[np.int32]) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.ldexp(1.0, exponents)


def _digits(rows: Tensor, factors: Tensor, count: int) -> list[Tensor]:
    """Return the leading digits of rows times factors, integers in base 2^22, in float64."""
    rest = rows.double() * factors
    digits = [rest.round()]
    while len(digits) < count:
        rest = rest.sub_(digits[-1]).mul_(1 << _BITS)
        digits.append(rest.round())
    return digits


def _count(sums: Tensor, limbs: Tensor, rows: Tensor) -> None:
    """Add integers below 2^53, given in float64, to some rows of a sum with two limbs."""
    integers = sums.to(torch.int64)
    upper = integers >> _LIMB
    for limb, part in zip(limbs, (upper, integers.sub_(upper << _LIMB)), strict=True):
        limb.index_add_(0, rows, part)


def _multiply_each(rows: Tensor, matrices: Tensor) -> Tensor:
    count, width, columns = matrices.shape
    out = torch.empty((count, columns), dtype=rows.dtype)
    # A sparse matrix whose row i selects the rows of the i-th dense matrix.
    step = max(1, _INDEX_ENTRIES // max(1, width * columns))
    for start in range(0, count, step):
        chunk = slice(start, start + step)
        values = rows[chunk].contiguous().numpy()
        dense = matrices[chunk].contiguous().view(-1, columns).numpy()
        indptr = np.arange(len(values) + 1, dtype=np.int64) * width
        entries = kernels.SparseMatrix(
            indptr, np.arange(values.size, dtype=np.int32), values.reshape(-1)
        )
        kernels.spmm(entries, dense, out[chunk].numpy())
    return out


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: ExactArithmetic, values: Tensor) -> Tensor:
        ctx.num_rows = len(values)
        return exact.loss(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0].expand(ctx.num_rows)


class _ForRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: ExactArithmetic, shared: Tensor, num_rows: int) -> Tensor:
        ctx.exact = exact
        return shared.expand(num_rows, *shared.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        return None, ctx.exact.total(gradients[0]), None


class _RowsOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: ExactArithmetic, shared: Tensor, numbers: Tensor) -> Tensor:
        ctx.exact, ctx.numbers, ctx.count = exact, numbers, len(shared)
        return shared[numbers]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        numbers, exact = ctx.numbers.reshape(-1), ctx.exact

        def add(rows: Tensor) -> Tensor:
            sums = rows.new_zeros(ctx.count, rows.shape[1]).index_add_(0, numbers, rows)
            exact.sum_over_ranks(sums)
            return sums

        rows = gradients[0].reshape(len(numbers), gradients[0].shape[-1])
        return None, exact.added(add, rows), None


class _MultiplyEach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrices: Tensor) -> Tensor:
        ctx.save_for_backward(rows, matrices)
        return _multiply_each(rows, matrices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (rows, matrices), gradient = ctx.saved_tensors, gradients[0]
        for_rows = _multiply_each(gradient, matrices.transpose(1, 2))
        return for_rows, rows[:, :, None] * gradient[:, None]


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exact: ExactArithmetic, coefficients: Tensor, matrices: Tensor) -> Tensor:
        ctx.exact = exact
        ctx.save_for_backward(coefficients, matrices)
        return exact.product(coefficients, matrices)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (coefficients, matrices), exact = ctx.saved_tensors, ctx.exact
        gradient = gradients[0].contiguous()
        for_coefficients = exact.product(gradient, matrices.t())
        return None, for_coefficients, exact.product(coefficients.t(), gradient)
