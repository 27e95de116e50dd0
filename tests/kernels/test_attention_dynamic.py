from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from hpcgnn import kernels
from tests.kernels.conftest import ugly_graph
from tests.kernels.test_attention_state import dropout_of, masks_of
from tests.support.attention_calls import HOST
from tests.support.attention_oracle import (
    SLOPE,
    assert_close,
    edges_of,
    softmax_sums,
    transposed,
)

SHAPES = [(1, 1), (3, 7), (2, 33), (1, 150)]


@dataclass(frozen=True)
class Layer:
    graph: Any
    z: Any
    target: Any
    vector: Any
    grad: Any

    @property
    def operands(self):
        return self.z, self.target, self.vector


def make_layer(graph, heads, width, dtype="float64"):
    rng = np.random.default_rng(heads * 1000 + width)
    n, k = graph.num_rows, graph.num_columns

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)

    wide = heads * width
    return Layer(graph, draw(k, wide), draw(n, wide), draw(heads, width), draw(n, wide))


def run_forward(layer, **options):
    shape = layer.target.shape[0], layer.vector.shape[0]
    top = np.full(shape, -np.inf, layer.target.dtype)
    out = np.full_like(layer.target, np.nan)
    state = top, np.zeros_like(top), out
    csr = layer.graph.indptr, layer.graph.indices
    HOST.attention_dynamic_forward(*csr, *layer.operands, *state, slope=SLOPE, **options)
    HOST.attention_finish(*state)
    return top, out


def run_backward(layer, lse, out, **options):
    """Return dz, dtarget, dvector."""
    delta = np.empty_like(lse)
    HOST.attention_delta(layer.grad, out, delta)
    shapes = layer.z.shape, layer.target.shape, layer.vector.shape
    dz, dtarget, dvector = (np.zeros(shape, lse.dtype) for shape in shapes)
    operands = *layer.operands, lse, layer.grad, delta
    HOST.attention_dynamic_backward_rows(
        layer.graph.indptr,
        layer.graph.indices,
        *operands,
        dtarget,
        dvector,
        slope=SLOPE,
        **options,
    )
    HOST.attention_dynamic_backward_columns(
        *transposed(layer.graph), *operands, dz, slope=SLOPE, **options
    )
    return dz, dtarget, dvector


def expected(layer, mask=None, kept=None):
    rows, columns = edges_of(layer.graph)
    heads, width = layer.vector.shape
    z, target, vector = (
        torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in layer.operands
    )
    values = z.unflatten(1, (heads, width))[columns]
    both = torch.nn.functional.leaky_relu(values + target.unflatten(1, (heads, width))[rows], SLOPE)
    logits = (both * vector).sum(2)
    if kept is not None:
        logits = torch.where(torch.from_numpy(kept), logits, -torch.inf)
    mask = None if mask is None else torch.from_numpy(mask)
    lse, out = softmax_sums(logits, values, rows, layer.graph.num_rows, mask)
    out.backward(torch.tensor(layer.grad, dtype=torch.float64))
    return lse, out.detach().numpy(), [tensor.grad.numpy() for tensor in (z, target, vector)]


def check(layer, dtype, *masks, **options):
    if masks:
        wanted_lse, wanted_out, wanted_grads = expected(layer, *masks)
    else:
        of = layer.graph.oracle("dynamic", layer.vector.shape, lambda: expected(layer))
        wanted_lse, wanted_out, wanted_grads = of
    cast = (array.astype(dtype) for array in (*layer.operands, layer.grad))
    layer = Layer(layer.graph, *cast)
    lse, out = run_forward(layer, **options)
    assert_close(lse, wanted_lse, dtype)
    assert_close(out, wanted_out, dtype)
    for found, wanted in zip(run_backward(layer, lse, out, **options), wanted_grads, strict=True):
        assert_close(found, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("heads", "width"), SHAPES)
def test_forward_and_backward_equal_edge_tensors(graph, isa, dtype, heads, width):
    check(make_layer(graph, heads, width), dtype, isa=isa)


@pytest.mark.parametrize(("p", "edge_p"), [(0.3, 0.2), (0.0, 1.0)])
def test_dropout_equals_masks_of_single_edges(graph, isa, p, edge_p):
    masks = masks_of(graph, 3, p, edge_p)
    check(make_layer(graph, 3, 6), "float64", *masks, **dropout_of(graph, p, edge_p), isa=isa)


@pytest.mark.parametrize("heads", [1, 3])
def test_threads_give_equal_bits(graph, isa, heads):
    layer = make_layer(graph, heads, 33, "float32")
    found = []
    for threads in (1, 2, 3):
        lse, out = run_forward(layer, isa=isa, threads=threads)
        grads = run_backward(layer, lse, out, isa=isa, threads=threads)
        found.append(b"".join(array.tobytes() for array in (lse, out, *grads)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_sixteen_bit_values(isa, half):
    layer = make_layer(ugly_graph("power law"), 2, 33, "float32")
    bits, rounded = np.empty(layer.z.shape, np.uint16), np.empty_like(layer.z)
    kernels.gather_rows(layer.z, None, bits, half=half)
    kernels.gather_rows(bits, None, rounded, half=half)
    others = layer.target, layer.vector, layer.grad
    _, wanted_out, wanted_grads = expected(Layer(layer.graph, rounded, *others))
    narrow = Layer(layer.graph, bits, *others)
    lse, out = run_forward(narrow, half=half, isa=isa)
    assert_close(out, wanted_out, "float32")
    found = run_backward(narrow, lse, out, half=half, isa=isa)
    for each, wanted in zip(found, wanted_grads, strict=True):
        assert_close(each, wanted, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logits_of_ten_thousand(isa, dtype):
    layer = make_layer(ugly_graph("power law"), 2, 9, dtype)
    layer.vector[:] *= 1e4
    lse, out = run_forward(layer, isa=isa)
    assert np.isfinite(out).all()
    for grad in run_backward(layer, lse, out, isa=isa):
        assert np.isfinite(grad).all()


def test_row_subset_leaves_other_rows(graph, isa):
    rng = np.random.default_rng(31)
    num_rows = 2 * graph.num_rows + 1
    rows = rng.permutation(num_rows)[: graph.num_rows].astype(np.int32)
    layer = make_layer(graph, 2, 5)
    wanted_lse, _, wanted_grads = expected(layer)
    target, grad = rng.standard_normal((2, num_rows, 10))
    target[rows], grad[rows] = layer.target, layer.grad
    wide = Layer(graph, layer.z, target, layer.vector, grad)
    lse, out = run_forward(wide, rows=rows, isa=isa)
    assert_close(lse[rows], wanted_lse, "float64")
    dz, dtarget, dvector = run_backward(wide, lse, out, rows=rows, isa=isa)
    for found, wanted in zip((dz, dtarget[rows], dvector), wanted_grads, strict=True):
        assert_close(found, wanted, "float64")
    assert (dtarget[np.setdiff1d(np.arange(num_rows), rows)] == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vector": np.zeros((2, 3))}, "vector must have one row for each head"),
        ({"target": np.zeros((2, 2))}, "target must have the columns of z"),
        ({"top": np.zeros((3, 2))}, "top must have a row"),
        ({"out": np.zeros((2, 2))}, "out must have the shape of target"),
    ],
)
def test_bad_arguments(change, message):
    good = {
        "indptr": np.array([0, 2, 3]),
        "indices": np.array([0, 2, 1], np.int32),
        "z": np.zeros((3, 4)),
        "target": np.zeros((2, 4)),
        "vector": np.zeros((2, 2)),
        "top": np.zeros((2, 2)),
        "total": np.zeros((2, 2)),
        "out": np.zeros((2, 4)),
        "slope": SLOPE,
    }
    with pytest.raises(ValueError, match=message):
        HOST.attention_dynamic_forward(**(good | change))
