"""Rows in 8, 4 and 2 bits: levels next to the numbers, unbiased, equal on all ranks and threads."""

import numpy as np
import pytest

from hpcgnn.kernels import dequantise_rows, quantise_rows, quantised_bytes
from hpcgnn.typing import Array

BITS = (8, 4, 2)
WIDTHS = (1, 2, 3, 5, 6, 7, 16, 33, 256)


def there_and_back(x: Array, bits: int, key: int = 5, ids: Array | None = None, **how) -> Array:
    """Return rows as they arrive."""
    packed = np.full((len(x), quantised_bytes(x.shape[1], bits)), 0xAA, np.uint8)
    names = np.arange(len(x), dtype=np.int64) if ids is None else ids
    quantise_rows(x, names, key, bits, packed, **how)
    out = np.empty_like(x)
    dequantise_rows(packed, names, key, bits, out, **how)
    return out


def steps(x: Array, bits: int) -> Array:
    """Return the largest distance between two levels of a row, (rows, 1)."""
    low, high = x.min(axis=1), x.max(axis=1)
    if bits == 2:
        # The levels also span 0. A step keeps 4 bits, and its eighths give the lowest level.
        span = np.maximum(high, 0) - np.minimum(low, 0)
        return (span / 3 * (1 + 2.0**-3) / (1 - 1 / 24) * (1 + 2.0**-3))[:, None]
    # The lowest level and the step are rounded to 8 significant bits, outwards.
    span = (high - low) + np.abs(low) * 2.0**-7
    return (span * (1 + 2.0**-7) / (2**bits - 1))[:, None]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_levels_lie_next_to_the_numbers(bits: int, width: int) -> None:
    rng = np.random.default_rng(width)
    x = (rng.normal(size=(50, width)) * np.exp(rng.normal(size=(50, 1)) * 9)).astype(np.float32)
    x[0], x[1] = 0, 3.7
    x[2] = np.maximum(x[2], 0)
    found = there_and_back(x, bits)
    assert (np.abs(found - x) <= steps(x, bits) + 1e-30).all()
    # Zeros of a rectifier, and of padding, arrive as zeros.
    assert (found[0] == 0).all()
    assert (found[2][x[2] == 0] == 0).all()


@pytest.mark.parametrize("bits", BITS)
def test_expectation_is_the_number(bits: int) -> None:
    x = np.random.default_rng(1).normal(size=(1, 200)).astype(np.float32)
    draws = 4000
    rows = np.repeat(x, draws, axis=0)
    found = there_and_back(rows, bits, ids=np.arange(draws, dtype=np.int64) * 977 + 10**12)
    error = found.astype(np.float64).mean(axis=0) - x[0]
    # A draw deviates by at most half a step, so all 200 means are within 6 deviations.
    assert (np.abs(error) < 6 * 0.5 * steps(x, bits)[0] / np.sqrt(draws)).all()
    # Columns and rows are drawn independently: the errors of two columns are not correlated.
    errors = (found - rows)[:, [0, 100]]
    assert abs(np.corrcoef(errors.T)[0, 1]) < 6 / np.sqrt(draws)
    assert abs(np.corrcoef(errors[1:, 0], errors[:-1, 0])[0, 1]) < 6 / np.sqrt(draws)


def test_errors_of_two_bits_are_those_of_taken_away_dither() -> None:
    x = np.random.default_rng(6).normal(size=(500, 128)).astype(np.float32)
    error = (there_and_back(x, 2).astype(np.float64) - x).reshape(-1, 64)
    # Uniform over a step for any number: half of it at most, with variance step^2 / 12.
    step = steps(x.reshape(-1, 64), 2)
    assert (np.abs(error) <= step / 2).all()
    assert np.abs(error).max() > 0.4 * step.min()
    assert np.mean((error / step) ** 2) < 1 / 12
    # Rows of a rectifier, however, keep their zeros.
    assert (there_and_back(np.maximum(x, 0), 2)[x <= 0] == 0).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", WIDTHS)
def test_equal_wherever_it_is_drawn(isa: str, bits: int, width: int) -> None:
    x = np.random.default_rng(2).normal(size=(700, width)).astype(np.float32)
    ids = np.random.default_rng(3).permutation(700).astype(np.int64)
    found = there_and_back(x, bits, ids=ids)
    for threads in (1, 2):
        np.testing.assert_array_equal(
            there_and_back(x, bits, ids=ids, isa=isa, threads=threads), found
        )
    some = np.array([5, 699, 17])
    np.testing.assert_array_equal(there_and_back(x[some], bits, ids=ids[some]), found[some])
    assert width < 7 or (there_and_back(x, bits, key=6, ids=ids) != found).any()


@pytest.mark.parametrize("bits", BITS)
def test_rows_of_bfloat16(bits: int) -> None:
    wide = np.random.default_rng(4).normal(size=(20, 33)).astype(np.float32)
    x = (wide.view(np.uint32) >> 16).astype(np.uint16)
    found = (there_and_back(x, bits).astype(np.uint32) << 16).view(np.float32)
    exact = (x.astype(np.uint32) << 16).view(np.float32)
    # The level is rounded once more.
    bound = steps(exact, bits) + np.abs(exact).max(axis=1, keepdims=True) * 2.0**-8
    assert (np.abs(found - exact) <= bound).all()


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_lost(bits: int, wrong: float) -> None:
    x = np.random.default_rng(5).normal(size=(3, 9)).astype(np.float32)
    x[1, 8] = wrong
    found = there_and_back(x, bits)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()
    far = np.array([[3e38, -3e38, 0]], np.float32)
    assert np.isnan(there_and_back(far, bits)).all()


@pytest.mark.parametrize("bits", BITS)
def test_tiny_and_no_numbers(bits: int) -> None:
    tiny = np.array([[1e-40, 3e-40, -2e-39], [1e-30, 0, 2e-30]], np.float32)
    assert (np.abs(there_and_back(tiny, bits) - tiny) <= 2.0**-100).all()
    assert there_and_back(np.empty((0, 4), np.float32), bits).shape == (0, 4)
    assert there_and_back(np.empty((4, 0), np.float32), bits).shape == (4, 0)


def test_faults_are_named() -> None:
    x, ids = np.ones((2, 6), np.float32), np.arange(2, dtype=np.int64)
    packed = np.empty((2, quantised_bytes(6, 4)), np.uint8)
    with pytest.raises(ValueError, match="packed"):
        quantise_rows(x, ids, 1, 8, packed)
    with pytest.raises(ValueError, match="bits"):
        quantise_rows(x, ids, 1, 3, packed)
    with pytest.raises(ValueError, match="row_ids"):
        quantise_rows(x, ids[:1], 1, 4, packed)
    with pytest.raises(TypeError, match="float32"):
        quantise_rows(x.astype(np.float64), ids, 1, 4, packed)
    with pytest.raises(ValueError, match="key"):
        quantise_rows(x, ids, 1 << 64, 4, packed)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_columns_of_wider_arrays_are_packed_as_they_would_be_alone(bits: int, dtype: type) -> None:
    rng, ids = np.random.default_rng(5), np.arange(7, dtype=np.int64)
    wide = rng.normal(size=(7, 90)).astype(np.float32).view(dtype)
    if dtype is np.uint16:
        # The upper halves of floats.
        wide = np.ascontiguousarray(wide[:, 1::2])
    some = slice(3, 75)
    size = quantised_bytes(72, bits)
    alone = np.empty((7, size), np.uint8)
    quantise_rows(np.ascontiguousarray(wide[:, some]), ids, 4, bits, alone)
    packed = np.full((7, size + 5), 0xAA, np.uint8)
    quantise_rows(wide[:, some], ids, 4, bits, packed[:, 2:-3])
    np.testing.assert_array_equal(packed[:, 2:-3], alone)
    assert (np.delete(packed, np.s_[2:-3], axis=1) == 0xAA).all()
    found, out = np.empty((7, 72), dtype), np.zeros((7, 80), dtype)
    dequantise_rows(alone, ids, 4, bits, found)
    dequantise_rows(packed[:, 2:-3], ids, 4, bits, out[:, 8:])
    np.testing.assert_array_equal(out[:, 8:], found)
    assert (out[:, :8] == 0).all()
    apart = np.empty((7, quantised_bytes(4, bits)), np.uint8)
    with pytest.raises(ValueError, match="side by side"):
        quantise_rows(wide[:, :8:2], ids, 4, bits, apart)
