"""bfloat16 and float16 storage, accumulated in float32."""

import numpy as np
import pytest
import torch

from hpcgnn import kernels
from hpcgnn.kernels import SparseMatrix

TORCH = {"bfloat16": torch.bfloat16, "float16": torch.float16}
EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
SPECIAL = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 1e-8, 2.0**-24, 2.0**-25, 6.1e-5, 3e38]


def narrow(x, half):
    return torch.from_numpy(np.array(x)).to(TORCH[half]).view(torch.uint16).numpy()


def widen(bits, half):
    return torch.from_numpy(bits).view(TORCH[half]).float().numpy()


@pytest.fixture(params=["bfloat16", "float16"])
def half(request):
    return request.param


def test_every_value_widens_as_in_torch(half, isa):
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 128)
    out = np.empty(bits.shape, np.float32)
    kernels.gather_rows(bits, None, out, half=half, isa=isa)
    expected = widen(bits, half)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(out[finite].view(np.uint32), expected[finite].view(np.uint32))


@pytest.mark.parametrize("width", [1, 15, 64, 101])
def test_values_round_as_in_torch(half, isa, width):
    rng = np.random.default_rng(61)
    magnitudes = np.exp(rng.uniform(-20, 12, (400, width)))
    x = (magnitudes * rng.choice([-1, 1], magnitudes.shape)).astype(np.float32)
    x.ravel()[: min(x.size, len(SPECIAL))] = SPECIAL[: x.size]
    ties = widen(rng.integers(0x0800, 0x3C00, (50, width)).astype(np.uint16), half)
    x[50:100] = (ties.view(np.uint32) + (0x8000 if half == "bfloat16" else 0x1000)).view(np.float32)
    rows = rng.permutation(400).astype(np.int32)
    out = np.empty(x.shape, np.uint16)
    kernels.gather_rows(x, rows, out, half=half, isa=isa)
    np.testing.assert_array_equal(out, narrow(x[rows], half))


def test_not_a_number_stays_one(half, isa):
    x = np.array([[0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x7F800000]], np.uint32).view(np.float32)
    out = np.empty(x.shape, np.uint16)
    kernels.gather_rows(x, None, out, half=half, isa=isa)
    np.testing.assert_array_equal(np.isnan(widen(out, half)), [[True, True, True, False]])


@pytest.mark.parametrize("mean", [False, True])
def test_spmm_accumulates_in_float32(graph, half, isa, mean):
    weights = graph.values.astype(np.float32)
    for width in (1, 7, 16, 33, 100, 256):
        x = narrow(graph.dense(width, "float32"), half)
        wide = np.full((graph.num_rows, width), np.nan, np.float32)
        form = {"half": half, "isa": isa}
        matrix = SparseMatrix(graph.indptr, graph.indices, weights, mean=mean)
        kernels.spmm(matrix, x, wide, **form)
        expected = graph.to_scipy("float32") @ widen(x, half).astype(np.float64)
        if mean:
            expected /= np.maximum(np.diff(graph.indptr), 1)[:, None]
        scale = max(1.0, np.abs(expected).max(initial=0))
        assert np.abs(wide - expected).max(initial=0) <= 1e-5 * scale
        rounded = np.empty(wide.shape, np.uint16)
        kernels.spmm(matrix, x, rounded, **form)
        np.testing.assert_array_equal(rounded, narrow(wide, half))


def test_spmm_rounds_a_float32_product(graph, half, isa):
    x = graph.dense(21, "float32")
    wide = np.empty((graph.num_rows, 21), np.float32)
    rounded = np.empty(wide.shape, np.uint16)
    kernels.spmm(SparseMatrix(graph.indptr, graph.indices), x, wide, isa=isa)
    kernels.spmm(SparseMatrix(graph.indptr, graph.indices), x, rounded, half=half, isa=isa)
    np.testing.assert_array_equal(rounded, narrow(wide, half))


def test_sums_do_not_saturate(half, isa):
    ones = narrow(np.ones((1, 3), np.float32), half)
    out = np.empty((1, 3), np.float32)
    indptr, indices = np.array([0, 30000]), np.zeros(30000, np.int32)
    kernels.spmm(SparseMatrix(indptr, indices), ones, out, half=half, isa=isa)
    np.testing.assert_array_equal(out, np.full((1, 3), 30000, np.float32))


@pytest.mark.parametrize("width", [1, 16, 37])
def test_scatter_add_widens(half, isa, width):
    rng = np.random.default_rng(73)
    src = narrow(rng.standard_normal((500, width)).astype(np.float32), half)
    rows = rng.integers(0, 40, 500).astype(np.int32)
    expected = np.zeros((40, width), np.float32)
    np.add.at(expected, rows, widen(src, half))
    for threads in (1, 2, 3):
        out = np.zeros((40, width), np.float32)
        kernels.scatter_add_rows(src, rows, out, half=half, threads=threads, isa=isa)
        np.testing.assert_array_equal(out, expected)


def test_accumulate_into_half(half, isa):
    indptr, indices = np.array([0, 2, 2]), np.array([0, 1], np.int32)
    x = narrow(np.array([[1.0], [2.0]], np.float32), half)
    out = narrow(np.array([[0.5], [0.25]], np.float32), half).copy()
    kernels.spmm(SparseMatrix(indptr, indices), x, out, accumulate=True, half=half, isa=isa)
    np.testing.assert_array_equal(widen(out, half), [[3.5], [0.25]])


def test_uint16_needs_a_kind():
    x = np.zeros((2, 2), np.uint16)
    with pytest.raises(TypeError, match="half='bfloat16' or half='float16', not 'int8'"):
        kernels.gather_rows(x, None, np.zeros((2, 2), np.float32), half="int8")
