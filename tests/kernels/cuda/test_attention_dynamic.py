"""GATv2 on the device equals edge tensors, with the same dropout masks as on the CPU."""

from dataclasses import replace

import numpy as np
import pytest

from hpcgnn.kernels import cuda
from tests.kernels import test_attention_dynamic as host_tests
from tests.kernels.conftest import EMULATED_ROWS, ugly_graph
from tests.kernels.cuda.test_attention import names_of
from tests.kernels.cuda.test_products import rounded
from tests.support import attention_oracle as oracle
from tests.support.attention_calls import DEVICE
from tests.support.attention_oracle import SLOPE, transposed
from tests.support.attention_runs import on_device
from tests.support.stand_in import host

# Heads and widths with and without whole vectors, and more than a tile's registers hold.
SHAPES = [(1, 1), (3, 7), (2, 32), (1, 132), (1, 259)]


def run(device, layer, size=5, **options):
    """Return lse, out and the gradients of z, target and vector, on the host."""
    make = device.asarray
    options = on_device(device, options)
    heads, dtype = layer.vector.shape[0], layer.target.dtype
    z, target, vector, grad = map(make, (layer.z, layer.target, layer.vector, layer.grad))
    state = make(np.full((len(layer.target), heads), -np.inf, dtype)), None, None
    state = state[0], device.zeros(state[0].shape, dtype), device.empty(target.shape, dtype)
    csr = make(layer.graph.indptr), make(layer.graph.indices)
    turned = tuple(map(make, transposed(layer.graph)))
    groups, turned_groups = (cuda.DeviceGroups.of(each[0], size) for each in (csr, turned))
    DEVICE.attention_dynamic_forward(
        *csr, z, target, vector, *state, slope=SLOPE, groups=groups, **options
    )
    DEVICE.attention_finish(*state)
    lse, _, out = state
    delta = device.empty(lse.shape, dtype)
    DEVICE.attention_delta(grad, out, delta)
    shapes = layer.z.shape, layer.target.shape, layer.vector.shape
    dz, dtarget, dvector = (device.zeros(shape, dtype) for shape in shapes)
    operands = z, target, vector, lse, grad, delta
    DEVICE.attention_dynamic_backward_rows(
        *csr, *operands, dtarget, dvector, slope=SLOPE, groups=groups, **options
    )
    DEVICE.attention_dynamic_backward_columns(
        *turned, *operands, dz, slope=SLOPE, groups=turned_groups, **options
    )
    return [host(each) for each in (lse, out, dz, dtarget, dvector)]


def assert_equal(found, wanted_lse, wanted_out, wanted_grads, dtype):
    for mine, other in zip(found, (wanted_lse, wanted_out, *wanted_grads), strict=True):
        oracle.assert_close(mine, other, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["no rows", "no columns", "all empty", "one", "holes"])
def test_equals_edge_tensors(device, name, dtype):
    for heads, width in SHAPES:
        layer = host_tests.make_layer(ugly_graph(name), heads, width, dtype)
        assert_equal(run(device, layer), *host_tests.expected(layer), dtype)


@pytest.mark.parametrize("size", [1, 33, 10**6])
def test_group_sizes(device, size):
    layer = host_tests.make_layer(ugly_graph("power law", EMULATED_ROWS), 1, 5)
    assert_equal(run(device, layer, size), *host_tests.expected(layer), "float64")


@pytest.mark.parametrize(("p", "edge_p"), [(0.4, 0.0), (0.0, 0.3), (0.5, 0.5), (1.0, 0.0)])
def test_dropout_has_the_masks_of_the_cpu(device, p, edge_p):
    layer = host_tests.make_layer(ugly_graph("holes"), 3, 5)
    options = {
        "dropout": (0xABCDEF0123456789, p, *names_of(layer.graph)),
        "edge_dropout": (7, edge_p),
    }
    lse, out = host_tests.run_forward(layer, **options)
    grads = host_tests.run_backward(layer, lse, out, **options)
    assert_equal(run(device, layer, **options), lse, out, grads, "float64")


@pytest.mark.parametrize(("heads", "width"), [(2, 8), (1, 17), (1, 264)])
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_16_bit_values(device, heads, width, half):
    layer = host_tests.make_layer(ugly_graph("holes"), heads, width, "float32")
    bits, z = rounded(layer.z, half)
    found = run(device, replace(layer, z=bits), half=half)
    assert_equal(found, *host_tests.expected(replace(layer, z=z)), "float32")


def test_a_tile_sums_the_vector_over_many_groups(device, monkeypatch):
    # 1089 groups in chunks of 272: the last has a single group.
    monkeypatch.setattr("hpcgnn.kernels.cuda.attention._TILES", 4)
    layer = host_tests.make_layer(ugly_graph("power law", EMULATED_ROWS), 3, 4)
    assert_equal(run(device, layer), *host_tests.expected(layer), "float64")


def test_faults_are_refused(device):
    layer = host_tests.make_layer(ugly_graph("holes"), 2, 3)
    with pytest.raises(TypeError, match="row_ids must be"):
        run(device, layer, edge_dropout=(1, 0.5))
    with pytest.raises(ValueError, match="vector must have the shape"):
        run(device, replace(layer, vector=np.ones((2, 4))))
