"""Scaled edge features give the same as a store of scaled features, in every command."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from hpcgnn.storage import EdgeData, Split
from tests.support.labelled_edges import EdgeGraph, planted_edges, ugly_edges
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.planned import planned
from tests.support.training import MOVED, TIMES, Run, make_config, predict_with, train

STANDARD = "graph.normalize_edge_features=standard"
DOUBLE = ("train.dtype=float64", "train.epochs=2", "model.norm=layer")
GINE = ("model.name=gine",)
DOORS = {
    "messages": GINE,
    "attention": ("model.name=gat", "model.edge_features=true"),
    "means": ("model.name=sage", "model.edge_features=true"),
    "states": ("model.name=meshgraphnet", "model.norm=none"),
    "one relation": (*GINE, "graph.relations=['second']"),
    "subgraphs": (*GINE, "train.task=sampled", "sampling.budget=30"),
    "neighbours": (
        *GINE,
        "train.task=sampled",
        "sampling.sampler=neighbour",
        "sampling.fan_outs=[3,2]",
    ),
    "inductive": (*GINE, "train.inductive=true"),
    "links": (*GINE, "train.task=links", "links.train=0.3"),
    "edges": ("model.name=gcn", "train.task=edges"),
    "edges of one relation": ("train.task=edges", "edges.relations=['second']"),
    "edges twice": (*GINE, "train.task=edges", "edges.sampled=true", "sampling.budget=30"),
    "joined": (*GINE, "train.task=full+edges"),
}


def far(seed: int = 3) -> EdgeGraph:
    """Return a graph with labels of all kinds, and edge features with means far from 0."""
    graph, rng = ugly_edges("classes", relations=True), np.random.default_rng(seed)
    count = len(graph.src)
    features = np.stack([1.7e9 + rng.normal(0, 40, count), rng.exponential(500, count)], axis=1)
    assert graph.relation is not None
    # Those of the second relation have another size.
    features[graph.relation == 1] *= 3
    return replace(
        graph,
        edge_features=features,
        node_labels=rng.integers(-1, 2, graph.num_nodes).astype(np.int32),
        node_split=rng.integers(0, 4, graph.num_nodes).astype(np.uint8),
    )


def scaled(
    graph: EdgeGraph, measured: np.ndarray | None = None, by: EdgeGraph | None = None
) -> EdgeGraph:
    """Return it with features standardised relation by relation, with the statistics of `by`."""
    by = graph if by is None else by
    assert graph.edge_features is not None
    assert by.edge_features is not None
    chosen = np.ones(len(by.src), np.bool_) if measured is None else measured
    features = graph.edge_features.copy()
    for number in (0, 1):
        known = by.edge_features[chosen & (by.relation == number)]
        some = graph.relation == number
        features[some] = (features[some] - known.mean(axis=0)) / known.std(axis=0)
    return replace(graph, edge_features=features)


def assert_alike(run: Run, other: Run) -> None:
    for mine, theirs in zip(run.metrics, other.metrics, strict=True):
        for name, value in theirs.items():
            if name not in (*TIMES, *MOVED):
                assert mine[name] == pytest.approx(value, rel=1e-8), name


@pytest.mark.parametrize("door", DOORS)
def test_it_is_as_if_the_store_held_them_scaled(
    comm: MPI.Intracomm, comm_tmp_path: Path, door: str
) -> None:
    graph = far()
    trains = graph.node_split == Split.TRAIN
    measured = trains[graph.src] & trains[graph.dst] if door == "inductive" else None
    runs = []
    for name, each, more in (("raw", graph, STANDARD), ("scaled", scaled(graph, measured), "")):
        folder = comm_tmp_path / name
        if comm.rank == 0:
            folder.mkdir()
        store = each.write(comm, folder)
        words = [*DOUBLE, *DOORS[door], *([more] if more else [])]
        runs.append(train(comm, make_config(store, folder / "run", *words)))
    assert_alike(*runs)


def test_graphs_are_scaled_by_those_that_are_trained_on(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    made = make_graphs()
    graphs = made.graphs
    rng = np.random.default_rng(8)
    low, high = np.unique(np.sort(np.stack([graphs.src, graphs.dst]), axis=0), axis=1)
    features = 1e6 + rng.normal(size=(len(low), 2))
    assert graphs.split is not None
    known = features[graphs.split[low] == Split.TRAIN]
    by_hand = (features - known.mean(axis=0)) / known.std(axis=0)
    runs = []
    for name, rows, more in (("raw", features, [STANDARD]), ("scaled", by_hand, [])):
        folder = comm_tmp_path / name
        if comm.rank == 0:
            folder.mkdir()
        edges, data = {"": (low, high)}, {"": EdgeData(rows)}
        given = replace(graphs, edges=edges, edge_data=data)
        store = write_graphs(comm, folder, replace(made, graphs=given))
        words = (*DOUBLE, *GINE, "train.task=graphs", *more)
        runs.append(train(comm, make_config(store, folder / "run", *words)))
    assert_alike(*runs)


@pytest.mark.parametrize("words", [GINE, (*GINE, "train.task=edges")], ids=["nodes", "edges"])
def test_another_graph_is_scaled_as_the_first(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    first, second = far(), far(seed=9)
    found = []
    for name, graph, other, more in (
        ("raw", first, second, [STANDARD]),
        ("scaled", scaled(first), scaled(second, by=first), []),
    ):
        folder = comm_tmp_path / name
        if comm.rank == 0:
            folder.mkdir()
        store = graph.write(comm, folder)
        run = train(comm, make_config(store, folder / "run", *DOUBLE, *words, *more))
        predict = predict_with(comm, run, monkeypatch, capsys)
        for seed, each in ((1, graph), (2, other)):
            path, output = each.write(comm, folder, seed=seed), folder / f"{seed}.npy"
            predict(output, "--store", path)
            found.append(np.load(output))
    for mine, right in zip(found[:2], found[2:], strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-7)
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_other_edges_than_those_of_training_are_refused(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = far()
    store = graph.write(comm, comm_tmp_path)
    run = train(comm, make_config(store, comm_tmp_path / "run", *DOUBLE, *GINE, STANDARD))
    other = replace(graph, relation=None).write(comm, comm_tmp_path, seed=1)
    predict = predict_with(comm, run, monkeypatch, capsys)
    with pytest.raises(CollectiveInputError, match="not trained on 2 scaled features; convert"):
        predict(comm_tmp_path / "out.npy", "--store", other)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("model.name=gcn",), "nothing reads features of edges"),
        (("train.task=edges", "edges.features=false"), "nothing reads features of edges"),
        (("train.task=edges", "bare"), "its edges have none"),
    ],
)
def test_features_that_nobody_reads_are_not_scaled(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], fault: str
) -> None:
    graph = far()
    graph = replace(graph, edge_features=None) if "bare" in words else graph
    store = graph.write(comm, comm_tmp_path)
    given = [word for word in words if word != "bare"]
    with pytest.raises(CollectiveInputError, match=fault):
        train(comm, make_config(store, comm_tmp_path / "run", STANDARD, *given))


def test_a_plan_counts_them(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = far().write(comm, comm_tmp_path)
    config = make_config(store, comm_tmp_path / "run", *DOUBLE, *GINE, STANDARD)
    run = train(comm, config)
    if comm.rank == 0:
        _, _, (_, epoch, evaluation) = planned(config, comm.size, None, config.train.epochs)
        assert run.column("rows_sent") == [int(epoch.rows.sum() + evaluation.rows.sum())] * 2


@pytest.mark.quality
def test_labels_that_follow_from_what_is_far_from_0_are_learned(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph, _ = planted_edges("classes", num_nodes=120)
    rng = np.random.default_rng(2)
    amounts = 1e6 + rng.normal(0, 30, len(graph.src))
    labels = (amounts > 1e6).astype(np.int32)[:, None]
    store = replace(graph, labels=labels, edge_features=amounts[:, None]).write(comm, comm_tmp_path)
    words = ("train.task=edges", "model.hidden=8", "train.epochs=40", "train.learning_rate=0.02")
    tested = []
    for name, more in (("raw", ()), ("scaled", (STANDARD,))):
        run = train(comm, make_config(store, comm_tmp_path / name, *words, *more))
        tested.append(run.summary["seeds"][0]["test"])
    assert tested[0] < 0.7
    assert tested[1] > 0.95
