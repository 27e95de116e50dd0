"""Products whose bits depend on no order: integers that add up as float64.

``D_r^-a A D_c^-b x`` is taken apart: scale the rows of x, multiply with the entries of A alone,
scale the result. Between the scalings the numbers of a column are integers, x rounded to a multiple
of a power of two that is chosen by the largest of any rank and the largest row sum of A, so that no
sum passes 2^31, 2^39 or 2^47. Such sums are exact in float64 in any order: whoever multiplies an
entry, at whatever stage, and however partial sums are added up on their way. So every exchange,
schedule and grid gives equal bits, and the product itself is `DistributedSpMM` as it is. Rows
travel in 4 bytes a number and partial sums in 4 to 6 each, by how many terms it has.
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
"""Of a rounded number, below the largest of its column, beside those that its dtype has.

The fewer are enough where most exchanges push, rather than a second integer for each number: some
node has 2^17 terms or more.
"""


@dataclass(frozen=True, eq=False)
class IntegerSums:
    """Sums over rows that any rank has, below 2^`log_terms` of one number.

    A number has `more_bits` beside those of its dtype, or as many as sums have room for where these
    are `enough`.
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
        """Return those of which a rank has `sums`, (any, 1), where every number is one."""
        largest = np.array([sums.max(initial=1.0)])
        allreduce_max(grid.layer, largest)
        log_terms = int(np.frexp(largest)[1][0])
        return cls(grid, trace, log_terms, more_bits, more_bits if enough is None else enough)

    def digits(self, dtype: DTypeLike) -> tuple[int, int]:
        """Return how many digits a number has, and the bits of one."""
        wanted, enough = (np.finfo(dtype).nmant + each for each in (self.more_bits, self.enough))
        least, most = (
            min(8 * size - 1 - self.log_terms, INTEGER_BITS)
            for size in (min(SUM_BYTES), max(SUM_BYTES))
        )
        count = -(-enough // most)
        # No more than asked for, so that most sums are short, unless all are.
        return count, min(max(-(-wanted // count), least), most)

    @collective
    def run(
        self,
        product: Callable[[Array], Array],
        x: Array,
        factors: tuple[FloatArray | None, FloatArray | None] = (None, None),
        unit: float = 1.0,
    ) -> Array:
        """Return (results, width) what `product` adds up of rows `x` (any, width), of their dtype.

        `product` adds rows of int32 up in float64, and is collective. `factors` are those of rows,
        before and after it; None: ones. All results are multiplied with `unit`, a power of two.
        """
        before, after = factors
        top = self.largest(column_largest(x, factors=before))

        def add_up(scale: FloatArray, bits: int, num_digits: int) -> Array:
            return product(exact_digits(x, scale, bits, num_digits, factors=before))

        return self.join(add_up, top, x.dtype, after, unit)

    @collective
    def largest(self, tops: FloatArray) -> FloatArray:
        """Return the largest of all ranks, in place of those of this one."""
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
        """Return (results, width) of what `add_up` adds up, in float64.

        It gets a scale of each column, a power of two, the bits of a digit, and how many there are.
        `top` (width,) are above all numbers, on all ranks alike; `factors` are those of results.
        """
        num_digits, bits = self.digits(dtype)
        exponents = np.frexp(top)[1]
        scale = np.ldexp(1.0, bits - exponents)
        longest = int(sum_bytes(np.array([self.log_terms]), bits)[0])
        with self.grid.moment.summing(bits, longest):
            sums = add_up(scale, bits, num_digits)
        units = np.ldexp(unit, exponents - bits)
        units[np.isinf(top)] = np.nan
        out = empty((len(sums), len(top)), dtype)
        exact_join(sums, units, bits, out, factors=factors)
        return out


class ExactProduct:
    """A scaled matrix as an `AggregationOperator` with equal bits at any distribution."""

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        matrix: IntegerCSR,
        exchange: Exchange,
        trace: TraceRecorder,
        largest: tuple[float, float] | None = None,
    ) -> None:
        # `largest` are the largest sums of a row and a column of all ranks, where they are known.
        self._factors, self.trace, self.moment = matrix.factors, trace, grid.moment
        self._integers = integers = DistributedSpMM(grid, matrix, exchange, trace)
        # How many rows travel must not choose the order of a layer's products.
        self.size = replace(integers.size, num_moved=0, chooses_columns=False)
        rows, columns = integers.shape
        # A sum of numbers of both signs passes through larger ones, and is sent in parts.
        terms, magnitudes = integers, matrix.magnitudes(grid)
        if magnitudes is not matrix:
            terms = DistributedSpMM(grid, magnitudes, exchange, trace)
        with grid.moment.counting():
            by_row = terms.apply(np.ones((columns, 1), np.int32))
            by_column = terms.apply_transpose(np.ones((rows, 1), np.int32))
        if largest is not None:
            by_row, by_column = (np.array([[each]]) for each in largest)
        self._of_rows = IntegerSums.of(grid, trace, by_row)
        # A symmetric matrix multiplies with gradients as with rows, and may fetch both.
        enough = _MORE_BITS if integers.is_symmetric else _ENOUGH_PUSHED
        self._of_columns = IntegerSums.of(grid, trace, by_column, enough=enough)

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
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
