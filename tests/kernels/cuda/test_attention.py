from dataclasses import replace

import numpy as np
import pytest

from hpcgnn.kernels import cuda
from tests.kernels.conftest import EMULATED_ROWS, NAMES, ugly_graph
from tests.kernels.cuda.test_products import rounded
from tests.support import attention_oracle as oracle
from tests.support.attention_calls import DEVICE, HOST
from tests.support.attention_oracle import SLOPE, expected, make_layer
from tests.support.attention_runs import (
    run_backward,
    run_forward,
    run_state,
    zero_grads,
)
from tests.support.stand_in import host

# Heads and widths with and without whole vectors, and more than a tile's registers hold.
SHAPES = [(1, 1), (2, 3), (3, 16), (2, 17), (1, 100), (1, 256), (1, 259)]


def assert_close(found, wanted, dtype):
    oracle.assert_close(host(found), wanted, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("hubs", "power law")])
def test_forward_and_backward_equal_edge_tensors(device, name, dtype):
    for heads, width in SHAPES:
        layer = make_layer(ugly_graph(name), heads, width)
        wanted_lse, wanted_out, wanted_grads = expected(layer)
        layer = layer.cast(dtype)
        lse, out = run_forward(device, layer)
        assert_close(lse, wanted_lse, dtype)
        assert_close(out, wanted_out, dtype)
        grads = run_backward(device, layer, lse, out, zero_grads(device, layer))
        for found, wanted in zip(grads, wanted_grads, strict=True):
            assert_close(found, wanted, dtype)


@pytest.mark.parametrize("size", [1, 33, 10**6])
def test_group_sizes(device, size):
    layer = make_layer(ugly_graph("power law", EMULATED_ROWS), 1, 5, "float32")
    wanted_lse, wanted_out, wanted_grads = expected(layer.cast("float64"))
    lse, out = run_forward(device, layer, size)
    assert_close(lse, wanted_lse, "float32")
    assert_close(out, wanted_out, "float32")
    grads = run_backward(device, layer, lse, out, zero_grads(device, layer), size)
    for found, wanted in zip(grads, wanted_grads, strict=True):
        assert_close(found, wanted, "float32")


def test_hubs_and_large_logits(device):
    layer = make_layer(ugly_graph("hubs"), 1, 4, "float32", scale=60.0)
    wanted_lse, wanted_out, _ = expected(layer.cast("float64"))
    lse, out = run_forward(device, layer, cuda.ATTENTION_GROUP_SIZE)
    assert_close(lse, wanted_lse, "float32")
    assert_close(out, wanted_out, "float32")


def test_the_state_is_that_of_the_cpu(device):
    layer = make_layer(ugly_graph("power law", EMULATED_ROWS), 2, 7, "float32")
    wanted = oracle.empty_state(layer)
    graph = layer.graph
    HOST.attention_forward(
        graph.indptr, graph.indices, layer.z, layer.source, layer.target, *wanted, slope=SLOPE
    )
    top, total, out = (host(array) for array in run_state(device, layer, 9))
    np.testing.assert_array_equal(top, wanted[0])
    np.testing.assert_allclose(total, wanted[1], rtol=1e-5)
    held = np.repeat(~np.isneginf(wanted[0]), 7, axis=1)
    np.testing.assert_allclose(out[held], wanted[2][held], rtol=1e-5, atol=1e-6)


def names_of(graph, seed=31):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 40, graph.num_rows), rng.integers(0, 1 << 40, graph.num_columns)


@pytest.mark.parametrize(("p", "edge_p"), [(0.4, 0.0), (0.0, 0.3), (0.5, 0.5), (1.0, 0.0)])
def test_dropout_has_the_masks_of_the_cpu(device, p, edge_p):
    layer = make_layer(ugly_graph("holes"), 3, 5)
    options = {
        "dropout": (0xABCDEF0123456789, p, *names_of(layer.graph)),
        "edge_dropout": (7, edge_p),
    }
    wanted_lse, wanted_out = oracle.run_forward(layer, **options)
    wanted_grads = oracle.run_backward(layer, wanted_lse, wanted_out, **options)
    lse, out = run_forward(device, layer, **options)
    assert_close(lse, wanted_lse, "float64")
    assert_close(out, wanted_out, "float64")
    grads = run_backward(device, layer, lse, out, zero_grads(device, layer), **options)
    for found, wanted in zip(grads, wanted_grads, strict=True):
        assert_close(found, wanted, "float64")


def test_blocks_join_one_state_through_rows(device):
    layer = make_layer(ugly_graph("holes"), 2, 6)
    m = layer.graph.num_rows
    rows = np.random.default_rng(2).permutation(m + 5)[:m].astype(np.int32)
    target = np.zeros((m + 5, 2))
    target[rows] = layer.target
    state = np.full((m + 5, 2), -np.inf), np.zeros((m + 5, 2)), np.full((m + 5, 12), np.nan)
    wide = replace(layer, target=target)
    # The same edges twice: sums double, so the result stays and lse grows by log 2.
    state = run_state(device, wide, 3, state, rows=rows)
    state = run_state(device, wide, 4, state, rows=rows)
    DEVICE.attention_finish(*state)
    wanted_lse, wanted_out, _ = expected(layer)
    assert_close(host(state[0])[rows] - np.log(2), wanted_lse, "float64")
    assert_close(host(state[2])[rows], wanted_out, "float64")
    others = np.setdiff1d(np.arange(m + 5), rows)
    np.testing.assert_array_equal(host(state[2])[others], 0)
    grads = zero_grads(device, layer)
    backward = replace(layer, target=target, grad=np.zeros((m + 5, 12)))
    backward.grad[rows] = layer.grad
    dtarget = device.zeros((m + 5, 2), "float64")
    found = run_backward(device, backward, state[0], state[2], (*grads[:2], dtarget), rows=rows)
    run_backward(device, backward, state[0], state[2], found, rows=rows)
    _, _, wanted = expected(layer)
    assert_close(found[0], wanted[0], "float64")
    assert_close(host(dtarget)[rows], wanted[2], "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_merge_and_scores_equal_the_cpu(device, dtype):
    for heads, width in SHAPES:
        rng = np.random.default_rng(width)
        mine, other = (
            [rng.standard_normal(s).astype(dtype) for s in ((9, heads), (9, heads * width))]
            for _ in range(2)
        )
        mine[0][:3], other[0][2:5] = -np.inf, -np.inf
        totals = [np.abs(rng.standard_normal((9, heads))).astype(dtype) for _ in range(2)]
        mine[1][:3], other[1][2:5] = np.nan, np.nan
        rows = rng.permutation(9).astype(np.int32)
        wanted = mine[0].copy(), totals[0].copy(), mine[1].copy()
        HOST.attention_merge(rows, other[0], totals[1], other[1], *wanted)
        state = [device.asarray(array) for array in (mine[0], totals[0], mine[1])]
        moved = [device.asarray(array) for array in (other[0], totals[1], other[1])]
        DEVICE.attention_merge(device.asarray(rows), *moved, *state)
        state = [host(array) for array in state]
        held = ~np.isneginf(wanted[0])
        np.testing.assert_array_equal(state[0], wanted[0])
        np.testing.assert_allclose(state[1][held], wanted[1][held], rtol=1e-5)
        held = np.repeat(held, width, axis=1)
        np.testing.assert_allclose(state[2][held], wanted[2][held], rtol=1e-5, atol=1e-6)
        weights = rng.standard_normal((heads, width)).astype(dtype)
        source, scores = np.empty((9, heads), dtype), device.empty((9, heads), dtype)
        z = rng.standard_normal((9, heads * width)).astype(dtype)
        HOST.attention_scores(z, weights, source)
        DEVICE.attention_scores(device.asarray(z), device.asarray(weights), scores)
        assert_close(scores, source.astype(np.float64), dtype)


@pytest.mark.parametrize(("heads", "width"), [(2, 5), (1, 100), (3, 16)])
def test_weights_of_the_source_get_their_gradient(device, heads, width):
    layer = make_layer(ugly_graph("holes"), heads, width)
    weights = np.random.default_rng(4).standard_normal((heads, width))
    HOST.attention_scores(layer.z, weights, layer.source)
    lse, out = oracle.run_forward(layer)
    wanted, found = np.ones((heads, width)), device.asarray(np.ones((heads, width)))
    grads = oracle.run_backward(layer, lse, out, weights=weights, dweights=wanted)
    mine = zero_grads(device, layer)
    moved = device.asarray(lse), device.asarray(out)
    delta = device.empty(layer.target.shape, "float64")
    DEVICE.attention_delta(device.asarray(layer.grad), moved[1], delta)
    csr = [device.asarray(array) for array in oracle.transposed(layer.graph)]
    operands = [device.asarray(array) for array in (layer.z, layer.source, layer.target)]
    rest = moved[0], device.asarray(layer.grad), delta
    given = {"weights": device.asarray(weights), "dweights": found}
    DEVICE.attention_backward(*csr, *operands, *rest, *mine, slope=SLOPE, **given)
    for each, other in zip((*mine, found), (*grads, wanted), strict=True):
        assert_close(each, other, "float64")


def test_finish_writes_into_columns_of_a_wider_matrix(device):
    layer = make_layer(ugly_graph("holes"), 2, 5)
    bias = np.random.default_rng(8).standard_normal(10)
    wide = device.empty((layer.graph.num_rows, 17), "float64")
    state = run_state(device, layer, 5)
    DEVICE.attention_finish(*state, into=wide[:, 3:13], bias=device.asarray(bias))
    wanted_lse, wanted_out, _ = expected(layer)
    assert_close(state[0], wanted_lse, "float64")
    assert_close(host(wide)[:, 3:13], wanted_out + bias, "float64")
    assert np.isnan(host(wide)[:, [0, 1, 2, 13, 14, 15, 16]]).all()
    with pytest.raises(TypeError, match="contiguous rows"):
        DEVICE.attention_finish(*state, into=wide[:, :10].T)
    with pytest.raises(ValueError, match="into must have the shape"):
        DEVICE.attention_finish(*state, into=wide)
    with pytest.raises(ValueError, match="bias must have 10"):
        DEVICE.attention_finish(*state, bias=device.asarray(bias[:3]))


def test_delta_takes_the_bias_off(device):
    rng = np.random.default_rng(3)
    grad, out, bias = (rng.standard_normal(s) for s in ((7, 12), (7, 12), 12))
    wanted, delta = np.empty((7, 4)), device.empty((7, 4), "float64")
    HOST.attention_delta(grad, out, wanted, bias=bias)
    moved = (device.asarray(array) for array in (grad, out))
    DEVICE.attention_delta(*moved, delta, bias=device.asarray(bias))
    np.testing.assert_allclose(host(delta), wanted, rtol=1e-12)


@pytest.mark.parametrize(("heads", "width"), [(2, 8), (1, 17), (1, 272)])
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_16_bit_values(device, heads, width, half):
    layer = make_layer(ugly_graph("holes"), heads, width, "float32")
    bits, z = rounded(layer.z, half)
    wanted = replace(layer, z=z).cast("float64")
    wanted_lse, wanted_out, wanted_grads = expected(wanted)
    stored = replace(layer, z=bits)
    lse, out = run_forward(device, stored, half=half)
    assert_close(lse, wanted_lse, "float32")
    assert_close(out, wanted_out, "float32")
    grads = zero_grads(device, layer)
    for found, each in zip(
        run_backward(device, stored, lse, out, grads, half=half), wanted_grads, strict=True
    ):
        assert_close(found, each, "float32")


def test_what_is_no_number_shows(device):
    layer = make_layer(ugly_graph("holes"), 1, 3, "float32")
    layer.source[layer.graph.indices[0]] = np.nan
    lse = host(run_forward(device, layer)[0])
    wanted, _ = oracle.run_forward(layer)
    np.testing.assert_array_equal(np.isnan(lse), np.isnan(wanted))
    assert np.isnan(lse).any()


def test_faults_are_refused(device):
    layer = make_layer(ugly_graph("holes"), 2, 3)
    with pytest.raises(TypeError, match="row_ids must be"):
        run_forward(device, layer, edge_dropout=(1, 0.5))
    with pytest.raises(ValueError, match="weight_word must be in"):
        run_forward(device, layer, dropout=(1 << 64, 0.5, *names_of(layer.graph)))
    with pytest.raises(TypeError, match="16, 32 or 64 bits, not int32"):
        run_forward(device, replace(layer, z=np.zeros((53, 6), np.int32)))
    with pytest.raises(ValueError, match="heads"):
        run_forward(device, replace(layer, z=np.zeros((53, 7))))
