"""On graphs whose edges nothing predicts, links are predicted as well as by chance, not better.

An oracle that agrees with the program cannot show a leak: only the value of chance can.
"""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from tests.support.training import Graph, make_config, make_graph, train, write_store

NUM_NODES, DEGREE, RANKED = 1501, 4, 20
WORDS = (
    "train.task=links",
    "train.epochs=30",
    "train.evaluate_every=30",
    "train.learning_rate=0.02",
    "links.train=0.3",
    "links.valid=0",
    "links.test=0.3",
    f"links.ranked={RANKED}",
    "model.hidden=8",
    "model.num_layers=1",
    "model.name=sage",
    "model.dropout=0",
    "run.save_predictions=false",
)
MLP = ("links.scorer=mlp",)
INPUTS = {
    "ids": MLP,
    "random": ("links.scorer=dot",),
    "degrees": ("graph.structure=degree", *MLP),
    "embeddings": (
        "model.embeddings=true",
        "model.hidden=32",
        "model.num_layers=2",
        "links.scorer=dot",
        "links.loss=cross_entropy",
        "links.train=0.6",
        "train.epochs=20",
        "train.evaluate_every=20",
        "train.learning_rate=0.03",
    ),
    "types": MLP,
}
MEANS = {
    "drawn": (),
    "all": ("links.ranking=all",),
    "neighbours": (
        "links.sampled=true",
        "sampling.sampler=neighbour",
        "sampling.budget=256",
        "sampling.fan_outs=[3]",
    ),
    "subgraphs": ("links.sampled=true", "sampling.budget=400"),
}
SAMPLED = ("neighbours", "subgraphs")


def uniform_graph(inputs: str, *, directed: bool) -> Graph:
    """Return a graph of independently drawn edges, with features that are independent of them."""
    rng = np.random.default_rng(11)
    rows, columns = rng.integers(0, NUM_NODES, (2, NUM_NODES * DEGREE))
    values = np.ones(len(rows))
    adjacency = sp.csr_matrix((values, (rows, columns)), shape=(NUM_NODES, NUM_NODES))
    adjacency = adjacency if directed else adjacency + adjacency.T
    adjacency.data[:] = 1
    graph = replace(make_graph(num_nodes=NUM_NODES), adjacency=adjacency, directed=directed)
    ids = np.arange(NUM_NODES)
    if inputs == "types":
        types = (3 * ids // NUM_NODES).astype(np.uint8)
        counts = zip("abc", np.bincount(types), strict=True)
        of_types = {name: np.ones((count, 2)) for name, count in counts}
        return replace(graph, types=types, type_features=of_types, features=None)
    features = {
        "ids": np.stack([ids / NUM_NODES, np.ones(NUM_NODES)], axis=1),
        "random": rng.normal(size=(NUM_NODES, 8)),
        "degrees": np.ones((NUM_NODES, 1)),
    }
    found = features.get(inputs)
    return replace(graph, features=None if found is None else found.astype(np.float32))


def assert_chance(
    comm: MPI.Intracomm, path: Path, inputs: str, way: str, *, directed: bool
) -> None:
    """Train, and compare the metrics of the test edges with those of random scores."""
    store = write_store(comm, path, uniform_graph(inputs, directed=directed))
    words = [*WORDS, *INPUTS[inputs], *MEANS[way]]
    if way == "neighbours" and "model.num_layers=2" in words:
        words.append("sampling.fan_outs=[3, 3]")
    run = train(comm, make_config(store, path / "run", *words))
    found, tested = run.metrics[-1], run.summary["links"]["test"]
    # An edge's rank among its negatives is uniform in [0, 1), and this is the standard error of the
    # mean of that many ranks. Edges that share a node are not independent, hence the factor.
    error = 1.3 * np.sqrt(1 / (12 * tested))
    assert abs(found["test_auc"] - 0.5) < 3 * error, found
    if way == "all" and inputs == "types":
        # The number of nodes of one type differs from target to target.
        return
    reciprocal = 1 / np.arange(1, (NUM_NODES - 2 if way == "all" else RANKED) + 2)
    mean, deviation = reciprocal.mean(), reciprocal.std()
    # Equal scores share the middle rank, whose reciprocal is below the mean of their reciprocals.
    assert found["test_mrr"] < mean + 3 * 1.3 * deviation / np.sqrt(tested), found
    # After a few steps on subgraphs, rectifiers are 0 for most nodes: few embeddings differ.
    if inputs in ("ids", "random") or (inputs == "embeddings" and way not in SAMPLED):
        assert found["test_mrr"] > mean - 3 * 1.3 * deviation / np.sqrt(tested), found


@pytest.mark.max_ranks(3)
@pytest.mark.parametrize("inputs", ["ids", "embeddings"])
def test_ids_of_undirected_graphs_tell_no_edge(
    comm: MPI.Intracomm, comm_tmp_path: Path, inputs: str
) -> None:
    assert_chance(comm, comm_tmp_path, inputs, "drawn", directed=False)


@pytest.mark.slow
@pytest.mark.parametrize("way", MEANS)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
def test_nothing_tells_an_edge(
    comm: MPI.Intracomm, comm_tmp_path: Path, inputs: str, way: str, directed: bool
) -> None:
    if directed and way == "neighbours":
        pytest.skip("refused")
    assert_chance(comm, comm_tmp_path, inputs, way, directed=directed)
