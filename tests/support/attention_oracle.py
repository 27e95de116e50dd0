"""Attention over edges in float64, with tensors of edges and torch's autograd."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn import kernels
from tests.support.attention_calls import HOST

# Logits of quantised operands are exact in float32 with this slope, whatever their size.
SLOPE, QUANTUM = 0.25, 64
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


@dataclass(frozen=True)
class Layer:
    """Operands of an attention layer on a graph of `tests.kernels.conftest`."""

    graph: Any
    heads: int
    z: Any
    source: Any
    target: Any
    grad: Any

    def cast(self, dtype):
        arrays = (self.z, self.source, self.target, self.grad)
        return Layer(self.graph, self.heads, *(array.astype(dtype) for array in arrays))


def make_layer(graph, heads, width, dtype="float64", scale=2.0):
    """Return operands that are exact in float32, with logits that are exact, too."""
    rng = np.random.default_rng(heads * 1000 + width)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)

    n, k = graph.num_rows, graph.num_columns
    source, target = (np.round(QUANTUM * scale * draw(rows, heads)) / QUANTUM for rows in (k, n))
    return Layer(graph, heads, draw(k, heads * width), source, target, draw(n, heads * width))


def empty_state(layer):
    """Return a state without edges, whose sums must not be read."""
    shape, dtype = layer.target.shape, layer.target.dtype
    out = np.full(layer.grad.shape, np.nan, dtype)
    return np.full(shape, -np.inf, dtype), np.zeros(shape, dtype), out


def run_forward(layer, **options):
    state = empty_state(layer)
    csr = layer.graph.indptr, layer.graph.indices
    operands = layer.z, layer.source, layer.target
    HOST.attention_forward(*csr, *operands, *state, slope=SLOPE, **options)
    HOST.attention_finish(*state)
    return state[0], state[2]


def run_backward(layer, lse, out, grads=None, **options):
    """Return dz, dsource, dtarget, added to `grads` if given."""
    delta = np.full_like(layer.target, np.nan)
    HOST.attention_delta(layer.grad, out, delta)
    if grads is None:
        shapes = layer.z.shape, layer.source.shape, layer.target.shape
        grads = tuple(np.zeros(shape, lse.dtype) for shape in shapes)
    csr = transposed(layer.graph)
    operands = layer.z, layer.source, layer.target, lse, layer.grad, delta
    HOST.attention_backward(*csr, *operands, *grads, slope=SLOPE, **options)
    return grads


def transposed(graph):
    indptr, indices, *_ = kernels.transpose_csr(
        graph.indptr, graph.indices, None, graph.num_columns
    )
    return indptr, indices


def edges_of(graph):
    rows = np.repeat(np.arange(graph.num_rows), np.diff(graph.indptr))
    return torch.from_numpy(rows), torch.from_numpy(graph.indices.astype(np.int64))


def softmax_sums(logits, values, rows, num_rows, mask=None):
    """Return log-sum-exp and weighted sums of `values` (edges, heads, width) by row."""
    shape = (num_rows, logits.shape[1])
    index = rows[:, None].expand_as(logits)
    top = torch.full(shape, -torch.inf, dtype=logits.dtype)
    top = top.scatter_reduce(0, index, logits.detach(), "amax")
    top = torch.where(torch.isneginf(top), 0.0, top)
    weights = torch.exp(logits - top[rows])
    total = torch.zeros(shape, dtype=logits.dtype).index_add(0, rows, weights)
    if mask is not None:
        weights = weights * mask
    sums = torch.zeros((*shape, values.shape[2]), dtype=logits.dtype)
    sums = sums.index_add(0, rows, weights[:, :, None] * values)
    out = torch.where(total[:, :, None] == 0, 0.0, sums / total.clamp_min(1e-300)[:, :, None])
    return (top + total.log()).detach().numpy(), out.flatten(1)


def expected(layer, mask=None, kept=None):
    """Return lse, out and the gradients of z, source and target."""
    rows, columns = edges_of(layer.graph)
    z, source, target = (
        torch.tensor(array, dtype=torch.float64, requires_grad=True)
        for array in (layer.z, layer.source, layer.target)
    )
    logits = torch.nn.functional.leaky_relu(target[rows] + source[columns], SLOPE)
    if kept is not None:
        logits = torch.where(torch.from_numpy(kept), logits, -torch.inf)
    values = z.unflatten(1, (layer.heads, z.shape[1] // layer.heads))[columns]
    mask = None if mask is None else torch.from_numpy(mask)
    lse, out = softmax_sums(logits, values, rows, layer.graph.num_rows, mask)
    out.backward(torch.tensor(layer.grad, dtype=torch.float64))
    grads = [tensor.grad.numpy() for tensor in (z, source, target)]
    return lse, out.detach().numpy(), grads


def assert_close(found, wanted, dtype):
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    scale = max(1.0, float(np.abs(wanted[finite]).max(initial=0)))
    error = np.abs(np.asarray(found, np.float64)[finite] - wanted[finite]).max(initial=0)
    assert error <= TOLERANCE[np.dtype(dtype).name] * scale
