"""Dense products of many rows with a small matrix: every shape, instruction set and stride."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from hpcgnn import kernels
from hpcgnn.autograd.numerics import mixed

TOLERANCES = {"float64": 1e-13, "float32": 1e-5}
SHAPES = [
    (1, 1, 1),
    (0, 4, 5),
    (7, 0, 3),
    (13, 5, 16),
    (12, 64, 17),
    (301, 100, 16),
    (50, 600, 33),
    (5, 3, 128),
    (100, 33, 40),
]
"""Numbers of rows, inputs and outputs: tiles of all sizes, partial and whole panels."""
EVERY_ISA = pytest.mark.parametrize("isa", kernels.available_isas())


def made(kind: str, *shape: int) -> Any:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(kind)


def check_close(result: Any, expected: Any, terms: int) -> None:
    scale = 1 + np.sqrt(terms)
    np.testing.assert_allclose(result, expected, atol=TOLERANCES[result.dtype.name] * scale)


@EVERY_ISA
@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_and_contractions_equal_float64(
    shape: tuple[int, int, int], kind: str, isa: str
) -> None:
    num_rows, inner, columns = shape
    rows, right = made(kind, num_rows, inner), made(kind, num_rows, columns)
    whole = made(kind, columns + 1, inner + 2)
    wide_rows, wide_right = rows.astype(float), right.astype(float)
    # Transposed, and columns of a wider matrix: any strides.
    for matrix in (whole[1:, 2:].T, np.ascontiguousarray(whole[1:, 2:].T), whole[:0:-1, 2:].T):
        expected = wide_rows @ matrix.astype(float)
        out = np.full((num_rows, columns), np.nan, kind)
        kernels.dense_product(rows, matrix, out, isa=isa)
        check_close(out, expected, inner)
        kernels.dense_product(rows, matrix, out, accumulate=True, isa=isa)
        check_close(out, 2 * expected, inner)
        bias = made(kind, columns)
        kernels.dense_product(rows, matrix, out, bias=bias, isa=isa)
        check_close(out, expected + bias, inner)
    total = made(kind, inner, columns)
    expected = total + wide_rows.T @ wide_right
    kernels.dense_contraction(rows, right, total, isa=isa)
    check_close(total, expected, num_rows)


@EVERY_ISA
def test_bits_do_not_depend_on_threads_or_other_rows(isa: str) -> None:
    rows, matrix = made("float32", 20000, 70), made("float32", 70, 40)
    right = made("float32", 20000, 40)
    outs = [np.empty((20000, 40), np.float32) for _ in range(2)]
    totals = [np.zeros((70, 40), np.float32) for _ in range(2)]
    for threads, out, total in zip((1, 3), outs, totals, strict=True):
        kernels.dense_product(rows, matrix, out, threads=threads, isa=isa)
        kernels.dense_contraction(rows, right, total, threads=threads, isa=isa)
    assert np.array_equal(*outs)
    assert np.array_equal(*totals)
    some = np.empty((37, 40), np.float32)
    kernels.dense_product(rows[101:138], matrix, some, isa=isa)
    assert np.array_equal(some, outs[0][101:138])


def bits_of(numbers: Any) -> Any:
    return torch.from_numpy(numbers).bfloat16().view(torch.uint16).numpy()


def numbers_of(bits: Any) -> Any:
    return torch.from_numpy(bits).view(torch.bfloat16).double().numpy()


@EVERY_ISA
@pytest.mark.parametrize("shape", [*SHAPES, (20000, 20, 16)], ids=str)
def test_rows_of_16_bits_are_summed_in_float32(shape: tuple[int, int, int], isa: str) -> None:
    num_rows, inner, columns = shape
    rows = bits_of(made("float32", num_rows, inner))
    right = bits_of(made("float32", num_rows, columns))
    matrix, out = made("float32", columns, inner).T, np.zeros((num_rows, columns), np.uint16)
    expected = numbers_of(rows) @ matrix.astype(float)
    run: Any = {"half": "bfloat16", "isa": isa}
    kernels.dense_product(rows, matrix, out, threads=1, **run)
    np.testing.assert_allclose(numbers_of(out), expected, rtol=2**-8, atol=1e-3)
    again = out.copy()
    kernels.dense_product(rows, matrix, out, accumulate=True, threads=3, **run)
    np.testing.assert_allclose(numbers_of(out), 2 * expected, rtol=2**-6, atol=2e-3)
    kernels.dense_product(rows, matrix, out, threads=3, **run)
    assert np.array_equal(out, again)
    totals = [np.ones((inner, columns), np.float32) for _ in range(2)]
    for threads, total in zip((1, 3), totals, strict=True):
        kernels.dense_contraction(rows, right, total, threads=threads, **run)
    assert np.array_equal(*totals)
    check_close(totals[0], 1 + numbers_of(rows).T @ numbers_of(right), num_rows)


@EVERY_ISA
@pytest.mark.parametrize("shape", [*SHAPES, (1000, 300, 40)], ids=str)
@pytest.mark.parametrize("wide", ["rows", "out"])
def test_one_of_two_may_be_of_16_bits(wide: str, shape: tuple[int, int, int], isa: str) -> None:
    num_rows, inner, columns = shape
    rows, right = (made("float32", num_rows, width) for width in (inner, columns))
    matrix, bias = made("float32", columns, inner).T, made("float32", columns)
    out = np.zeros((num_rows, columns), np.float32)
    if wide == "rows":
        out, right = out.astype(np.uint16), bits_of(right)
        exact_rows, exact_right = rows.astype(float), numbers_of(right)
    else:
        rows = bits_of(rows)
        exact_rows, exact_right = numbers_of(rows), right.astype(float)
    run: Any = {"half": "bfloat16", "isa": isa}

    def check(times: float, shift: Any) -> None:
        expected = times * (exact_rows @ matrix.astype(float)) + shift
        if wide == "rows":
            np.testing.assert_allclose(numbers_of(out), expected, rtol=2**-6, atol=2e-3)
        else:
            check_close(out, expected, inner)

    kernels.dense_product(rows, matrix, out, bias=bias, **run)
    check(1, bias)
    kernels.dense_product(rows, matrix, out, threads=3, **run)
    check(1, 0)
    kernels.dense_product(rows, matrix, out, accumulate=True, **run)
    check(2, 0)
    total = np.ones((inner, columns), np.float32)
    kernels.dense_contraction(rows, right, total, **run)
    check_close(total, 1 + exact_rows.T @ exact_right, num_rows)


def test_a_bias_is_checked() -> None:
    rows, matrix, out = np.ones((4, 3)), np.ones((3, 2)), np.ones((4, 2))
    with pytest.raises(ValueError, match="bias must have an entry for each column"):
        kernels.dense_product(rows, matrix, out, bias=np.ones(3))
    with pytest.raises(TypeError, match="bias must be float64"):
        kernels.dense_product(rows, matrix, out, bias=np.ones(2, np.float32))
    with pytest.raises(ValueError, match="not added to a sum"):
        kernels.dense_product(rows, matrix, out, bias=np.ones(2), accumulate=True)


@pytest.mark.parametrize("fault", ["matrix", "out", "columns", "dtype"])
def test_wrong_operands_are_named(fault: str) -> None:
    rows, matrix, out = np.ones((4, 3)), np.ones((3, 2)), np.ones((4, 2))
    if fault == "matrix":
        matrix = matrix[1:]
    elif fault == "out":
        out = out[1:]
    elif fault == "columns":
        out = np.ones((4, 3))
    else:
        out = out.astype("float32")
    with pytest.raises(
        (ValueError, TypeError), match="matrix must" if fault == "matrix" else "out must"
    ):
        kernels.dense_product(rows, matrix, out)
    with pytest.raises((ValueError, TypeError), match=r"right must|total must"):
        kernels.dense_contraction(rows, np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="total must"):
        kernels.dense_contraction(rows, np.ones((4, 2)), np.ones((3, 3)))


def recorded(calls: list[Any], kernel: Any, *arrays: Any, **more: Any) -> None:
    calls.append(kernel)
    kernel(*arrays, **more)


@pytest.mark.parametrize("width", [3, 40, 128, 129])
def test_linear_maps_use_them_where_results_are_narrow(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    for name in ("dense_product", "dense_contraction"):
        monkeypatch.setattr(kernels, name, partial(recorded, calls, getattr(kernels, name)))
    monkeypatch.setattr(mixed, "kernels_are_fast", lambda: False)
    check = partial(torch.testing.assert_close, atol=1e-4, rtol=1e-4)
    rows, matrix = torch.randn(50, 200), torch.randn(width, 200).t()
    gradient = torch.randn(50, width)
    out = mixed.multiply(rows, matrix, torch.empty(50, width))
    check(out, rows @ matrix)
    mixed.add_multiplied(out, rows, matrix)
    check(out, 2 * (rows @ matrix))
    check(mixed.weight_gradient(gradient, rows), gradient.t() @ rows)
    check(mixed.weight_gradient(rows, gradient), rows.t() @ gradient)
    assert len(calls) == (4 if width <= 128 else 0)
    # Rows that are not one after the other in memory are torch's.
    calls.clear()
    apart = torch.randn(50, 2 * 200)[:, ::2]
    torch.testing.assert_close(
        mixed.multiply(apart, matrix, torch.empty(50, width)), apart @ matrix
    )
    assert not calls


def test_a_matrix_of_another_dtype_is_refused() -> None:
    rows, matrix = torch.ones(4, 3), torch.ones(3, 2, dtype=torch.float64)
    with pytest.raises(TypeError, match="matrix must be float32"):
        mixed.multiply(rows, matrix, torch.empty(4, 2))
