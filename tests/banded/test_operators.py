import numpy as np
import pytest

from hpcgnn.banded import BandedOperator, Supergraph, TypedPairs, inside_band
from hpcgnn.trace import TraceRecorder
from tests.support.supergraphs import NUM_FORWARD, dense, random_batch, supergraph

OFF = TraceRecorder.open(None, 0, {})
SHAPES = [([1], 1), ([5], 2), ([40, 3, 1, 17], 6), ([64], 63), ([16, 16], 4), ([2, 90], 40)]


def stacked(matrices: np.ndarray) -> np.ndarray:
    """Return (n P, n) with the types of a node side by side."""
    return matrices.transpose(1, 0, 2).reshape(-1, matrices.shape[2])


@pytest.mark.parametrize("block", [1, 4, 7, 16, 100])
@pytest.mark.parametrize(("sizes", "reach"), SHAPES)
def test_band_is_the_matrix_without_what_is_dropped(
    sizes: list[int], reach: int, block: int
) -> None:
    edges = supergraph(sizes, reach).edges
    operator = BandedOperator(edges, block, np.float64, OFF)
    kept = edges.select(inside_band(edges, block))
    assert operator.dropped == len(edges) - len(kept)
    assert operator.size.num_entries == len(kept)
    distance = np.abs(edges.targets - edges.sources)
    held = inside_band(edges, block)
    assert held[distance < block].all()
    assert not held[distance >= 2 * block].any()
    matrix = stacked(dense(kept))
    rng = np.random.default_rng(1)
    x, g = rng.normal(size=(edges.num_nodes, 3)), rng.normal(size=(len(matrix), 3))
    np.testing.assert_allclose(operator.apply(x), matrix @ x, atol=1e-12)
    np.testing.assert_allclose(operator.apply_transpose(g), matrix.T @ g, atol=1e-12)
    assert np.vdot(operator.apply(x), g) == pytest.approx(np.vdot(x, operator.apply_transpose(g)))


@pytest.mark.parametrize(("sizes", "reach"), SHAPES)
def test_pairs_are_the_matrix_without_empty_rows(sizes: list[int], reach: int) -> None:
    edges = supergraph(sizes, reach).edges
    pairs = TypedPairs.of(edges, OFF)
    matrices = dense(edges)
    x = np.random.default_rng(2).normal(size=(edges.num_nodes, 5))
    by_type = [matrix[matrix.any(axis=1)] @ x for matrix in matrices]
    sums = pairs.gather.apply(x)
    np.testing.assert_allclose(sums, np.concatenate(by_type), atol=1e-12)
    assert np.diff(pairs.type_starts).tolist() == [len(each) for each in by_type]
    np.testing.assert_allclose(pairs.scatter.apply(sums), matrices.sum(axis=0) @ x, atol=1e-12)
    for operator in (pairs.gather, pairs.scatter):
        rows, columns = operator.shape
        rng = np.random.default_rng(3)
        a, b = rng.normal(size=(columns, 2)), rng.normal(size=(rows, 2))
        left, right = np.vdot(operator.apply(a), b), np.vdot(a, operator.apply_transpose(b))
        assert left == pytest.approx(right)


def test_supergraph_keeps_graphs_apart() -> None:
    batch = random_batch([3, 8, 1], 2)
    graph = Supergraph.build(batch, NUM_FORWARD, np.array([100, 50, 7]))
    assert graph.num_nodes == 12
    assert graph.num_graphs == 3
    assert graph.node_ids.tolist() == [*range(100, 103), *range(50, 58), 7]
    owner = np.repeat([0, 1, 2], [3, 8, 1])
    edges = graph.edges
    assert (owner[edges.targets] == owner[edges.sources]).all()
    assert (owner[graph.candidates] == graph.candidate_graphs).all()
    matrices = dense(edges)
    assert np.array_equal(matrices[NUM_FORWARD:], matrices[:NUM_FORWARD].transpose(0, 2, 1))
    assert len(edges) == 2 * len(batch.edges)
    assert edges.counts().sum() == len(edges)
    assert np.array_equal(edges.counts(), matrices.sum(axis=2).T)


def test_self_edges_are_of_the_last_type() -> None:
    batch = random_batch([3, 8], 2)
    ids = batch.starts("num_nodes")[:-1]
    plain = Supergraph.build(batch, NUM_FORWARD, ids).edges
    edges = Supergraph.build(batch, NUM_FORWARD, ids, self_edges=True).edges
    matrices = dense(edges)
    assert edges.num_types == plain.num_types + 1 == len(matrices)
    assert np.array_equal(matrices[:-1], dense(plain))
    assert np.array_equal(matrices[-1], np.eye(11))
    x = np.random.default_rng(2).normal(size=(11, 5))
    pairs, band = TypedPairs.of(edges, OFF), BandedOperator(edges, 11, np.float64, OFF)
    np.testing.assert_allclose(pairs.gather.apply(x)[-11:], x)
    np.testing.assert_allclose(band.apply(x), stacked(matrices) @ x, atol=1e-12)


def test_no_graphs() -> None:
    graph = supergraph([], 1)
    assert graph.num_nodes == 0
    operator = BandedOperator(graph.edges, 8, np.float32, OFF)
    assert operator.apply(np.empty((0, 2), np.float32)).shape == (0, 2)
    assert TypedPairs.of(graph.edges, OFF).gather.apply(np.empty((0, 2), np.float32)).shape == (
        0,
        2,
    )
