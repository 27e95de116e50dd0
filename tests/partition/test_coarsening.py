"""Levels of clusters on ranks, compared with products of matrices in one process."""

from mpi4py import MPI

import numpy as np
import pytest
from scipy import sparse

from hpcgnn.comm import ProcessGrid
from hpcgnn.partition import CSRGraph
from hpcgnn.partition.coarsening import (
    MOST_JOINING,
    Level,
    _among_themselves,
    _fits,
    cluster,
    contract,
    finest_level,
)
from tests.partition.test_refinement import GRAPHS, my_rows, whole


def made(
    grid: ProcessGrid,
    graph: CSRGraph,
    *,
    is_symmetric: bool,
    density: float = np.inf,
    seed: int = 7,
) -> Level:
    """Return the finest level; later nodes are heavier, and every ninth weighs nothing."""
    rows = my_rows(grid.layer, graph, is_symmetric=is_symmetric)
    nodes = np.arange(rows.row_map.start, rows.row_map.stop)
    weights = np.where(nodes % 9 == 4, 0, 1 + nodes // 7)
    return finest_level(grid, rows, weights, density, seed)


def entries(comm: MPI.Intracomm, level: Level) -> sparse.csr_array:
    """Return the whole matrix of a level on each rank."""
    names = level.with_ghosts(np.arange(level.row_map.start, level.row_map.stop))
    edges, columns = whole(comm, level.edges), whole(comm, names[level.columns])
    indptr = np.concatenate([[0], np.cumsum(whole(comm, np.diff(level.indptr)))])
    size = level.row_map.num_rows
    return sparse.csr_array((edges.astype(np.int64), columns, indptr), (size, size))


def without_loops(matrix: sparse.csr_array) -> np.ndarray:
    dense = matrix.toarray()
    np.fill_diagonal(dense, 0)
    return dense


@pytest.mark.parametrize("name", GRAPHS)
def test_levels_add_up_what_their_clusters_have(comm: MPI.Intracomm, name: str) -> None:
    graph, is_symmetric = GRAPHS[name], name in ("symmetric", "grid")
    matrix = graph.to_scipy().astype(np.int64)
    matrix.data[:] = 1
    with ProcessGrid(comm) as ranks:
        level = made(ranks, graph, is_symmetric=is_symmetric)
        expected = without_loops(matrix if is_symmetric else matrix + matrix.T)
        np.testing.assert_array_equal(without_loops(entries(comm, level)), expected)
        assert not entries(comm, level).diagonal().any()
        np.testing.assert_array_equal(whole(comm, level.degrees()), expected.sum(axis=1))
        row_map, weights = level.row_map, whole(comm, level.weights)
        for _ in range(2):
            # Leaders may be any of their nodes, on any rank.
            generator, size = np.random.default_rng(row_map.num_rows), row_map.num_rows
            leader = generator.choice(generator.permutation(size)[: size // 3 + 1], size)
            names = np.unique(leader)
            leader[names] = names
            place = np.searchsorted(names, leader)
            coarse, number = contract(ranks, level, leader[row_map.start : row_map.stop])
            np.testing.assert_array_equal(whole(comm, number), place)
            assert coarse.row_map.num_rows == len(names)
            owners = row_map.owner(names)
            np.testing.assert_array_equal(coarse.row_map.owner(np.arange(len(names))), owners)
            weights = np.bincount(place, weights)
            np.testing.assert_array_equal(whole(comm, coarse.weights), weights)
            joined = sparse.csr_array((np.ones(len(place), np.int64), (place, range(len(place)))))
            expected = without_loops(joined @ sparse.csr_array(expected) @ joined.T)
            np.testing.assert_array_equal(entries(comm, coarse).toarray(), expected)
            level, row_map = coarse, coarse.row_map


@pytest.mark.parametrize("name", GRAPHS)
def test_a_sample_is_the_same_on_all_ranks(comm: MPI.Intracomm, name: str) -> None:
    graph, terms = GRAPHS[name], {"is_symmetric": name in ("symmetric", "grid"), "density": 1.5}
    with ProcessGrid(comm) as ranks, ProcessGrid(MPI.COMM_SELF) as alone:
        for seed in range(3):
            sample = entries(comm, made(ranks, graph, **terms, seed=seed)).toarray()
            serial = entries(MPI.COMM_SELF, made(alone, graph, **terms, seed=seed))
            np.testing.assert_array_equal(sample, serial.toarray())
            np.testing.assert_array_equal(sample, sample.T)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_sample_keeps_cuts_in_the_mean(name: str) -> None:
    graph, is_symmetric = GRAPHS[name], name in ("symmetric", "grid")
    kept, cuts, seeds = [], [], 60
    halves = np.arange(graph.num_nodes) % 2 == 0
    with ProcessGrid(MPI.COMM_SELF) as alone:
        whole_level = entries(MPI.COMM_SELF, made(alone, graph, is_symmetric=is_symmetric))
        cut = int(whole_level[halves][:, ~halves].sum())
        for seed in range(seeds):
            level = made(alone, graph, is_symmetric=is_symmetric, density=1.5, seed=seed)
            sample = entries(MPI.COMM_SELF, level)
            kept.append(sample.count_nonzero())
            cuts.append(int(sample[halves][:, ~halves].sum()))
    if name in ("directed", "symmetric"):
        assert max(kept) < 0.7 * whole_level.count_nonzero()
        assert abs(np.mean(cuts) - cut) < 4 * np.std(cuts) / seeds**0.5
    elif name != "few":
        # No node exceeds its density, or there is no edge at all.
        assert name == "grid" or cuts == [cut] * seeds


@pytest.mark.parametrize("name", GRAPHS)
def test_clusters_are_small_and_keep_to_their_weight(comm: MPI.Intracomm, name: str) -> None:
    graph, most = GRAPHS[name], 90
    with ProcessGrid(comm) as ranks:
        level = made(ranks, graph, is_symmetric=name in ("symmetric", "grid"))
        leader = whole(comm, cluster(comm, level, most, 5))
        near = entries(comm, level)
        weights = whole(comm, level.weights)
    nodes = np.arange(graph.num_nodes)
    np.testing.assert_array_equal(leader[leader], leader)
    sizes = np.bincount(leader, minlength=len(nodes))
    assert sizes.max() <= MOST_JOINING + 1
    assert np.bincount(leader, weights)[sizes[: leader.max() + 1] > 1].max(initial=0) <= most
    _, component = sparse.csgraph.connected_components(near)
    np.testing.assert_array_equal(component[leader], component)
    if name == "grid":
        assert np.count_nonzero(sizes) < len(nodes) / 2


def test_who_fits_into_a_cluster_and_who_is_left() -> None:
    groups, weight = np.array([0, 0, 0, 2, 2, 3]), np.array([3, 2, 1, 5, 1, 1])
    room, seats = np.array([5, 9, 6, 0]), np.array([3, 3, 1, 3])
    fits = _fits(groups, weight, room, seats)
    assert fits.tolist() == [True, True, False, True, False, False]
    groups, weight = np.array([1] * 6 + [3]), np.array([2] * 6 + [9])
    found = _among_themselves(groups, weight, np.arange(10, 17), 6)
    assert found.tolist() == [10, 10, 10, -1, 14, 14, -1]
    found = _among_themselves(groups, weight, np.arange(10, 17), 8)
    assert found.tolist() == [10, 10, 10, 10, 14, 14, -1]
