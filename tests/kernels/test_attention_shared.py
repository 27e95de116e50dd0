"""Attention whose heads read the same rows equals attention over edges in float64."""

import numpy as np
import pytest

from tests.kernels.conftest import ugly_graph
from tests.support.attention_calls import HOST
from tests.support.attention_oracle import SLOPE, Layer, assert_close, expected, make_layer

# More than eight heads are processed in groups; widths with and without a partial register.
SHAPES = [(1, 1), (2, 3), (3, 16), (5, 33), (9, 5), (2, 150)]
SLICES = 3


def shared_layer(graph, heads, width, dtype="float64", scale=2.0):
    """Return a layer whose heads all have the same values, (k, width)."""
    layer = make_layer(graph, heads, width, scale=scale)
    one = layer.z[:, :width]
    spread = Layer(graph, heads, np.tile(one, heads), layer.source, layer.target, layer.grad)
    return spread, np.ascontiguousarray(one, dtype), layer.cast(dtype)


def run_forward(layer, x, part=None, pad=0, **options):
    """Return lse and means (rows, H, F) of some rows."""
    part = part or slice(0, layer.graph.num_rows)
    target = layer.target[part]
    mean = np.full((len(target), layer.heads, x.shape[1] + pad), np.nan, x.dtype)
    lse = np.full_like(target, np.nan)
    indptr = layer.graph.indptr[part.start : part.stop + 1]
    operands = x, layer.source, target, mean, lse
    HOST.attention_shared_forward(indptr, layer.graph.indices, *operands, slope=SLOPE, **options)
    return lse, mean


def run_backward(layer, x, lse, mean, part=None, grads=None, **options):
    """Return dx, dsource and dtarget, added to `grads` if given."""
    part = part or slice(0, layer.graph.num_rows)
    grad = np.full_like(mean, np.nan)
    grad[:, :, : x.shape[1]] = layer.grad[part].reshape(*lse.shape, x.shape[1])
    if grads is None:
        slices = np.zeros((SLICES, *layer.source.shape), x.dtype)
        grads = np.zeros_like(x), slices, np.zeros_like(layer.target)
    indptr = layer.graph.indptr[part.start : part.stop + 1]
    operands = x, layer.source, layer.target[part], mean, lse, grad
    dx, dsource, dtarget = grads
    into = dx, dsource, dtarget[part]
    HOST.attention_shared_backward(
        indptr, layer.graph.indices, *operands, *into, slope=SLOPE, **options
    )
    return grads


def check_gradients(found, wanted, heads, dtype):
    dx, dsource, dtarget = found
    dz = sum(np.split(wanted[0], heads, axis=1))
    for own, other in zip((dx, dsource.sum(axis=0), dtarget), (dz, *wanted[1:]), strict=True):
        assert_close(own, other, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("heads", "width"), SHAPES)
def test_equals_edge_tensors(graph, isa, dtype, heads, width):
    spread, x, layer = shared_layer(graph, heads, width, dtype)
    of = graph.oracle("shared", (heads, width), lambda: expected(spread))
    wanted_lse, wanted_out, wanted_grads = of
    lse, mean = run_forward(layer, x, pad=3, isa=isa)
    assert_close(lse, wanted_lse, dtype)
    assert_close(mean[:, :, :width].reshape(wanted_out.shape), wanted_out, dtype)
    assert np.isnan(mean[:, :, width:]).all()
    check_gradients(run_backward(layer, x, lse, mean, isa=isa), wanted_grads, heads, dtype)


def test_rows_in_chunks(graph):
    spread, x, layer = shared_layer(graph, 3, 20)
    _, wanted_out, wanted_grads = expected(spread)
    third = graph.num_rows // 3
    grads, out = None, []
    for part in (slice(0, third), slice(third, third), slice(third, graph.num_rows)):
        lse, mean = run_forward(layer, x, part)
        grads = run_backward(layer, x, lse, mean, part, grads)
        out.append(mean.reshape(len(mean), 60))
    assert_close(np.concatenate(out), wanted_out, "float64")
    check_gradients(grads, wanted_grads, 3, "float64")


def test_threads_give_equal_bits(graph, isa):
    _, x, layer = shared_layer(graph, 5, 130, "float32")
    found = []
    for threads in (1, 2, 3):
        lse, mean = run_forward(layer, x, isa=isa, threads=threads)
        grads = run_backward(layer, x, lse, mean, isa=isa, threads=threads)
        found.append(b"".join(array.tobytes() for array in (lse, mean, *grads)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sign", [1, -1])
def test_logits_of_ten_thousand(isa, dtype, sign):
    graph = ugly_graph("power law")
    spread, x, layer = shared_layer(graph, 3, 17, dtype)
    source = np.where(np.arange(graph.num_columns) % 2, 1e4, -1e4)[:, None]
    source = np.ascontiguousarray(np.broadcast_to(source, layer.source.shape))
    target = np.full(layer.target.shape, sign * 1e4)
    layer = Layer(graph, 3, None, source.astype(dtype), target.astype(dtype), layer.grad)
    lse, mean = run_forward(layer, x, isa=isa)
    grads = run_backward(layer, x, lse, mean, isa=isa)
    assert all(np.isfinite(array).all() for array in (mean, *grads))
    assert (np.isfinite(lse).all(axis=1) == (np.diff(graph.indptr) > 0)).all()
    wanted = expected(Layer(graph, 3, spread.z, source, target, layer.grad))[1]
    assert_close(mean.reshape(wanted.shape), wanted, dtype)


def test_rows_of_one_edge_copy(isa):
    graph = ugly_graph("one")
    _, x, layer = shared_layer(graph, 4, 9, "float32", scale=1e4)
    _, mean = run_forward(layer, x, isa=isa)
    for head in range(4):
        np.testing.assert_array_equal(mean[:, head], x)


@pytest.mark.parametrize("heads_per_word", [1, 2, 3])
def test_dropout_is_that_of_passes(graph, isa, heads_per_word):
    """Groups of heads draw as `attention_forward` does with the words of `EdgeDraw.of_heads`."""
    heads, width, golden = 5, 7, 0x9E3779B97F4A7C15
    _, x, layer = shared_layer(graph, heads, width)
    rng = np.random.default_rng(2)
    names = [rng.permutation(10 * n)[:n] for n in (graph.num_rows, graph.num_columns)]
    draw = {"dropout": (17, 0.3, *names), "edge_dropout": (18, 0.2)}
    lse, mean = run_forward(layer, x, isa=isa, heads_per_word=heads_per_word, **draw)
    for head in range(heads):
        first = head // heads_per_word * heads_per_word
        group = slice(first, min(first + heads_per_word, heads))
        count = group.stop - group.start
        state = np.full((graph.num_rows, count), -np.inf), np.zeros((graph.num_rows, count))
        out = np.zeros((graph.num_rows, count * width))
        terms = (np.ascontiguousarray(each[:, group]) for each in (layer.source, layer.target))
        HOST.attention_forward(
            graph.indptr,
            graph.indices,
            np.tile(x, count),
            *terms,
            *state,
            out,
            slope=SLOPE,
            dropout=((17 + first * golden) % 2**64, 0.3, *names),
            edge_dropout=(18, 0.2),
        )
        HOST.attention_finish(*state, out)
        place = head - first
        assert_close(lse[:, head], state[0][:, place], "float64")
        assert_close(mean[:, head], out[:, place * width : (place + 1) * width], "float64")


def test_dropout_differentiates(isa):
    graph = ugly_graph("power law")
    heads, width = 3, 4
    _, x, layer = shared_layer(graph, heads, width)
    names = np.arange(graph.num_rows), np.arange(graph.num_columns)
    draw = {"dropout": (17, 0.3, *names), "edge_dropout": (18, 0.2), "isa": isa}

    def loss(values):
        _, mean = run_forward(layer, values, **draw)
        return float((mean.reshape(layer.grad.shape) * layer.grad).sum())

    lse, mean = run_forward(layer, x, **draw)
    dx, *_ = run_backward(layer, x, lse, mean, **draw)
    rng, step = np.random.default_rng(5), 1e-5
    direction = rng.standard_normal(x.shape)
    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    np.testing.assert_allclose(float((dx * direction).sum()), slope, rtol=1e-7)


def test_no_gradient_of_x_is_wanted(graph):
    _, x, layer = shared_layer(graph, 2, 5)
    lse, mean = run_forward(layer, x)
    wanted = run_backward(layer, x, lse, mean)
    slices = np.zeros_like(wanted[1])
    found = run_backward(layer, x, lse, mean, grads=(None, slices, np.zeros_like(layer.target)))
    assert_close(found[1], wanted[1], "float64")
    assert_close(found[2], wanted[2], "float64")


def test_bad_operands_are_named():
    graph = ugly_graph("power law")
    _, x, layer = shared_layer(graph, 2, 5)
    lse, mean = run_forward(layer, x)
    few = Layer(graph, 2, None, layer.source[:1], layer.target, layer.grad)
    with pytest.raises(ValueError, match="indices"):
        run_forward(few, x[:1])
    with pytest.raises(ValueError, match="mean"):
        HOST.attention_shared_forward(
            graph.indptr, graph.indices, x, layer.source, layer.target, mean[1:], lse, slope=SLOPE
        )
    with pytest.raises(ValueError, match="inside"):
        HOST.attention_shared_forward(
            graph.indptr + 1, graph.indices, x, layer.source, layer.target, mean, lse, slope=SLOPE
        )
