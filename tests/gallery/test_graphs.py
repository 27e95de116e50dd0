from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcgnn import gallery
from hpcgnn.gallery import GalleryGraph
from hpcgnn.storage import GraphStore, Split

UNDIRECTED = {
    "grid2d": gallery.grid2d((5, 7)),
    "grid3d": gallery.grid3d((3, 4, 5)),
    "path": gallery.path(9),
    "single": gallery.path(1),
    "star": gallery.star(13),
    "empty": gallery.empty(4),
    "isolated": gallery.isolated(31, 8, 77),
    "all isolated": gallery.isolated(3, 3, 77),
    "delaunay": gallery.delaunay(60, 77),
    "rmat": gallery.rmat(6, 4, 77, undirected=True),
    "planted": gallery.planted(211, 5, 7, 77),
    "lfr": gallery.lfr(300, 77),
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


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("grid2d", {2: 4, 3: 16, 4: 15}),
        ("path", {1: 2, 2: 7}),
        ("star", {1: 13, 13: 1}),
        ("empty", {0: 4}),
        ("isolated", {0: 8, 1: 2, 2: 21}),
    ],
)
def test_shapes_have_their_degrees(name: str, degrees: dict[int, int]) -> None:
    found = np.bincount(UNDIRECTED[name].dst, minlength=UNDIRECTED[name].num_nodes)
    assert dict(zip(*np.unique(found, return_counts=True), strict=True)) == degrees


def test_a_grid_joins_neighbours_only() -> None:
    grid = UNDIRECTED["grid3d"]
    ends = np.array(np.unravel_index([grid.src, grid.dst], (3, 4, 5)))
    assert np.all(np.abs(ends[:, 0] - ends[:, 1]).sum(axis=0) == 1)
    assert grid.src.size == 2 * (2 * 20 + 3 * 15 + 4 * 12)


def test_grid_edges_come_in_chunks() -> None:
    whole = gallery.grid_edges((3, 4, 5), 0, 60)
    pieces = [gallery.grid_edges((3, 4, 5), start, start + 20) for start in (0, 20, 40)]
    pairs = {pair for src, dst in pieces for pair in zip(src, dst, strict=True)}
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
