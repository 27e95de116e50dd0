import numpy as np
import pytest

from hpcgnn import kernels
from hpcgnn.kernels import SparseMatrix, cuda
from tests.kernels.conftest import random_graph, ugly_graph
from tests.support.stand_in import host

WIDTHS = [1, 3, 16, 17, 100, 256]
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
SMALL = ["no rows", "no columns", "all empty", "one", "holes"]


def rounded(array, half="bfloat16"):
    """Return `array` rounded, as bits and as float32."""
    bits = np.empty(array.shape, np.uint16)
    kernels.gather_rows(np.ascontiguousarray(array, np.float32), None, bits, half=half)
    return bits, widened(bits, half)


def widened(bits, half="bfloat16"):
    bits = np.ascontiguousarray(host(bits))
    out = np.empty(bits.shape, np.float32)
    kernels.gather_rows(bits, None, out, half=half)
    return out


def product(device, graph, x, out, *, weighted=True, size=5, rows=None, mean=False, **options):
    values = None
    if weighted:
        dtype = "float64" if x.dtype == np.float64 else "float32"
        values = device.asarray(graph.values.astype(dtype))
    indptr, indices = device.asarray(graph.indptr), device.asarray(graph.indices)
    groups = cuda.DeviceGroups.of(indptr, size)
    matrix = SparseMatrix(indptr, indices, values, rows, mean, groups)
    cuda.spmm(matrix, device.asarray(x), out, **options)


def assert_close(found, wanted, tolerance):
    found = host(found)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    assert not np.isnan(found).any()
    assert np.abs(found - wanted).max(initial=0) <= tolerance * scale


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("name", [*SMALL, "power law"])
def test_equals_scipy(device, name, dtype, weighted):
    graph = ugly_graph(name)
    for width in WIDTHS if name in SMALL else (3, 16):
        out = device.empty((graph.num_rows, width), dtype)
        product(device, graph, graph.dense(width, dtype), out, weighted=weighted)
        assert_close(out, graph.product(width, dtype, weighted), TOLERANCE[dtype])


@pytest.mark.parametrize("size", [1, 2, 64, 10**6])
def test_group_sizes(device, size):
    graph = ugly_graph("power law")
    for dtype in ("float32", "float64"):
        out = device.empty((graph.num_rows, 16), dtype)
        product(device, graph, graph.dense(16, dtype), out, size=size)
        assert_close(out, graph.product(16, dtype), TOLERANCE[dtype])


def test_hubs_with_the_rule_of_the_paper(device):
    graph = ugly_graph("hubs")
    out = device.empty((graph.num_rows, 3), "float32")
    product(device, graph, graph.dense(3, "float32"), out, size=None)
    assert_close(out, graph.product(3, "float32"), 1e-5)


@pytest.mark.parametrize("name", [*SMALL, "power law"])
def test_accumulates_into_chosen_rows(device, name):
    graph = ugly_graph(name)
    m = graph.num_rows
    rows = np.random.default_rng(5).permutation(m + 7)[:m].astype(np.int32)
    before = np.random.default_rng(6).standard_normal((m + 7, 17))
    for accumulate in (True, False):
        out = device.asarray(before)
        options = {"rows": device.asarray(rows), "accumulate": accumulate}
        product(device, graph, graph.dense(17), out, **options)
        wanted = before.copy()
        wanted[rows] = graph.product(17) + (before[rows] if accumulate else 0)
        assert_close(out, wanted, 1e-12)


def test_mean(device):
    graph = ugly_graph("power law")
    counts = np.maximum(1, np.diff(graph.indptr))[:, None]
    out = device.empty((graph.num_rows, 16), "float64")
    product(device, graph, graph.dense(16), out, mean=True, weighted=False)
    assert_close(out, graph.product(16, weighted=False) / counts, 1e-12)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("half", "into"), [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32")]
)
def test_16_bits_are_summed_in_float32(device, width, half, into):
    graph = ugly_graph("holes")
    bits, x = rounded(graph.dense(width), half)
    wanted = graph.to_scipy("float32") @ x.astype(np.float64)
    out = device.empty((graph.num_rows, width), "uint16" if into == "bfloat16" else "float32")
    product(device, graph, bits, out, half=half)
    found = widened(out) if into == "bfloat16" else out
    assert_close(found, wanted, 1 / 128 if into == "bfloat16" else 1e-5)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(("half", "unit"), [("bfloat16", 1 / 256), ("float16", 1 / 2048)])
def test_float32_into_16_bits_rounds_the_sum_once(device, accumulate, half, unit):
    graph = random_graph(np.array([0, 40, 1, 7]), 50, 29)
    before, old = rounded(np.random.default_rng(7).standard_normal((4, 17)), half)
    out = device.asarray(before)
    x = graph.dense(17, "float32")
    product(device, graph, x, out, half=half, accumulate=accumulate)
    wanted = graph.product(17, "float32") + (old if accumulate else 0)
    assert_close(widened(out, half), wanted, unit)


def test_a_view_that_is_not_aligned(device):
    graph = ugly_graph("holes")
    flat = device.empty(graph.num_columns * 16 + 1, "float32")
    x = flat[1:].reshape(graph.num_columns, 16)
    x[...] = device.asarray(graph.dense(16, "float32"))
    out = device.empty((graph.num_rows, 16), "float32")
    indptr, indices = device.asarray(graph.indptr), device.asarray(graph.indices)
    cuda.spmm(SparseMatrix(indptr, indices), x, out)
    assert_close(out, graph.product(16, "float32", weighted=False), 1e-5)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"x": np.zeros((3, 2))}, TypeError, "x must be a CuPy array"),
        ({"half": "float16", "x": np.uint16, "out": np.uint16}, TypeError, "x float16 with"),
        ({"x": np.uint16}, TypeError, "half="),
        ({"values": np.zeros(9, np.float32)}, ValueError, "same length"),
        ({"rows": np.zeros(9, np.int32)}, ValueError, "rows must name"),
    ],
)
def test_faults_are_refused(device, changes, error, words):
    graph = ugly_graph("one")
    matrix = {"indptr": device.asarray(graph.indptr), "indices": device.asarray(graph.indices)}
    call = {
        "x": device.zeros((1, 2), "float32"),
        "out": device.zeros((1, 2), "float32"),
    }
    for name, value in changes.items():
        if isinstance(value, type):
            value = device.zeros((1, 2), value)
        elif name in ("values", "rows"):
            matrix[name] = device.asarray(value)
            continue
        call[name] = value
    with pytest.raises(error, match=words):
        cuda.spmm(SparseMatrix(**matrix), **call)
