"""Kernels with separate keys and values, and with own scores of edges, equal edge tensors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hpcgnn import kernels
from hpcgnn.kernels import (
    AdditiveScore,
    Block,
    DynamicScore,
    Gradients,
    ProductScore,
    SoftmaxGradient,
    SoftmaxState,
)
from tests.kernels.conftest import ugly_graph
from tests.kernels.test_attention_state import dropout_of, masks_of
from tests.support.attention_calls import draw_of
from tests.support.attention_oracle import SLOPE, assert_close, edges_of, softmax_sums

KINDS = ("product", "dynamic", "additive")


class Problem:
    """Operands of one kind of score on a graph, in float64."""

    def __init__(self, kind, graph, heads, width):
        rng = np.random.default_rng(heads * 100 + width)
        self.kind, self.graph, self.heads = kind, graph, heads
        n, k = graph.num_rows, graph.num_columns

        def draw(*shape):
            return rng.standard_normal(shape).astype(np.float32).astype(np.float64)

        self.wide = heads * width
        self.values = draw(k, self.wide * (1 if kind == "additive" else 2))
        self.target = draw(n, heads if kind == "additive" else self.wide)
        self.grad = draw(n, self.wide)
        self.others = {
            "product": (),
            "dynamic": (draw(heads, width),),
            "additive": (draw(k, heads), draw(len(graph.indices), heads)),
        }[kind]

    def score(self, dtype, order=None):
        values, target = self.values.astype(dtype), self.target.astype(dtype)
        others = [each.astype(dtype) for each in self.others]
        if self.kind == "product":
            return ProductScore(values=values, target=target, heads=self.heads)
        if self.kind == "dynamic":
            return DynamicScore(
                values=values, target=target, slope=SLOPE, vector=others[0], keyed=True
            )
        edges = others[1] if order is None else others[1][order]
        return AdditiveScore(
            values=values, target=target, slope=SLOPE, source=others[0], edges=edges
        )

    def run(self, dtype, draw=None, **how):
        """Return lse, result, and the gradients of values, target and the other operands."""
        graph, heads = self.graph, self.heads
        shape = graph.num_rows, heads
        top = np.full(shape, -np.inf, dtype)
        out = np.full((graph.num_rows, self.wide), np.nan, dtype)
        state = SoftmaxState(top, np.zeros(shape, dtype), out)
        block, score = Block(graph.indptr, graph.indices), self.score(dtype)
        kernels.attention_forward(block, score, state, draw, **how)
        kernels.attention_finish(state)
        grad, delta = self.grad.astype(dtype), np.empty(shape, dtype)
        kernels.attention_delta(grad, out, delta)
        saved = SoftmaxGradient(top, grad, delta)
        into = Gradients(np.zeros_like(score.values), np.zeros_like(score.target))
        indptr, indices, _, order = kernels.transpose_csr(
            graph.indptr, graph.indices, None, graph.num_columns, with_source=True
        )
        lines, more = Block(indptr, indices), []
        if self.kind == "additive":
            turned = self.score(dtype, order)
            into = replace(
                into, source=np.zeros_like(turned.source), edges=np.full_like(turned.edges, np.nan)
            )
            kernels.attention_backward(lines, turned, saved, into, draw, **how)
            of_edges = np.empty_like(into.edges)
            of_edges[order] = into.edges
            more = [into.source, of_edges]
        else:
            if self.kind == "dynamic":
                into = replace(into, weights=np.zeros_like(score.vector))
                more = [into.weights]
            kernels.attention_backward_rows(block, score, saved, into, draw, **how)
            kernels.attention_backward(lines, score, saved, into, draw, **how)
        return top, out, [into.values, into.targets, *more]

    def expected(self, mask=None, kept=None):
        rows, columns = edges_of(self.graph)
        values, target, *others = (
            torch.tensor(each, requires_grad=True)
            for each in (self.values, self.target, *self.others)
        )
        by_head = values.unflatten(1, (self.heads, -1))[columns]
        mine = target.unflatten(1, (self.heads, -1))[rows]
        if self.kind == "additive":
            source, edges = others
            sums = mine[:, :, 0] + source[columns] + edges
            logits = torch.nn.functional.leaky_relu(sums, SLOPE)
        else:
            keys, by_head = by_head.chunk(2, dim=2)
            logits = (keys * mine).sum(2)
            if self.kind == "dynamic":
                bent = torch.nn.functional.leaky_relu(keys + mine, SLOPE)
                logits = (bent * others[0]).sum(2)
        if kept is not None:
            logits = torch.where(torch.from_numpy(kept), logits, -torch.inf)
        mask = None if mask is None else torch.from_numpy(mask)
        lse, out = softmax_sums(logits, by_head, rows, self.graph.num_rows, mask)
        out.backward(torch.tensor(self.grad))
        grads = [each.grad.numpy() for each in (values, target, *others)]
        return lse, out.detach().numpy(), grads

    def check(self, dtype, *masks, **how):
        key = self.kind, self.heads, self.wide, len(masks)
        wanted = self.graph.oracle("keyed", key, lambda: self.expected(*masks))
        found = self.run(dtype, **how)
        for mine, theirs in zip((*found[:2], *found[2]), (*wanted[:2], *wanted[2]), strict=True):
            assert_close(mine, theirs, dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("heads", "width"), [(3, 7), (1, 150)])
def test_forward_and_backward_equal_edge_tensors(graph, isa, kind, dtype, heads, width):
    Problem(kind, graph, heads, width).check(dtype, isa=isa)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_equals_masks_of_single_edges(graph, isa, kind):
    draw = draw_of(*dropout_of(graph, 0.3, 0.2).values())
    Problem(kind, graph, 3, 6).check("float64", *masks_of(graph, 3, 0.3, 0.2), draw=draw, isa=isa)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_give_equal_bits(isa, kind):
    problem = Problem(kind, ugly_graph("power law"), 2, 33)
    found = []
    for threads in (1, 2, 3):
        lse, out, grads = problem.run("float32", isa=isa, threads=threads)
        found.append(b"".join(array.tobytes() for array in (lse, out, *grads)))
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": np.zeros((2, 2))}, "target must have the columns of the keys"),
        ({"values": np.zeros((3, 6))}, "equally many columns for each head"),
        ({"heads": 0}, "there must be a head"),
    ],
)
def test_bad_products(change, message):
    score = ProductScore(values=np.zeros((3, 8)), target=np.zeros((2, 4)), heads=2)
    state = SoftmaxState(np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 4)))
    block = Block(np.array([0, 2, 3]), np.array([0, 2, 1], np.int32))
    with pytest.raises(ValueError, match=message):
        kernels.attention_forward(block, replace(score, **change), state)


def test_scores_of_edges_fit_the_edges():
    score = AdditiveScore(
        values=np.zeros((3, 4)),
        target=np.zeros((2, 2)),
        slope=SLOPE,
        source=np.zeros((3, 2)),
        edges=np.zeros((2, 2)),
    )
    state = SoftmaxState(np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 4)))
    block = Block(np.array([0, 2, 3]), np.array([0, 2, 1], np.int32))
    with pytest.raises(ValueError, match="edges must have a row for each edge"):
        kernels.attention_forward(block, score, state)
