"""Supernodes: their choice, the products of their slices, and that nothing else changes."""

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn.banded import BandedOperator, Supergraph, held_edges, lay_out
from hpcgnn.banded.supernodes import _by_neighbours
from hpcgnn.storage import InstanceBatch
from hpcgnn.trace import TraceRecorder
from tests.support.supergraphs import NUM_FORWARD, dense, hub_batch, random_batch

OFF = TraceRecorder.open(None, 0, {})


def build(batch: InstanceBatch, block: int, most: int) -> Supergraph:
    ids = batch.starts("num_nodes")[:-1]
    return Supergraph.build(batch, NUM_FORWARD, ids, lay_out(batch, block, most))


def test_hubs_are_found_and_the_rest_fits_the_band() -> None:
    batch = hub_batch([60, 7, 90], hubs=2, reach=3)
    layout = lay_out(batch, 16, 8)
    # The small graph fits without supernodes.
    assert layout.supernodes.firsts.tolist() == [0, 67]
    assert layout.supernodes.counts.tolist() == [2, 2]
    assert layout.supernodes.stops.tolist() == [60, 157]
    assert set(layout.order[:2]) == {0, 59}
    assert set(layout.order[67:69]) == {67, 156}
    assert sorted(layout.order) == list(range(157))
    graph = build(batch, 16, 8)
    assert held_edges(graph.edges, 16, graph.supernodes).all()
    assert not held_edges(build(batch, 16, 0).edges, 16, None).all()


def test_what_a_supernode_takes_counts_for_no_other() -> None:
    # Node 1 has two neighbours like node 7, and one of them is the hub.
    left, right = [0, 0, 0, 0, 0, 1, 7, 7], [1, 2, 3, 4, 5, 6, 8, 9]
    both = sp.csr_matrix((np.ones(16), (left + right, right + left)), shape=(10, 10))
    assert _by_neighbours(both, 2).tolist() == [0, 7]


def test_without_supernodes_the_order_stays() -> None:
    batch = random_batch([30, 4], 20)
    for block, most in ((4, 0), (100, 8)):
        layout = lay_out(batch, block, most)
        assert layout.order.tolist() == list(range(34))
        assert len(layout.supernodes) == 0


@pytest.mark.parametrize("most", [1, 3, 40])
@pytest.mark.parametrize(("sizes", "block"), [([2, 90], 1), ([50, 1, 33], 8), ([], 4)])
def test_slices_and_band_are_the_matrix(sizes: list[int], block: int, most: int) -> None:
    graph = build(random_batch(sizes, 30), block, most)
    edges, supernodes = graph.edges, graph.supernodes
    assert supernodes is not None
    operator = BandedOperator(edges, block, np.float64, OFF, supernodes)
    kept = edges.select(held_edges(edges, block, supernodes))
    assert operator.dropped == len(edges) - len(kept)
    assert operator.size.num_entries == len(kept)
    matrix = dense(kept).transpose(1, 0, 2).reshape(operator.shape)
    rng = np.random.default_rng(1)
    x, g = rng.normal(size=(edges.num_nodes, 3)), rng.normal(size=(len(matrix), 3))
    np.testing.assert_allclose(operator.apply(x), matrix @ x, atol=1e-12)
    np.testing.assert_allclose(operator.apply_transpose(g), matrix.T @ g, atol=1e-12)
    assert np.vdot(operator.apply(x), g) == pytest.approx(np.vdot(x, operator.apply_transpose(g)))


def test_a_layout_renames_nodes_and_nothing_else() -> None:
    batch = hub_batch([40, 25], hubs=3, reach=2)
    layout = lay_out(batch, 8, 4)
    plain = Supergraph.build(batch, NUM_FORWARD, np.array([100, 500]))
    moved = Supergraph.build(batch, NUM_FORWARD, np.array([100, 500]), layout)
    order = layout.order
    assert not np.array_equal(order, np.arange(65))
    assert np.array_equal(moved.node_ids, plain.node_ids[order])
    assert np.array_equal(order[moved.candidates], plain.candidates)
    assert np.array_equal(dense(moved.edges), dense(plain.edges)[:, order][:, :, order])

    def tokens(graph: Supergraph) -> list[list[int]]:
        return [each.tolist() for each in np.split(graph.subtokens, graph.subtoken_starts[1:-1])]

    assert tokens(moved) == [tokens(plain)[node] for node in order]
