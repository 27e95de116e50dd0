"""Products whose bits do not depend on the order of summation: integers added up in float64.

``D_r^-a A D_c^-b x`` is computed in three steps: scale the rows of x, multiply by the entries of A,
scale the result. Between the scalings the numbers of a column are integers: x is rounded to
multiples of a power of two, chosen by the column's largest number on any rank and the largest row
sum of A so that no sum exceeds 2^31, 2^39 or 2^47. Such sums are exact in float64 in any order, so
every exchange, schedule and grid gives equal bits. The product itself is an ordinary
`DistributedSpMM`. Rows travel in 4 bytes a number, partial sums in 4 to 6, by their terms.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import ProcessGrid, allreduce_max
from hpcgnn.kernels import column_largest, exact_digits, exact_join
from hpcgnn.kernels.reuse import empty
from hpcgnn.operator import Meanwhile
from hpcgnn.sparse import IntegerCSR
from hpcgnn.spmd import collective
from hpcgnn.spmm.product import DistributedSpMM
from hpcgnn.spmm.remote import Exchange
from hpcgnn.spmm.wire import INTEGER_BITS, SUM_BYTES, sum_bytes
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray

_MORE_BITS, _ENOUGH_PUSHED = 7, 3
"""Bits of a rounded number beyond its dtype's mantissa, relative to its column's largest number.

The smaller figure suffices where most exchanges push and more bits would need a second integer for
each number, because some node has 2^17 terms or more.
"""


@dataclass(frozen=True, eq=False)
class IntegerSums:
    """Integer sums over rows of all ranks, with fewer than 2^`log_terms` terms.

    A number has `more_bits` beyond the mantissa of its dtype. If sums have no room for these, it
    has as many as fit, but at least `enough`.
    """

    grid: ProcessGrid
    trace: TraceRecorder
    log_terms: int
    more_bits: int = _MORE_BITS
    enough: int = _MORE_BITS

    @classmethod
    @collective
    def of(
        cls,
        grid: ProcessGrid,
        trace: TraceRecorder,
        sums: FloatArray,
        more_bits: int = _MORE_BITS,
        enough: int | None = None,
    ) -> "IntegerSums":
        """Return the sums whose numbers of terms on this rank are `sums`, (any, 1)."""
        largest = np.array([sums.max(initial=1.0)])
        allreduce_max(grid.layer, largest)
        log_terms = int(np.frexp(largest)[1][0])
        return cls(grid, trace, log_terms, more_bits, more_bits if enough is None else enough)

    def digits(self, dtype: DTypeLike) -> tuple[int, int]:
        """Return how many digits (integers) represent a number, and the bits of a digit."""
        wanted, enough = (np.finfo(dtype).nmant + bits for bits in (self.more_bits, self.enough))
        least, most = (
            min(8 * size - 1 - self.log_terms, INTEGER_BITS)
            for size in (min(SUM_BYTES), max(SUM_BYTES))
        )
        count = -(-enough // most)
        # No more bits than wanted, so that most sums are short; more if even the longest are.
        return count, min(max(-(-wanted // count), least), most)

    @collective
    def run(
        self,
        product: Callable[[Array], Array],
        x: Array,
        factors: tuple[FloatArray | None, FloatArray | None] = (None, None),
        unit: float = 1.0,
    ) -> Array:
        """Return (results, width) the exact `product` of rows `x` (any, width), in their dtype.

        `product` sums rows of int32 in float64 and is collective. `factors` scale the rows before
        and after it; None: ones. All results are multiplied by `unit`, a power of two.
        """
        before, after = factors
        top = self.largest(column_largest(x, factors=before))

        def add_up(scale: FloatArray, bits: int, num_digits: int) -> Array:
            return product(exact_digits(x, scale, bits, num_digits, factors=before))

        return self.join(add_up, top, x.dtype, after, unit)

    @collective
    def largest(self, tops: FloatArray) -> FloatArray:
        """Replace `tops` by its maximum over ranks, and return it."""
        with self.trace.span("reduce.largest", bytes=tops.nbytes * (self.grid.num_blocks > 1)):
            allreduce_max(self.grid.layer, tops)
        return tops

    @collective
    def join(
        self,
        add_up: Callable[[FloatArray, int, int], Array],
        top: FloatArray,
        dtype: DTypeLike,
        factors: FloatArray | None = None,
        unit: float = 1.0,
    ) -> Array:
        """Return (results, width) in `dtype` from the sums of digits that `add_up` returns.

        `add_up` gets each column's scale, a power of two, the bits of a digit and the number of
        digits; its sums are float64. `top` (width,) bounds the numbers of each column and is equal
        on all ranks. `factors` scale the results.
        """
        num_digits, bits = self.digits(dtype)
        exponents = np.frexp(top)[1]
        scale = np.ldexp(1.0, bits - exponents)
        longest = int(sum_bytes(np.array([self.log_terms]), bits)[0])
        with self.grid.run_position.summing(bits, longest):
            sums = add_up(scale, bits, num_digits)
        units = np.ldexp(unit, exponents - bits)
        units[np.isinf(top)] = np.nan
        out = empty((len(sums), len(top)), dtype)
        exact_join(sums, units, bits, out, factors=factors)
        return out


class ExactProduct:
    """A scaled matrix as an `AggregationOperator` with equal bits for any distribution."""

    @collective
    def __init__(
        self,
        matrix: IntegerCSR,
        exchange: Exchange,
        largest: tuple[float, float] | None = None,
    ) -> None:
        grid, trace = exchange.grid, exchange.trace
        # `largest` are the largest row sum and column sum over all ranks, if known already.
        self._factors, self.trace, self.run_position = matrix.factors, trace, grid.run_position
        self._integers = integers = DistributedSpMM(matrix, exchange)
        # The order of a layer's products must not depend on the distribution.
        self.size = replace(integers.size, num_moved=0, chooses_columns=False)
        rows, columns = integers.shape
        # With numbers of both signs, partial sums can exceed the sum itself, so bound them by sums
        # of magnitudes.
        terms, magnitudes = integers, matrix.magnitudes(grid)
        if magnitudes is not matrix:
            terms = DistributedSpMM(magnitudes, exchange)
        with grid.run_position.counting():
            by_row = terms.apply(np.ones((columns, 1), np.int32))
            by_column = terms.apply_transpose(np.ones((rows, 1), np.int32))
        if largest is not None:
            by_row, by_column = (np.array([[total]]) for total in largest)
        self._of_rows = IntegerSums.of(grid, trace, by_row)
        # A symmetric matrix multiplies gradients as it does rows, and its exchange may fetch both.
        enough = _MORE_BITS if integers.is_symmetric else _ENOUGH_PUSHED
        self._of_columns = IntegerSums.of(grid, trace, by_column, enough=enough)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of local rows of the result, and of the input."""
        return self._integers.shape

    @collective
    def apply(self, x: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``A x``; see `DistributedSpMM.apply`."""
        factors = self._factors
        product = partial(self._integers.apply, meanwhile=meanwhile)
        return self._of_rows.run(product, x, (factors.columns, factors.rows), factors.unit)

    @collective
    def apply_transpose(self, gradient: Array, meanwhile: Meanwhile | None = None) -> Array:
        """Return ``Aᵀ g``; see `DistributedSpMM.apply_transpose`."""
        factors = self._factors
        product = partial(self._integers.apply_transpose, meanwhile=meanwhile)
        scales = factors.rows, factors.columns
        return self._of_columns.run(product, gradient, scales, factors.unit)
