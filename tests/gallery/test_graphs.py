from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

from hpcgnn import gallery
from hpcgnn.errors import InputError
from hpcgnn.gallery import GalleryGraph, shapes
from hpcgnn.storage import GraphStore, Split

UNDIRECTED = {
    "grid2d": gallery.grid_graph((5, 7)),
    "grid3d": gallery.grid_graph((3, 4, 5)),
    "rmat": gallery.rmat(6, 4, 77, undirected=True),
    "planted": gallery.planted(211, 5, 7, 77),
}


@pytest.fixture(params=UNDIRECTED, ids=str)
def graph(request: pytest.FixtureRequest) -> GalleryGraph:
    return UNDIRECTED[request.param]


def test_undirected_graphs_are_symmetric_and_simple(graph: GalleryGraph) -> None:
    assert graph.undirected
    A = graph.to_scipy()
    assert A.shape == (graph.num_nodes, graph.num_nodes)
    assert (A != A.T).nnz == 0
    assert A.diagonal().sum() == 0
    assert np.all(A.data == 1)
    assert graph.src.dtype == graph.dst.dtype == np.int64


def test_a_written_graph_is_the_same_graph(graph: GalleryGraph, tmp_path: Path) -> None:
    graph.write(tmp_path / "graph.h5")
    with GraphStore.open(tmp_path / "graph.h5") as store:
        rows = store.read_adjacency(0, graph.num_nodes).to_scipy(graph.num_nodes)
        assert (rows != graph.to_scipy()).nnz == 0
        assert store.undirected
        assert store.name == graph.name


def test_a_plane_grid_has_its_degrees() -> None:
    grid = UNDIRECTED["grid2d"]
    found = np.bincount(grid.dst, minlength=grid.num_nodes)
    assert np.bincount(found).tolist() == [0, 0, 4, 16, 15]


def test_a_grid_joins_neighbours_only() -> None:
    grid = UNDIRECTED["grid3d"]
    ends = np.array(np.unravel_index([grid.src, grid.dst], (3, 4, 5)))
    assert np.all(np.abs(ends[:, 0] - ends[:, 1]).sum(axis=0) == 1)
    assert grid.src.size == 2 * (2 * 20 + 3 * 15 + 4 * 12)


def test_grid_edges_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = gallery.GridEdges((3, 4, 5))
    whole = edges.chunk(0)
    monkeypatch.setattr(shapes, "GRID_CHUNK", 20)
    pieces = [edges.chunk(number) for number in range(edges.num_chunks)]
    pairs = {pair for src, dst in pieces for pair in zip(src, dst, strict=True)}
    assert len(pieces) == 3
    assert len(whole[0]) == edges.num_edges
    assert pairs == set(zip(*whole, strict=True))


@given(st.integers(1, 200), st.integers(0, 2**31))
def test_splits_are_60_20_20(num_nodes: int, seed: int) -> None:
    split = gallery.random_split(num_nodes, seed)
    counts = np.bincount(split, minlength=4)
    assert counts[Split.NONE] == 0
    assert counts[Split.TRAIN] == 6 * num_nodes // 10
    assert counts[Split.TRAIN] + counts[Split.VALID] == 8 * num_nodes // 10


def test_seeds_decide() -> None:
    first, second = gallery.planted(150, 4, 6, 11), gallery.planted(150, 4, 6, 11)
    other = gallery.planted(150, 4, 6, 12)
    assert np.array_equal(first.src, second.src)
    assert np.array_equal(first.features, second.features)
    assert not np.array_equal(first.features, other.features)


def nearest_centre(features: np.ndarray, graph: GalleryGraph) -> float:
    """Return the test accuracy of assigning each node to the nearest training centre."""
    train, test = graph.split == Split.TRAIN, graph.split == Split.TEST
    classes = np.arange(len(graph.class_names))
    centres = [features[train & (graph.labels == c)].mean(axis=0) for c in classes]
    distances = ((features[:, None] - np.array(centres)) ** 2).sum(axis=2)
    return float(np.mean(distances.argmin(axis=1)[test] == graph.labels[test]))


def test_neighbours_tell_the_class_of_a_planted_graph() -> None:
    graph = gallery.planted(2000, 8, 16, 5)
    A = graph.to_scipy()
    sums, degrees = A @ graph.features, np.asarray(A.sum(axis=1)).reshape(-1, 1)
    mean = (sums + graph.features) / (degrees + 1)
    alone, together = nearest_centre(graph.features, graph), nearest_centre(mean, graph)
    assert 0.3 < alone < 0.75
    assert together > alone + 0.15


def test_planted_degrees_have_a_tail() -> None:
    degrees = np.bincount(gallery.planted(3000, 4, 2, 19).dst, minlength=3000)
    assert degrees.max() > 8 * degrees.mean()


def test_mixing_is_the_share_of_edges_that_ignore_blocks() -> None:
    labels = np.repeat(np.arange(10, dtype=np.int32), 200)
    for mixing, expected in ((0.0, 1.0), (1.0, 0.1), (0.5, 0.55)):
        graph = gallery.dcsbm(labels, 41, mixing=mixing)
        inside = np.mean(labels[graph.src] == labels[graph.dst])
        assert inside == pytest.approx(expected, abs=0.06)


def test_degrees_do_not_tell_the_place_in_a_block() -> None:
    labels = np.zeros(30, np.int32)
    graphs = [gallery.dcsbm(labels, seed, mean_degree=4, exponent=9) for seed in range(300)]
    degrees = np.mean([np.bincount(graph.dst, minlength=30) for graph in graphs], axis=0)
    np.testing.assert_allclose(degrees, degrees.mean(), rtol=0.15)


def drawn(edges: gallery.CommunityEdges) -> tuple[np.ndarray, np.ndarray]:
    pairs = [edges.chunk(number) for number in range(edges.num_chunks)]
    src, dst = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    return src, dst


@pytest.mark.parametrize(("mixing", "expected"), [(0.0, 1.0), (1.0, 0.1), (0.5, 0.55)])
def test_streamed_communities_mix_as_asked(mixing: float, expected: float) -> None:
    # 2003 nodes: blocks of two sizes.
    src, dst = drawn(gallery.CommunityEdges(2003, 10, 5, mixing=mixing))
    assert np.mean(src % 10 == dst % 10) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("exponent", [2.3, 3.0])
def test_streamed_communities_have_a_power_law_of_degrees(exponent: float) -> None:
    src, dst = drawn(gallery.CommunityEdges(40_000, 4, 5, mean_degree=40, exponent=exponent))
    degrees = np.sort(np.bincount(np.append(src, dst), minlength=40_000))[::-1]
    assert degrees.sum() == 40 * 40_000
    # Degree by rank falls as rank^(-1 / (exponent - 1)).
    few, many = degrees[40:60].mean(), degrees[4000:6000].mean()
    slope = np.log(few / many) / np.log(5000 / 50)
    assert slope == pytest.approx(1 / (exponent - 1), abs=0.04)


@pytest.mark.parametrize(
    "arguments",
    [(-1, 2, 3), (9, 0, 3), (9, 2, -3), (9, 2, 3, -1), (9, 2, 3, 4, 1.1), (9, 2, 3, 4, 0, 2)],
)
def test_wrong_communities_are_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(InputError):
        gallery.CommunityEdges(*arguments)


def test_one_community_is_enough() -> None:
    src, dst = drawn(gallery.CommunityEdges(50, 1, 3))
    assert len(src) == 250
    assert max(src.max(), dst.max()) < 50


def test_planted_graphs_are_connected_each() -> None:
    graphs = gallery.planted_graphs(60, 3, 2, 5).graphs
    _, parts = connected_components(graphs.to_scipy())
    np.testing.assert_array_equal(parts, graphs.graph)


def test_neighbours_tell_the_class_of_streamed_communities() -> None:
    nodes = gallery.CommunityNodes(2000, 16, 8, 5)
    features, labels, split = nodes.block(0)
    src, dst = drawn(gallery.CommunityEdges(2000, 8, 5))
    graph = GalleryGraph(
        name="streamed",
        num_nodes=2000,
        edges={"": (src, dst)},
        labels=labels,
        split=split,
        class_names=tuple("abcdefgh"),
    )
    A = graph.to_scipy()
    A = A + A.T
    mean = (A @ features + features) / (np.asarray(A.sum(axis=1)).reshape(-1, 1) + 1)
    alone, together = nearest_centre(features, graph), nearest_centre(mean, graph)
    assert 0.3 < alone < 0.75
    assert together > alone + 0.15
