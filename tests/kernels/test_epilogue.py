import numpy as np
import pytest

from hpcgnn import kernels

KINDS = ["float32", "float64", "bfloat16"]
SHAPES = [(0, 5), (7, 0), (1, 1), (33, 16), (300, 37), (5, 257)]


def to_bits(x: np.ndarray, kind: str) -> np.ndarray:
    if kind != "bfloat16":
        return x.astype(kind)
    out = np.empty(x.shape, np.uint16)
    kernels.gather_rows(x.astype(np.float32), None, out, half="bfloat16")
    return out


def numbers(x: np.ndarray) -> np.ndarray:
    if x.dtype != np.uint16:
        return x.astype(np.float64)
    return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def problem(shape, kind):
    rng = np.random.default_rng(shape[0])
    x = to_bits(rng.standard_normal(shape), kind)
    bias = rng.standard_normal(shape[1]).astype("float64" if kind == "float64" else "float32")
    return x, bias, rng.integers(0, 1 << 50, shape[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_one_pass_is_three(shape, kind, p, isa):
    x, bias, ids = problem(shape, kind)
    found = np.empty_like(x)
    draw = (ids, 17, p) if p > 0 else None
    kernels.finish_rows(x, found, bias=bias, rectify=True, draw=draw, isa=isa)
    mask = np.ones(shape)
    kernels.dropout_rows(mask.copy(), ids, 17, p, mask)
    expected = np.maximum(numbers(x) + bias, 0) * mask
    tolerance = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 2.0**-8}[kind]
    np.testing.assert_allclose(numbers(found), expected, rtol=tolerance, atol=1e-7)
    assert ((numbers(found) == 0) == (expected == 0)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_adjoint_and_its_sums(shape, kind, isa):
    x, bias, ids = problem(shape, kind)
    result, out = np.empty_like(x), np.empty_like(x)
    kernels.finish_rows(x, result, bias=bias, rectify=True, draw=(ids, 17, 0.4))
    gradient = to_bits(np.random.default_rng(3).standard_normal(shape), kind)
    sums = np.full_like(bias, np.nan)
    options = {"result": result, "scale": 1 / 0.6, "out": out, "sums": sums, "isa": isa}
    kernels.finish_rows_gradient(gradient, **options)
    expected = np.where(numbers(result) > 0, numbers(gradient) / 0.6, 0)
    tolerance = {"float32": 1e-6, "float64": 1e-14, "bfloat16": 2.0**-8}[kind]
    np.testing.assert_allclose(numbers(out), expected, rtol=tolerance)
    near = 1e-12 if kind == "float64" else 1e-5
    np.testing.assert_allclose(sums, expected.sum(0), rtol=near, atol=near * max(shape[0], 1))


def test_sums_do_not_depend_on_threads():
    x, bias, _ = problem((4001, 129), "bfloat16")
    found = []
    for threads in (1, 2, 3):
        sums = np.empty_like(bias)
        kernels.finish_rows_gradient(x, sums=sums, threads=threads)
        found.append(sums)
    assert all((each == found[0]).all() for each in found)


def test_broken_numbers_stay_broken(isa):
    x = np.array([[np.nan, np.inf, -np.inf, 1.0]], np.float32)
    out = np.empty_like(x)
    kernels.finish_rows(x, out, rectify=True, isa=isa)
    np.testing.assert_array_equal(out, [[np.nan, np.inf, 0, 1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": np.zeros(3, np.float32)}, "bias"),
        ({"bias": np.zeros(4)}, "bias"),
        ({"draw": (np.zeros(1, np.int64), 1, 0.5)}, "row_ids"),
        ({"draw": (np.zeros(2, np.int64), 1, 1.5)}, "p must be"),
        ({"draw": (np.zeros(2, np.int64), -1, 0.5)}, "key must be"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match=message):
        kernels.finish_rows(x, np.empty_like(x), **options)
