"""Sums that no order changes, of rows scaled to integers, and dense products in one order.

The results depend neither on the number of threads nor, for equal scales, on which rows a rank has:
sums of ranks add up to the sum of all.
"""

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from hpcgnn.kernels import _kernels
from hpcgnn.kernels.arguments import Run, execution
from hpcgnn.kernels.reuse import empty
from hpcgnn.typing import Array, FloatArray

CONTRACT_BITS = 22
"""Of a digit of a factor of `exact_contract`; none of its scaled numbers may reach 2^22."""
LIMB_BITS = 25
"""A sum is the first of its two limbs times 2^25, and the second."""


def column_largest(
    x: FloatArray,
    *,
    factors: FloatArray | None = None,
    **run: Unpack[Run],
) -> FloatArray:
    """Return (w,) float64 the largest magnitude of each column of `x` (m, w).

    It is infinity where a number is not finite. `factors` (m,) float64 are those of rows.
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

    `x` is (m, w) float32 or float64, with less than 2^38 rows; `scale` (w,) float64 brings no
    number to 2^25.
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

    Numbers of `left` (m, I) and `right` (m, J), float32 or float64, are cut into so many digits of
    22 bits, each the integer next to what those before it leave times 2^22. Level l is the sum over
    rows of the products of digits d and l - d, worth ``2^-22l``. With one digit, which float32
    alone has, a number is not rounded, and each product is rounded down.
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

    A digit is the integer next to what those before it leave times ``2^bits``; `scale` (w,) float64
    brings no number to ``2^bits``. `factors` (m,) float64 are those of rows.
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
    """Write to `out` (m, w) what `sums` (m, digits * w), integers in float64, stand for.

    It is ``f_i Σ_d u_c 2^(-bits d) sums_d``, rounded to the dtype of `out` at the end; `units` u
    are (w,) float64 and `factors` f (m,).
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
    """Write or add ``x matrix`` to `out` (m, w), each number summed in the order of the columns.

    A row's result does not depend on the rows beside it, as that of a library's product may. `x`
    is (m, k), `matrix` (k, w), all float32 or all float64.
    """
    _kernels.ordered_product(x, matrix, out, accumulate, *execution(**run))
