import numpy as np
import pytest

from hpcgnn import kernels
from tests.kernels.conftest import ugly_graph
from tests.support.attention_calls import HOST
from tests.support.attention_oracle import (
    SLOPE,
    assert_close,
    empty_state,
    expected,
    make_layer,
    run_backward,
    run_forward,
)

SHAPES = [(1, 1), (2, 3), (3, 16), (4, 33), (8, 5), (1, 150)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("heads", "width"), SHAPES)
def test_forward_and_backward_equal_edge_tensors(graph, isa, dtype, heads, width):
    layer = make_layer(graph, heads, width)
    of = graph.oracle("additive", (heads, width), lambda: expected(layer))
    wanted_lse, wanted_out, wanted_grads = of
    layer = layer.cast(dtype)
    lse, out = run_forward(layer, isa=isa)
    assert_close(lse, wanted_lse, dtype)
    assert_close(out, wanted_out, dtype)
    for found, wanted in zip(run_backward(layer, lse, out, isa=isa), wanted_grads, strict=True):
        assert_close(found, wanted, dtype)


def test_head_width_of_the_paper(isa):
    layer = make_layer(ugly_graph("power law"), 2, 100)
    _, wanted_out, wanted_grads = expected(layer)
    lse, out = run_forward(layer, isa=isa)
    assert_close(out, wanted_out, "float64")
    for found, wanted in zip(run_backward(layer, lse, out, isa=isa), wanted_grads, strict=True):
        assert_close(found, wanted, "float64")


@pytest.mark.parametrize("heads", [1, 3])
def test_threads_give_equal_bits(graph, isa, heads):
    layer = make_layer(graph, heads, 33, "float32")
    found = []
    for threads in (1, 2, 3):
        lse, out = run_forward(layer, isa=isa, threads=threads)
        grads = run_backward(layer, lse, out, isa=isa, threads=threads)
        found.append(b"".join(array.tobytes() for array in (lse, out, *grads)))
    assert len(set(found)) == 1


def test_backward_adds(graph):
    layer = make_layer(graph, 2, 5)
    lse, out = run_forward(layer)
    once = run_backward(layer, lse, out)
    twice = run_backward(layer, lse, out, tuple(array.copy() for array in once))
    for found, wanted in zip(twice, once, strict=True):
        assert_close(found, 2 * wanted, "float64")


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_sixteen_bit_values(graph, isa, half):
    layer = make_layer(graph, 2, 33, "float32")
    bits = np.empty(layer.z.shape, np.uint16)
    kernels.gather_rows(layer.z, None, bits, half=half)
    rounded = np.empty_like(layer.z)
    kernels.gather_rows(bits, None, rounded, half=half)
    wide = type(layer)(layer.graph, 2, rounded, layer.source, layer.target, layer.grad)
    narrow = type(layer)(layer.graph, 2, bits, layer.source, layer.target, layer.grad)
    _, wanted_out, wanted_grads = expected(wide)
    lse, out = run_forward(narrow, half=half, isa=isa)
    assert_close(out, wanted_out, "float32")
    for found, wanted in zip(
        run_backward(narrow, lse, out, half=half, isa=isa), wanted_grads, strict=True
    ):
        assert_close(found, wanted, "float32")


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("sign", [1, -1])
def test_logits_of_ten_thousand(isa, kind, sign):
    graph = ugly_graph("power law")
    dtype = "float64" if kind == "float64" else "float32"
    half = "bfloat16" if kind == "bfloat16" else None
    layer = make_layer(graph, 3, 17, dtype)
    source = np.where(np.arange(graph.num_columns) % 2, 1e4, -1e4)[:, None]
    target = np.full(layer.target.shape, sign * 1e4)
    z = layer.z
    if half:
        z = np.empty(z.shape, np.uint16)
        kernels.gather_rows(layer.z, None, z, half="bfloat16")
    source = np.ascontiguousarray(np.broadcast_to(source, layer.source.shape), dtype)
    layer = type(layer)(graph, 3, z, source, target.astype(dtype), layer.grad)
    lse, out = run_forward(layer, half=half, isa=isa)
    grads = run_backward(layer, lse, out, half=half, isa=isa)
    assert all(np.isfinite(array).all() for array in (out, *grads))
    assert (np.isfinite(lse).all(axis=1) == (np.diff(graph.indptr) > 0)).all()
    if half is None:
        assert_close(out, expected(layer)[1], dtype)


def test_rows_of_one_edge_copy(isa):
    graph = ugly_graph("one")
    layer = make_layer(graph, 4, 9, "float32", scale=1e4)
    lse, out = run_forward(layer, isa=isa)
    np.testing.assert_array_equal(out, layer.z)
    dz, dsource, dtarget = run_backward(layer, lse, out, isa=isa)
    np.testing.assert_allclose(dz, layer.grad, rtol=1e-2)
    assert np.isfinite(dsource).all()
    assert np.isfinite(dtarget).all()


def test_not_a_number_stays(isa):
    layer = make_layer(ugly_graph("power law"), 1, 3, "float32")
    layer.source[:] = np.nan
    lse, out = run_forward(layer, isa=isa)
    filled = np.diff(layer.graph.indptr) > 0
    assert np.isnan(out[filled]).all()
    assert np.isnan(lse[filled]).all()
    assert (out[~filled] == 0).all()


def test_row_subset_leaves_other_rows(graph, isa):
    rng = np.random.default_rng(31)
    num_rows = 2 * graph.num_rows + 1
    rows = rng.permutation(num_rows)[: graph.num_rows].astype(np.int32)
    layer = make_layer(graph, 2, 5)
    wanted_lse, wanted_out, (wanted_dz, _, wanted_dtarget) = expected(layer)
    target, grad = rng.standard_normal((2, num_rows, 10))
    target, grad = np.ascontiguousarray(target[:, :2]), np.ascontiguousarray(grad)
    target[rows], grad[rows] = layer.target, layer.grad
    wide = type(layer)(graph, 2, layer.z, layer.source, target, grad)
    lse, out = run_forward(wide, rows=rows, isa=isa)
    assert_close(lse[rows], wanted_lse, "float64")
    assert_close(out[rows], wanted_out, "float64")
    others = np.setdiff1d(np.arange(num_rows), rows)
    assert (out[others] == 0).all()
    dz, _, dtarget = run_backward(wide, lse, out, rows=rows, isa=isa)
    assert_close(dz, wanted_dz, "float64")
    assert_close(dtarget[rows], wanted_dtarget, "float64")
    assert (dtarget[others] == 0).all()


def test_no_state_reads_uninitialised_sums():
    layer = make_layer(ugly_graph("holes"), 2, 5)
    top, total, out = empty_state(layer)
    HOST.attention_finish(top, total, out)
    assert (out == 0).all()
    assert np.isneginf(top).all()


GOOD = {
    "indptr": np.array([0, 2, 3]),
    "indices": np.array([0, 2, 1], np.int32),
    "z": np.zeros((3, 4), np.float32),
    "source": np.zeros((3, 2), np.float32),
    "target": np.zeros((2, 2), np.float32),
    "top": np.zeros((2, 2), np.float32),
    "total": np.zeros((2, 2), np.float32),
    "out": np.zeros((2, 4), np.float32),
    "slope": SLOPE,
}
IDS = np.arange(2), np.arange(3)
BAD = [
    ({"z": np.zeros((3, 5), np.float32)}, ValueError, "equally many columns for each head"),
    ({"z": np.zeros((3, 4), np.uint16)}, TypeError, "half="),
    ({"z": np.zeros((3, 4))}, TypeError, "source must be float64, not float32"),
    ({"source": np.zeros((2, 2), np.float32)}, ValueError, "source must have one row"),
    ({"target": np.zeros((2, 3), np.float32)}, ValueError, "target must have one column"),
    ({"target": np.zeros((3, 2), np.float32)}, ValueError, "target must have one row"),
    ({"top": np.zeros((2, 1), np.float32)}, ValueError, "top must have the shape"),
    ({"out": np.zeros((2, 2), np.float32)}, ValueError, "out must have one row"),
    ({"out": np.zeros((2, 8), np.float32)[:, ::2]}, TypeError, "out must be C-contiguous"),
    ({"rows": np.array([0, 2], np.int32)}, ValueError, r"rows holds 2, outside \[0, 2\)"),
    ({"indptr": np.array([0, 5, 3])}, ValueError, "must not decrease"),
    ({"edge_dropout": (1, 0.5)}, TypeError, "row_ids must be"),
    ({"dropout": (1, 1.5, *IDS)}, ValueError, r"p must be in \[0, 1\]"),
    ({"dropout": (-1, 0.5, *IDS)}, ValueError, "weight_word must be in"),
    ({"dropout": (1, 0.5, IDS[1], IDS[1])}, ValueError, "row_ids"),
    ({"dropout": (1, 0.5, IDS[0], IDS[0])}, ValueError, "column_ids"),
    ({"isa": "mmx"}, ValueError, "isa 'mmx'"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_arguments_are_one_clear_line(change, error, message):
    with pytest.raises(error, match=message) as caught:
        HOST.attention_forward(**(GOOD | change))
    assert "\n" not in str(caught.value)


def test_backward_checks_what_it_writes():
    layer = make_layer(ugly_graph("holes"), 1, 2)
    lse, _ = run_forward(layer)
    grads = np.zeros_like(layer.z), np.zeros_like(layer.source), np.zeros_like(layer.target)
    operands = layer.z, layer.source, layer.target, lse, layer.grad, layer.target
    indptr = np.zeros(layer.z.shape[0] + 1, np.int64)
    indptr[1:] = 1
    for bad in (-1, layer.graph.num_rows):
        with pytest.raises(ValueError, match=f"indices holds {bad}"):
            HOST.attention_backward(
                indptr, np.array([bad], np.int32), *operands, *grads, slope=SLOPE
            )
    with pytest.raises(ValueError, match="that of the transpose"):
        HOST.attention_backward(
            indptr[:-1], np.array([0], np.int32), *operands, *grads, slope=SLOPE
        )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 7), (2, 150)])
def test_gradient_of_source_goes_on_to_values_and_weights(graph, isa, dtype, heads, width):
    layer = make_layer(graph, heads, width, dtype)
    weights = np.random.default_rng(5).standard_normal((heads, width)).astype(dtype)
    source = np.full_like(layer.source, np.nan)
    HOST.attention_scores(layer.z, weights, source)
    by_head = layer.z.astype(np.float64).reshape(-1, heads, width)
    assert_close(source, np.einsum("khd,hd->kh", by_head, weights.astype(np.float64)), dtype)
    layer = type(layer)(graph, heads, layer.z, source, layer.target, layer.grad)
    lse, out = run_forward(layer, isa=isa)
    apart = run_backward(layer, lse, out, isa=isa)
    dweights = np.ones_like(weights)
    chained = run_backward(layer, lse, out, isa=isa, weights=weights, dweights=dweights)
    dsource = apart[1].astype(np.float64)
    added = (dsource[:, :, None] * weights).reshape(layer.z.shape)
    assert_close(chained[0], apart[0] + added, dtype)
    assert_close(chained[1], dsource, dtype)
    assert_close(chained[2], apart[2].astype(np.float64), dtype)
    assert_close(dweights, 1 + np.einsum("kh,khd->hd", dsource, by_head), dtype)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_scores_of_sixteen_bit_values(half):
    rng = np.random.default_rng(3)
    z, weights = (rng.standard_normal(shape).astype(np.float32) for shape in ((31, 21), (3, 7)))
    bits, rounded = np.empty(z.shape, np.uint16), np.empty_like(z)
    kernels.gather_rows(z, None, bits, half=half)
    kernels.gather_rows(bits, None, rounded, half=half)
    found, wanted = np.empty((31, 3), np.float32), np.empty((31, 3), np.float32)
    HOST.attention_scores(bits, weights, found, half=half)
    HOST.attention_scores(rounded, weights, wanted)
    np.testing.assert_array_equal(found, wanted)


def test_delta_without_a_bias_that_was_added():
    rng = np.random.default_rng(3)
    grad, out = rng.standard_normal((2, 9, 6))
    bias = rng.standard_normal(6)
    found, wanted = np.empty((9, 2)), np.empty((9, 2))
    HOST.attention_delta(grad, out + bias, found, bias=bias)
    HOST.attention_delta(grad, out, wanted)
    np.testing.assert_allclose(found, wanted, atol=1e-14)
    with pytest.raises(ValueError, match="bias must have one entry"):
        HOST.attention_delta(grad, out, found, bias=bias[:5])


def test_weights_and_their_gradient_come_together():
    layer = make_layer(ugly_graph("holes"), 1, 2)
    lse, out = run_forward(layer)
    with pytest.raises(ValueError, match="given together"):
        run_backward(layer, lse, out, weights=np.ones((1, 2)))
