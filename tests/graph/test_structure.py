"""Structural features of nodes equal dense arithmetic, for any number of ranks and partition."""

from dataclasses import dataclass, replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.graph.operators import traced_sums
from hpcgnn.graph.structure import SpectralPositions
from hpcgnn.nn import draw_vectors
from hpcgnn.trace import TraceRecorder
from tests.support.training import Graph, make_config, make_graph, train, write_store

DOUBLE = ("train.dtype=float64", "graph.structure_columns=7", "graph.structure_seed=3")


@dataclass(frozen=True, eq=False)
class DenseProduct:
    """The product with a matrix in memory."""

    matrix: np.ndarray

    def apply(self, x: np.ndarray) -> np.ndarray:
        return self.matrix @ x


def expected(graph: Graph, kind: str) -> np.ndarray:
    dense = graph.adjacency.toarray()
    if kind == "degree":
        return np.log1p(np.stack([(dense != 0).sum(axis=1), (dense != 0).sum(axis=0)], axis=1))
    both = np.maximum(dense, dense.T)
    if kind == "spectral":
        with ProcessGrid.of_this_process() as grid:
            start = draw_vectors(graph.ids, 7 + 8, 3)
            return SpectralPositions(grid, DenseProduct(both), len(both), start).find(7)
    sums = both.sum(axis=1, keepdims=True)
    mean = np.divide(both, sums, out=np.zeros_like(both), where=sums > 0)
    x, total = draw_vectors(graph.ids, 7, 3), np.zeros((len(graph.ids), 7))
    for _ in range(3):
        x = mean @ x
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        total += x / np.where(norms > 0, norms, 1)
    return total


def features(comm: MPI.Intracomm, config: Config) -> np.ndarray:
    """The inputs of all nodes by increasing id."""
    with ProcessGrid(comm) as grid:
        graph = load_graph(Context.open(grid, config, TraceRecorder.off()))
        rows = comm.allgather((graph.products.node_ids, graph.features.numpy()))
    ids, values = (np.concatenate(each) for each in zip(*rows, strict=True))
    return values[np.argsort(ids)]


def test_trace_has_the_bytes_of_sums_for_other_ranks(comm: MPI.Intracomm) -> None:
    trace, part = TraceRecorder.open(None, comm.rank, {}), comm.Split(comm.rank // 2)
    with ProcessGrid(part) as grid:
        traced_sums(grid, trace)(np.ones((5, 3)))
    assert trace.total_of("reduce.statistics")["bytes"] == (8 * 15 if part.size > 1 else 0)
    part.Free()


@pytest.mark.parametrize("kind", ["degree", "projection", "spectral"])
@pytest.mark.parametrize("bare", [False, True])
def test_features_of_structure(
    comm: MPI.Intracomm, comm_tmp_path: Path, kind: str, *, bare: bool
) -> None:
    made = make_graph(weighted=True)
    graph = replace(made, features=None) if bare else made
    wanted = expected(made, kind)
    if not bare:
        wanted = np.concatenate([made.features, wanted], axis=1)
    for method in ("random", "block"):
        store = write_store(comm, comm_tmp_path, graph, method=method)
        for exchange in ("joint", "oblivious"):
            words = (*DOUBLE, f"graph.structure={kind}", f"exchange.method={exchange}")
            config = make_config(store, comm_tmp_path / "run", *words)
            np.testing.assert_allclose(features(comm, config), wanted, rtol=1e-9, atol=1e-12)


def test_a_graph_without_features_trains_on_its_structure(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    bare = replace(make_graph(), features=None)
    folder = comm_tmp_path / "bare"
    folder.mkdir(exist_ok=True)
    store = write_store(comm, folder, bare)
    words = (*DOUBLE, "train.epochs=4", "graph.structure=projection")
    run = train(comm, make_config(store, folder / "run", *words))
    given = replace(bare, features=expected(make_graph(), "projection"))
    other = comm_tmp_path / "given"
    other.mkdir(exist_ok=True)
    stored = write_store(comm, other, given)
    same = train(comm, make_config(stored, other / "run", *DOUBLE, "train.epochs=4"))
    for column in ("train_loss", "test_loss"):
        np.testing.assert_allclose(run.column(column), same.column(column), rtol=1e-9)
    typed = write_store(comm, comm_tmp_path, make_graph().with_types())
    with pytest.raises(CollectiveInputError, match=r"with node types .* graph.structure = .none"):
        train(comm, make_config(typed, folder / "typed", *words))


def communities(num_nodes: int, num_communities: int) -> np.ndarray:
    """A random graph with communities, a separate component and a node without edges."""
    rng = np.random.default_rng(5)
    group = rng.integers(0, num_communities, num_nodes)
    chance = np.where(group[:, None] == group, 0.25, 0.02)
    upper = np.triu(rng.random((num_nodes, num_nodes)) < chance, 1)
    upper[:4], upper[:, :4] = False, False
    upper[1, 2] = True
    return (upper | upper.T).astype(np.float64)


def test_spectral_positions_are_eigenvectors() -> None:
    dense = communities(240, 5)
    with ProcessGrid.of_this_process() as grid:
        start = draw_vectors(np.arange(240), 4 + 8, 1)
        found = SpectralPositions(grid, DenseProduct(dense), 240, start).find(4)
        few = SpectralPositions(grid, DenseProduct(dense[:3, :3]), 3, start[:3]).find(4)
        none = SpectralPositions(grid, DenseProduct(np.zeros((9, 9))), 9, start[:9]).find(4)
    more = dense.sum() / 240
    degrees = dense.sum(axis=1) + more
    matrix = (dense + more / 240) / np.sqrt(degrees[:, None] * degrees)
    values, vectors = np.linalg.eigh(matrix)
    wanted = vectors[:, -2:-6:-1]
    wanted *= np.sign((wanted * start[:, :4]).sum(axis=0)) * values[-2:-6:-1] * np.sqrt(240)
    # Five communities separate four eigenvalues from the others.
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.isfinite(few).all()
    assert (few[:, 2:] == 0).all()
    np.testing.assert_allclose(none, 0, atol=1e-7)


def test_positions_of_eigenvalue_0_are_zeros() -> None:
    star = np.zeros((30, 30))
    star[0, 1:] = star[1:, 0] = 1
    with ProcessGrid.of_this_process() as grid:
        start = draw_vectors(np.arange(30), 6 + 8, 1)
        found = SpectralPositions(grid, DenseProduct(star), 30, start).find(6)
    lengths = np.linalg.norm(found, axis=0)
    assert ((lengths == 0) | (lengths > 1e-3)).all()
    assert (lengths == 0).sum() >= 4
