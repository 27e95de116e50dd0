"""Merging of states, and dropout by ids: neither depends on how edges are cut into blocks."""

import itertools

import numpy as np
import pytest

from tests.kernels.conftest import Graph, ugly_graph
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

WORD, EDGE_WORD = 0xFEDCBA9876543210, 7


def stages_of(graph, num_stages):
    """Cut the columns into blocks; return the pattern and the columns of each."""
    rows = np.repeat(np.arange(graph.num_rows), np.diff(graph.indptr))
    for stage in range(num_stages):
        columns = np.arange(stage, graph.num_columns, num_stages)
        mine = graph.indices % num_stages == stage
        counts = np.bincount(rows[mine], minlength=graph.num_rows)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        yield indptr, (graph.indices[mine] // num_stages).astype(np.int32), columns


def block_of(layer, indptr, indices, columns):
    graph = Graph(indptr, indices, layer.graph.values, columns.size)
    return type(layer)(
        graph, layer.heads, layer.z[columns], layer.source[columns], layer.target, layer.grad
    )


def add_block(layer, state, **options):
    csr = layer.graph.indptr, layer.graph.indices
    operands = layer.z, layer.source, layer.target
    HOST.attention_forward(*csr, *operands, *state, slope=SLOPE, **options)


@pytest.mark.parametrize("scale", [2.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stages_in_any_order_and_merged(graph, isa, dtype, scale):
    layer = make_layer(graph, 3, 7, scale=scale)
    wanted_lse, wanted_out, _ = expected(layer)
    layer = layer.cast(dtype)
    blocks = [block_of(layer, *stage) for stage in stages_of(graph, 3)]
    for order in itertools.permutations(blocks):
        running = empty_state(layer)
        merged = empty_state(layer)
        for block in order:
            add_block(block, running, isa=isa)
            alone = empty_state(block)
            add_block(block, alone, isa=isa)
            HOST.attention_merge(None, *alone, *merged)
        for state in (running, merged):
            HOST.attention_finish(*state)
            assert_close(state[0], wanted_lse, dtype)
            assert_close(state[2], wanted_out, dtype)


def test_gradients_of_stages_add_up(graph):
    layer = make_layer(graph, 2, 9)
    lse, out = run_forward(layer)
    wanted = run_backward(layer, lse, out)
    dtarget = np.zeros_like(layer.target)
    for indptr, indices, columns in stages_of(graph, 3):
        block = block_of(layer, indptr, indices, columns)
        grads = np.zeros_like(block.z), np.zeros_like(block.source), dtarget
        run_backward(block, lse, out, grads)
        assert_close(grads[0], wanted[0][columns], "float64")
        assert_close(grads[1], wanted[1][columns], "float64")
    assert_close(dtarget, wanted[2], "float64")


def test_merge_into_rows():
    rng = np.random.default_rng(7)
    rows = np.array([4, 0, 2], np.int32)
    other = (
        rng.standard_normal((3, 2)),
        rng.random((3, 2)),
        rng.standard_normal((3, 6)),
    )
    state = np.full((5, 2), -np.inf), np.zeros((5, 2)), np.full((5, 6), np.nan)
    HOST.attention_merge(rows, *other, *state)
    for mine, theirs in zip(state, other, strict=True):
        np.testing.assert_array_equal(mine[rows], theirs)
    HOST.attention_merge(rows, *other, *state)
    np.testing.assert_allclose(state[1][rows], 2 * other[1])
    np.testing.assert_allclose(state[2][rows], 2 * other[2])
    with pytest.raises(ValueError, match="rows holds 5"):
        HOST.attention_merge(np.array([0, 1, 5], np.int32), *other, *state)
    with pytest.raises(ValueError, match="same rows"):
        HOST.attention_merge(None, *other, *state)


def masks_of(graph, heads, p, edge_p):
    """Return the masks of weights (edges, heads) and edges (edges, 1), one row for each edge."""
    rows = np.repeat(np.arange(graph.num_rows), np.diff(graph.indptr))
    ones = np.ones((graph.num_columns, heads))
    state = (
        np.full((rows.size, heads), -np.inf),
        np.zeros((rows.size, heads)),
        np.zeros((rows.size, heads)),
    )
    HOST.attention_forward(
        np.arange(rows.size + 1),
        graph.indices,
        ones,
        0 * ones,
        np.zeros((rows.size, heads)),
        *state,
        slope=SLOPE,
        dropout=(WORD, p, rows + (1 << 40), np.arange(graph.num_columns) + 5),
        edge_dropout=(EDGE_WORD, edge_p),
    )
    return state[2], np.isfinite(state[0])


def dropout_of(graph, p, edge_p):
    names = np.arange(graph.num_rows) + (1 << 40), np.arange(graph.num_columns) + 5
    return {"dropout": (WORD, p, *names), "edge_dropout": (EDGE_WORD, edge_p)}


@pytest.mark.parametrize(("p", "edge_p"), [(0.4, 0.0), (0.0, 0.4), (0.3, 0.2), (1.0, 0.0)])
def test_dropout_equals_masks_of_single_edges(graph, isa, p, edge_p):
    layer = make_layer(graph, 3, 6)
    mask, kept = masks_of(graph, 3, p, edge_p)
    wanted_lse, wanted_out, wanted_grads = expected(layer, mask, kept)
    options = dropout_of(graph, p, edge_p) | {"isa": isa}
    lse, out = run_forward(layer, **options)
    assert_close(lse, wanted_lse, "float64")
    assert_close(out, wanted_out, "float64")
    found = run_backward(layer, lse, out, **options)
    for each, wanted in zip(found, wanted_grads, strict=True):
        assert_close(each, wanted, "float64")


def test_every_edge_dropped(graph):
    layer = make_layer(graph, 2, 3)
    options = dropout_of(graph, 0.0, 1.0)
    lse, out = run_forward(layer, **options)
    assert np.isneginf(lse).all()
    assert (out == 0).all()
    for grad in run_backward(layer, lse, out, **options):
        assert (grad == 0).all()


def test_masks_of_blocks_are_those_of_the_whole(graph):
    layer = make_layer(graph, 2, 5)
    options = dropout_of(graph, 0.3, 0.2)
    lse, out = run_forward(layer, **options)
    state = empty_state(layer)
    names = options["dropout"]
    for indptr, indices, columns in stages_of(graph, 3):
        block = block_of(layer, indptr, indices, columns)
        mine = (*names[:3], names[3][columns])
        add_block(block, state, dropout=mine, edge_dropout=options["edge_dropout"])
    HOST.attention_finish(*state)
    assert_close(state[0], lse, "float64")
    assert_close(state[2], out, "float64")


def test_rates_and_independence():
    graph = ugly_graph("hubs")
    mask, kept = masks_of(graph, 4, 0.25, 0.0)
    assert kept.all()
    assert set(np.unique(mask)) == {0.0, 1 / 0.75}
    dropped = (mask == 0).astype(float)
    deviation = np.sqrt(0.25 * 0.75 / mask.shape[0])
    assert (np.abs(dropped.mean(axis=0) - 0.25) < 5 * deviation).all()
    signs = dropped - 0.25
    for a, b in itertools.combinations(range(4), 2):
        assert abs(np.mean(signs[:, a] * signs[:, b])) < 5 * 0.1875 / np.sqrt(mask.shape[0])
    assert abs(np.mean(signs[1:, 0] * signs[:-1, 0])) < 5 * 0.1875 / np.sqrt(mask.shape[0])
    _, kept = masks_of(graph, 2, 0.0, 0.25)
    assert (kept[:, 0] == kept[:, 1]).all()
    assert abs(1 - kept.mean() - 0.25) < 5 * deviation
