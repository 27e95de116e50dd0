"""Sums of integers equal those of Python's unlimited integers, for every instruction set."""

import numpy as np
import pytest
from numpy.typing import NDArray

from hpcgnn import kernels

ISAS = kernels.available_isas()
SIZES = [(0, 3, 2), (1, 1, 1), (129, 5, 35)]
SHIFT = 80
"""Fractional bits of the scaled numbers below: enough for all digits of the numbers here."""


def drawn(shape: tuple[int, int], seed: int, dtype: str = "float32") -> NDArray[np.floating]:
    """Return rows whose magnitudes spread over 20 powers of two, with zeros."""
    draw = np.random.default_rng(seed)
    rows = draw.standard_normal(shape) * np.exp2(draw.integers(-20, 1, (shape[0], 1)))
    rows[::7] = 0
    return rows.astype(dtype)


def scale_of(rows: NDArray[np.floating], bits: int) -> NDArray[np.float64]:
    return np.ldexp(1.0, bits - np.frexp(np.abs(rows).max(axis=0, initial=0))[1])


def long_integers(numbers: NDArray[np.floating]) -> NDArray[np.object_]:
    return np.vectorize(lambda x: int(x * 2.0**SHIFT), otypes=[object])(numbers.astype(np.float64))


def nearest(rows: NDArray[np.object_], count: int, bits: int) -> list[NDArray[np.object_]]:
    """Return the digits of the numbers that `long_integers` returned."""
    digits, half = [], 1 << (SHIFT - 1)
    for _ in range(count):
        lower, upper = (rows + half - 1) >> SHIFT, (rows + half) >> SHIFT
        # Halves are rounded to even.
        digits.append(np.where(lower % 2 == 0, lower, upper) if rows.size else lower)
        rows = (rows - (digits[-1] << SHIFT)) << bits
    return digits


def of_limbs(sums: NDArray[np.int64]) -> NDArray[np.object_]:
    whole: NDArray[np.object_] = (sums[0].astype(object) << kernels.LIMB_BITS) + sums[1]
    return whole


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "columns", "width"), SIZES)
def test_levels_of_a_contraction_are_exact(isa: str, rows: int, columns: int, width: int) -> None:
    left, right = drawn((rows, columns), 1), drawn((rows, width), 2)
    for dtype, count in (("float32", 2), ("float64", 3)):
        pair = left.astype(dtype) / 3, right.astype(dtype) / 3
        scales = scale_of(pair[0], 22), scale_of(pair[1], 22)
        levels = kernels.exact_contract(*pair, scales, count, threads=2, isa=isa)
        one, other = (
            nearest(long_integers(each * scale), count, 22)
            for each, scale in zip(pair, scales, strict=True)
        )
        for number, level in enumerate(levels):
            parts = [one[d].T @ other[number - d] for d in range(number + 1)]
            np.testing.assert_array_equal(of_limbs(level), sum(parts[1:], start=parts[0]))
    scales = scale_of(left, 22), scale_of(right, 22)
    (whole,) = kernels.exact_contract(left, right, scales, 1, threads=2, isa=isa)
    products = np.einsum(
        "ri,rj->rij", long_integers(left * scales[0]), long_integers(right * scales[1])
    )
    np.testing.assert_array_equal(of_limbs(whole), (products >> 2 * SHIFT).sum(axis=0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "columns", "width"), SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_totals_digits_and_products(
    isa: str, rows: int, columns: int, width: int, dtype: str
) -> None:
    x, matrix = drawn((rows, width), 3, dtype), drawn((width, columns), 4, dtype)
    factors = np.random.default_rng(5).random(rows)
    scaled = x.astype(np.float64) * factors[:, None]
    largest = kernels.column_largest(x, factors=factors, threads=2, isa=isa)
    np.testing.assert_array_equal(largest, np.abs(scaled).max(axis=0, initial=0))
    scale = scale_of(x, 25)
    first, second = nearest(long_integers(x * scale), 2, 25)
    total = of_limbs(kernels.exact_total(x, scale, threads=2, isa=isa))
    np.testing.assert_array_equal(total, (first.sum(0) << 25) + second.sum(0))
    scale = scale_of(scaled, 13)
    digits = kernels.exact_digits(x, scale, 13, 3, factors=factors, threads=2, isa=isa)
    expected = np.concatenate(nearest(long_integers(scaled * scale), 3, 13), axis=1)
    np.testing.assert_array_equal(digits, expected)
    joined = np.empty_like(x)
    kernels.exact_join(digits.astype(np.float64), 1 / scale, 13, joined, factors=factors)
    whole = sum(part * 2.0 ** (-13 * d) for d, part in enumerate(np.split(digits, 3, axis=1)))
    np.testing.assert_array_equal(joined, (whole / scale * factors[:, None]).astype(dtype))
    out = np.ones((rows, columns), dtype)
    kernels.ordered_product(x, matrix, out, accumulate=True, threads=2, isa=isa)
    alone = np.ones((rows, columns), dtype)
    for row in range(rows):
        own = slice(row, row + 1)
        kernels.ordered_product(x[own], matrix, alone[own], accumulate=True, isa=isa)
    np.testing.assert_array_equal(out, alone)
    exact = 1 + x.astype(np.float64) @ matrix.astype(np.float64)
    np.testing.assert_allclose(out, exact, rtol=1e-4 if dtype == "float32" else 1e-12, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_column_with_what_is_no_number_has_no_largest(isa: str, bad: float) -> None:
    x = drawn((40, 9), 6)
    x[17, 4] = bad
    largest = kernels.column_largest(x, isa=isa)
    assert np.isinf(largest).tolist() == [column == 4 for column in range(9)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_products_of_integers_are_exact(isa: str, width: int, weighted: bool) -> None:
    draw = np.random.default_rng(7)
    # The last row is long enough to be summed in segments.
    lengths = np.array([3, 0, 1, 9000])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = draw.integers(50, size=indptr[-1]).astype(np.int32)
    values = draw.integers(1, 1000, indptr[-1]).astype(np.float64) if weighted else None
    x = draw.integers(-(2**30), 2**30, (50, width)).astype(np.int32)
    out = np.full((4, width), 3.0)
    matrix = kernels.SparseMatrix(indptr, indices, values)
    kernels.spmm(matrix, x, out, accumulate=True, threads=2, isa=isa)
    dense = np.zeros((4, 50), np.int64)
    terms = np.ones(indptr[-1], np.int64) if values is None else values.astype(np.int64)
    np.add.at(dense, (np.repeat(np.arange(4), lengths), indices), terms)
    np.testing.assert_array_equal(out, 3 + dense @ x)
    places = draw.integers(4, size=50).astype(np.int32)
    kernels.scatter_add_rows(x, places, out, isa=isa)
    expected = 3 + dense @ x
    np.add.at(expected, places, x)
    np.testing.assert_array_equal(out, expected)
    for rows in (None, places):
        gathered = np.empty_like(x if rows is None else x[rows])
        kernels.gather_rows(x, rows, gathered, isa=isa)
        np.testing.assert_array_equal(gathered, x if rows is None else x[rows])
    with pytest.raises(TypeError, match="out must not be int32"):
        kernels.scatter_add_rows(x, places, np.zeros((4, width), np.int32), isa=isa)
