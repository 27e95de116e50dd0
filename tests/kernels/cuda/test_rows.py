import numpy as np
import pytest

from hpcgnn import kernels
from hpcgnn.kernels import cuda
from tests.kernels.cuda.test_products import rounded, widened
from tests.support.stand_in import host

WIDTHS = [1, 3, 16, 17, 100, 256]
KEY = 0xFEDCBA9876543210


def operands(width, dtype="float64"):
    rng = np.random.default_rng(width)
    return rng.standard_normal((19, width)).astype(dtype), rng.integers(0, 19, 47).astype(np.int32)


@pytest.mark.parametrize("width", WIDTHS)
def test_gather_copies_and_converts_as_on_the_cpu(device, width):
    for dtype in ("float32", "float64", "uint16"):
        x, rows = operands(width)
        x = rounded(x)[0] if dtype == "uint16" else x.astype(dtype)
        out = device.empty((47, width), dtype)
        cuda.gather_rows(device.asarray(x), device.asarray(rows), out)
        np.testing.assert_array_equal(host(out), x[rows])
    whole = device.empty((19, width), "uint16")
    cuda.gather_rows(device.asarray(x), None, whole)
    np.testing.assert_array_equal(host(whole), x)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [1, 16])
def test_conversions_give_the_bits_of_the_cpu(device, half, width):
    rng = np.random.default_rng(11)
    bits = rng.integers(0, 1 << 32, 4096, dtype=np.uint32)
    edges = np.array([0, 1, 0x7F800000, 0x7F800001, 0x477FF000, 0x387FFFFF, 0x33000001], np.uint32)
    x = np.concatenate([bits, edges, edges | 0x80000000, bits[:2]]).view(np.float32)
    x = np.ascontiguousarray(x.reshape(-1, 16) if width == 16 else x[:, None])
    wanted, narrow = np.empty(x.shape, np.uint16), device.empty(x.shape, "uint16")
    with np.errstate(invalid="ignore"):
        kernels.gather_rows(x, None, wanted, half=half)
        cuda.gather_rows(device.asarray(x), None, narrow, half=half)
    np.testing.assert_array_equal(host(narrow), wanted)
    every = np.arange(1 << 16, dtype=np.uint16).reshape(-1, width)
    back, wide = np.empty(every.shape, np.float32), device.empty(every.shape, "float32")
    kernels.gather_rows(every, None, back, half=half)
    cuda.gather_rows(device.asarray(every), None, wide, half=half)
    np.testing.assert_array_equal(host(wide).view(np.uint32), back.view(np.uint32))


@pytest.mark.parametrize("width", WIDTHS)
def test_scatter_add_with_repeats(device, width):
    src, rows = np.random.default_rng(3).standard_normal((47, width)), operands(width)[1]
    before = np.random.default_rng(4).standard_normal((23, width))
    for wire, dtype, tolerance in (
        ("float64", "float64", 1e-12),
        ("float32", "float32", 1e-5),
        ("bfloat16", "float32", 1e-5),
    ):
        sent = rounded(src)[0] if wire == "bfloat16" else src.astype(wire)
        wanted = before.copy()
        np.add.at(wanted, rows, widened(sent) if wire == "bfloat16" else sent)
        out = device.asarray(before.astype(dtype))
        half = "bfloat16" if wire == "bfloat16" else None
        cuda.scatter_add_rows(device.asarray(sent), device.asarray(rows), out, half=half)
        assert np.abs(host(out) - wanted).max() <= tolerance * np.abs(wanted).max()


def test_gather_and_scatter_are_adjoint(device):
    x, rows = operands(17)
    y = np.random.default_rng(8).standard_normal((47, 17))
    gathered, added = device.empty((47, 17), "float64"), device.zeros((19, 17), "float64")
    cuda.gather_rows(device.asarray(x), device.asarray(rows), gathered)
    cuda.scatter_add_rows(device.asarray(y), device.asarray(rows), added)
    left, right = (host(gathered) * y).sum(), (x * host(added)).sum()
    np.testing.assert_allclose(left, right, rtol=1e-12)


def test_nothing_to_do(device):
    none = device.empty((0,), "int32")
    cuda.gather_rows(device.empty((5, 3), "float32"), none, device.empty((0, 3), "float32"))
    cuda.scatter_add_rows(device.empty((0, 3), "float32"), none, device.empty((0, 3), "float32"))
    out = device.zeros((5, 0), "float32")
    cuda.gather_rows(device.empty((5, 0), "float32"), None, out)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_dropout_is_that_of_the_cpu(device, p, dtype):
    for width in WIDTHS:
        x = of_kind(operands(width)[0], dtype)
        names = np.random.default_rng(9).integers(0, 1 << 40, 19)
        wanted, out = np.empty_like(x), device.empty(x.shape, x.dtype)
        kernels.dropout_rows(x, names, KEY, p, wanted)
        cuda.dropout_rows(device.asarray(x), device.asarray(names), KEY, p, out)
        np.testing.assert_array_equal(host(out), wanted)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_ending_and_its_gradient_are_those_of_the_cpu(device, dtype):
    """Bias, rectifier and dropout, together and apart; NaN stays NaN, infinity drops to zero."""
    names = np.random.default_rng(9).integers(0, 1 << 40, 19)
    for width in WIDTHS:
        rows = operands(width)[0]
        rows[3, 0], rows[4, 0] = np.nan, np.inf  # NaN is not positive, so its gradient is zero.
        x, gradient = of_kind(rows, dtype), of_kind(operands(width)[0][::-1].copy(), dtype)
        wide = np.float64 if dtype == "float64" else np.float32
        bias = np.linspace(-1, 1, width).astype(wide)
        for given, rectify, draw in (
            (bias, True, (names, KEY, 0.4)),
            (None, True, None),
            (bias, False, None),
        ):
            there = None if given is None else device.asarray(given)
            drawn = None if draw is None else (device.asarray(names), *draw[1:])
            wanted, out = np.empty_like(x), device.asarray(x)
            kernels.finish_rows(x, wanted, bias=given, rectify=rectify, draw=draw)
            cuda.finish_rows(out, out, bias=there, rectify=rectify, draw=drawn)
            np.testing.assert_array_equal(as_numbers(host(out)), as_numbers(wanted))
        sums, total = np.empty(width, wide), device.empty((width,), wide)
        scaled, found = np.empty_like(x), device.empty(x.shape, x.dtype)
        result = np.where(rows > 0, x, 0).astype(x.dtype)
        kernels.finish_rows_gradient(gradient, result=result, scale=1.5, out=scaled, sums=sums)
        there, made = device.asarray(gradient), device.asarray(result)
        cuda.finish_rows_gradient(there, result=made, scale=1.5, out=found, sums=total)
        np.testing.assert_array_equal(host(found), scaled)
        np.testing.assert_allclose(host(total), sums, rtol=1e-5, atol=1e-5)
        kernels.finish_rows_gradient(gradient, sums=sums)
        cuda.finish_rows_gradient(there, sums=total)
        np.testing.assert_allclose(host(total), sums, rtol=1e-5, atol=1e-5)


def as_numbers(x):
    """Return rows as numbers, since 16-bit NaNs have different bits on different processors."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x


def of_kind(x, dtype):
    """Return float64 rows in the form that kernels take: bfloat16 as bits."""
    return rounded(x.astype(np.float32))[0] if dtype == "bfloat16" else x.astype(dtype)


def test_faults_are_refused(device):
    x = device.zeros((3, 2), "float32")
    rows = device.zeros((4,), "int32")
    with pytest.raises(ValueError, match="rows are listed"):
        cuda.gather_rows(x, rows, x)
    with pytest.raises(ValueError, match="columns"):
        cuda.gather_rows(x, None, device.zeros((3, 1), "float32"))
    with pytest.raises(TypeError, match="does not add float32 to bfloat16"):
        cuda.scatter_add_rows(x, rows[:3], device.zeros((3, 2), "uint16"), half="bfloat16")
    with pytest.raises(TypeError, match="does not convert float64 to float32"):
        cuda.gather_rows(device.zeros((3, 2), "float64"), None, x)
    names = device.zeros((3,), "int64")
    for key, p in ((-1, 0.5), (0, 1.5)):
        with pytest.raises(ValueError, match="must be in"):
            cuda.dropout_rows(x, names, key, p, x)
    with pytest.raises(ValueError, match="2 row_ids for 3 rows"):
        cuda.dropout_rows(x, names[:2], 0, 0.5, x)
    with pytest.raises(ValueError, match=r"out must have the shape \(3, 2\), not \(2, 2\)"):
        cuda.finish_rows(x, x[:2])
    with pytest.raises(ValueError, match="bias must have 2 elements, not 3"):
        cuda.finish_rows(x, x, bias=device.zeros((3,), "float32"))
    with pytest.raises(
        TypeError, match="finish_rows does not support float16 on the GPU; use bfloat16"
    ):
        cuda.finish_rows(*[device.zeros((3, 2), "uint16")] * 2, half="float16")
