"""Order-independent sums of rows scaled to integers, and dense products in a fixed order.

The results do not depend on the number of threads. With equal scales they do not depend on how
rows are distributed either: the sums of all ranks add up to the sum over all rows.
"""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.kernels.reuse import empty
from hpcgnn.typing import Array, FloatArray

CONTRACT_BITS = 22
"""Bits of one digit in `exact_contract`; scaled numbers must be below 2^22 in magnitude."""
LIMB_BITS = 25
"""The value of a sum is its first limb times 2^25, plus its second limb."""


def column_largest(
    x: FloatArray,
    *,
    factors: FloatArray | None = None,
    **run: Unpack[Run],
) -> FloatArray:
    """Return the largest magnitude of each column of `x` (m, w), as (w,) float64.

    It is infinity where a number is not finite. `factors` (m,) float64 multiply the rows.
    """
    largest = np.empty(x.shape[1])
    _kernels.column_largest(x, factors, largest, *execution(**run))
    return largest


def exact_total(
    x: FloatArray,
    scale: FloatArray,
    **run: Unpack[Run],
) -> NDArray[np.int64]:
    """Return (2, w) limbs of ``2^25 Σ_i s_c x_ic``, each term rounded once to an integer.

    `x` is (m, w) float32 or float64, with fewer than 2^38 rows; with `scale` (w,) float64 all
    numbers must stay below 2^25 in magnitude.
    """
    sums = np.empty((2, x.shape[1]), np.int64)
    _kernels.exact_total(x, scale, sums, *execution(**run))
    return sums


def exact_contract(
    left: FloatArray,
    right: FloatArray,
    scales: tuple[FloatArray, FloatArray],
    digits: int,
    **run: Unpack[Run],
) -> NDArray[np.int64]:
    """Return (digits, 2, I, J) limbs of the levels of ``leftᵀ right``, scaled.

    Numbers of `left` (m, I) and `right` (m, J), float32 or float64, are split into `digits` digits
    of 22 bits: each is 2^22 times the remainder of those before it, rounded to an integer. Level l
    is the sum over rows of the products of digits d and l - d, with weight ``2^-22l``. With one
    digit (float32 only) numbers are not rounded, and each product is rounded down.
    """
    sums = np.empty((2 * digits, left.shape[1] * right.shape[1]), np.int64)
    _kernels.exact_contract(left, right, *scales, digits, sums, *execution(**run))
    return sums.reshape(digits, 2, left.shape[1], right.shape[1])


def exact_digits(
    x: FloatArray,
    scale: FloatArray,
    bits: int,
    digits: int,
    *,
    factors: FloatArray | None = None,
    **run: Unpack[Run],
) -> NDArray[np.int32]:
    """Return (m, digits * w) int32: the digits of rows `x` (m, w) times factors and scale.

    A digit is ``2^bits`` times the remainder of those before it, rounded to an integer. Numbers
    scaled by `scale` (w,) float64 must stay below ``2^bits``. `factors` (m,) float64 multiply rows.
    """
    out = empty((len(x), digits * x.shape[1]), np.int32)
    _kernels.exact_digits(x, factors, scale, bits, digits, out, *execution(**run))
    return out


def exact_join(
    sums: FloatArray,
    units: FloatArray,
    bits: int,
    out: FloatArray,
    *,
    factors: FloatArray | None = None,
    **run: Unpack[Run],
) -> None:
    """Write to `out` (m, w) the numbers whose digits are `sums` (m, digits * w).

    `sums` are integers in float64. A result is ``f_i Σ_d u_c 2^(-bits d) sums_d``, rounded once to
    the dtype of `out`; `units` u are (w,) float64 and `factors` f (m,).
    """
    digits = sums.shape[1] // max(out.shape[1], 1)
    _kernels.exact_join(sums, factors, units, bits, max(digits, 1), out, *execution(**run))


def ordered_product(
    x: FloatArray,
    matrix: FloatArray,
    out: Array,
    *,
    accumulate: bool = False,
    **run: Unpack[Run],
) -> None:
    """Write or add ``x matrix`` to `out` (m, w), summing over the columns of `x` in order.

    Unlike the product of a library, the result of a row does not depend on other rows. `x` is
    (m, k), `matrix` (k, w), all float32 or all float64.
    """
    _kernels.ordered_product(x, matrix, out, accumulate, *execution(**run))
