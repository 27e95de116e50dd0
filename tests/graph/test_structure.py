"""Features of a node's place: equal to dense arithmetic, at any number of ranks and partition."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.graph.load import load_graph
from hpcgnn.nn import draw_vectors
from hpcgnn.trace import TraceRecorder
from tests.support.training import Graph, make_config, make_graph, train, write_store

DOUBLE = ("train.dtype=float64", "graph.structure_columns=7", "graph.structure_seed=3")


def expected(graph: Graph, kind: str) -> np.ndarray:
    dense = graph.adjacency.toarray()
    if kind == "degree":
        return np.log1p(np.stack([(dense != 0).sum(axis=1), (dense != 0).sum(axis=0)], axis=1))
    both = np.maximum(dense, dense.T)
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


@pytest.mark.parametrize("kind", ["degree", "projection"])
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
    with pytest.raises(CollectiveInputError, match=r"has node types, .* leave it out"):
        train(comm, make_config(typed, folder / "typed", *words))
    with pytest.raises(InputError, match=r"inductive .* does not go with graph.structure"):
        make_config(store, folder / "run", *words, "train.inductive=true")
