"""Inductive training: edges between training nodes only, and evaluation on all of them."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp

from hpcgnn import open_graph
from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.inputs import Scales, Scaling
from hpcgnn.storage import Split
from hpcgnn.train.full.predictions import infer, order_by_id
from hpcgnn.train.run.saved_model import load_saved_graph, open_saved_model
from tests.support.training import Graph, make_config, make_graph, train, write_store

WORDS = ("train.dtype=float64", "train.epochs=3", "train.select=last", "model.dropout=0.2")
SETTINGS = {
    "gcn": (),
    "sage, all nodes": ("exchange.active_sets=false", "graph.normalize_features=standard"),
    "sage, norm": ("model.norm=batch", "exchange.active_sets=true", "exchange.schedule=sequential"),
    "rgcn": (),
    "gat": ("graph.undirected=true",),
}


def seen(graph: Graph) -> Graph:
    """The graph without the edges that training must not see."""
    trains = graph.split == Split.TRAIN

    def within(matrix: sp.csr_matrix) -> sp.csr_matrix:
        coo = matrix.tocoo()
        kept = (trains[coo.row] & trains[coo.col]) | (coo.row == coo.col)
        entries = coo.data[kept], (coo.row[kept], coo.col[kept])
        return sp.csr_matrix(entries, shape=matrix.shape)

    relations = {name: within(matrix) for name, matrix in graph.relations.items()}
    return replace(graph, adjacency=within(graph.adjacency), relations=relations)


STATISTICS = {
    "sage": ("model.norm=batch",),
    "gcn": ("model.norm=graph", "exchange.method=joint"),
    "pna": (),
}


@pytest.mark.parametrize("model", STATISTICS)
def test_statistics_are_of_the_training_nodes(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str
) -> None:
    graph = make_graph(weighted=False)
    rows = np.flatnonzero(graph.split == Split.TRAIN)
    assert graph.features is not None
    alone = replace(
        graph,
        adjacency=graph.adjacency[rows][:, rows],
        features=graph.features[rows],
        labels=graph.labels[rows],
        split=graph.split[rows],
        ids=np.arange(len(rows)),
    )
    losses = []
    words = (*WORDS, "model.dropout=0", f"model.name={model}", *STATISTICS[model])
    for name, each in (("whole", graph), ("alone", alone)):
        folder = comm_tmp_path / name
        folder.mkdir(exist_ok=True)
        store = write_store(comm, folder, each, method="block")
        inductive = f"train.inductive={name == 'whole'}".lower()
        config = make_config(store, comm_tmp_path / f"run {name}", *words, inductive)
        losses.append(train(comm, config).column("train_loss"))
    np.testing.assert_allclose(*losses, rtol=1e-10)
    assert losses[0][0] != losses[0][-1]


@pytest.mark.parametrize("case", SETTINGS)
def test_training_is_that_of_the_seen_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, case: str
) -> None:
    model = case.partition(",")[0]
    words = (*WORDS, f"model.name={model}", *SETTINGS[case])
    graph = make_graph(weighted=model != "gat")
    if model == "rgcn":
        graph = graph.with_relations()
    if "standard" in " ".join(words):
        # Numbers of nodes that training must not see.
        features = graph.features.copy()
        features[graph.split != Split.TRAIN] *= 50
        graph = replace(graph, features=features)
    runs, stores = [], []
    for name, each in (("whole", graph), ("seen", seen(graph))):
        folder = comm_tmp_path / name
        folder.mkdir(exist_ok=True)
        stores.append(write_store(comm, folder, each, method="block"))
    for name, store in zip(("whole", "seen"), stores, strict=True):
        inductive = f"train.inductive={name == 'whole' or 'standard' in ' '.join(words)}".lower()
        config = make_config(store, comm_tmp_path / f"run {name}", *words, inductive)
        runs.append(train(comm, config))
    whole, alone = runs
    np.testing.assert_allclose(whole.column("train_loss"), alone.column("train_loss"), rtol=1e-10)
    assert whole.metrics[-1]["test_loss"] != pytest.approx(alone.metrics[-1]["test_loss"], rel=1e-6)
    with ProcessGrid(comm) as grid:
        saved = open_saved_model(alone.path, None, str(stores[0]))
        there = load_saved_graph(grid, saved)
        model = saved.model(grid, partial(there.make_model, saved.config))
        rows = order_by_id(grid, infer(there, model, "probabilities"))
        values = np.concatenate(comm.allgather(rows.values))
    np.testing.assert_allclose(whole.predictions()["probabilities"], values, rtol=1e-5, atol=1e-7)


def test_types_without_training_nodes_are_told(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=False).with_types())
    told = []
    for inductive in (True, False):
        with open_graph(comm, str(store), train={"inductive": inductive}) as graph:
            remarks = graph.tasked.objective.about.remarks()
            told.append([each for each in remarks if "inductive" in each])
    (remark,) = told[0]
    # Another type, without nodes, is left out.
    assert "no labelled node of bare is" in remark
    assert told[1] == []


def test_types_without_training_nodes_are_scaled_by_all_nodes(comm: MPI.Intracomm) -> None:
    features = 1e6 + np.random.default_rng(1).normal(size=(30, 2))
    with ProcessGrid(comm) as grid:
        own = np.array_split(features, grid.num_blocks)[grid.block].copy()
        scaling = Scaling(grid, "standard", Scales(), "float64")
        found = scaling("bare", own, lambda: np.zeros(len(own), np.bool_))
        found = np.concatenate(grid.layer.allgather(found))
    expected = (features - features.mean(0)) / features.std(0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
