"""Modules of torch_geometric train by the command and in scripts, equal at any number of ranks."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

import hpcgnn
from hpcgnn.comm import agree
from hpcgnn.errors import InputError
from hpcgnn.nn import ModelShape, find_model, make_model
from tests.support.examples import load_example
from tests.support.training import (
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    predict_with,
    train,
    write_store,
)

MODULE = """
import torch
from torch_geometric.nn import PNA, GINEConv, Linear, GraphNorm

class Degrees(PNA):
    def __init__(self, in_channels, hidden_channels, num_layers, out_channels, dropout):
        super().__init__(
            in_channels, hidden_channels, num_layers, out_channels, dropout,
            norm="graph_norm", aggregators=["mean", "std", "max"], scalers=["identity", "linear"],
            deg=torch.tensor([1, 4, 9, 2]), jk="cat",
        )

class Wrong(torch.nn.Module):
    def __init__(self, in_channels, number):
        super().__init__()

class Narrow(torch.nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.map = Linear(in_channels, 1)

    def forward(self, x, edge_index):
        return self.map(x)
"""

MODELS: Mapping[str, str] = {
    "GCN": "torch_geometric.nn:GCN model.options.norm=batch_norm",
    "GraphSAGE": "torch_geometric.nn:GraphSAGE model.options.jk=max",
    "GAT": "torch_geometric.nn:GAT model.options.act=elu model.options.norm=pair_norm",
    "GIN": "torch_geometric.nn:GIN model.options.norm=layer_norm",
    "EdgeCNN": "torch_geometric.nn:EdgeCNN model.options.norm=instance_norm",
    "PNA": "pyg_module:Degrees",
}


@pytest.fixture
def module_here(comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with agree(comm):
        if comm.rank == 0:
            (comm_tmp_path / "pyg_module.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(comm_tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "pyg_module", raising=False)


@pytest.mark.usefixtures("module_here")
def test_losses_are_those_of_one_rank(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), method="empty second")
    for name, words in MODELS.items():
        given = [f"model.name=pyg:{words.split()[0]}", *words.split()[1:]]
        given += ["train.epochs=3", "model.dropout=0.4", "train.dtype=float64", "model.hidden=6"]
        losses = []
        for ranks in (comm, MPI.COMM_SELF):
            run = comm_tmp_path / f"{name}-{ranks.size}-{comm.rank * (ranks is not comm)}"
            losses.append(train(ranks, make_config(store, run, *given)).column("train_loss"))
        np.testing.assert_allclose(*losses, rtol=1e-9, err_msg=name)


def test_it_resumes_and_predicts(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = ("model.name=pyg:torch_geometric.nn:SGConv", "train.epochs=4")
    words = (*words, "run.checkpoint_every=1", "model.options.K=2")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "stopped", *words)
    train(comm, config, StopAfter(2))
    assert_same(train(comm, config), whole)
    predict = predict_with(comm, whole, monkeypatch, capsys)
    answers = comm_tmp_path / "answers.csv"
    predict(answers, "--trust-code")
    if comm.rank == 0:
        rows = np.loadtxt(answers, delimiter=",", skiprows=1, usecols=range(1, 5))
        np.testing.assert_allclose(rows, whole.predictions()["probabilities"], rtol=1e-6)
    with pytest.raises(InputError, match="SGConv is a module of one's own, whose last layer"):
        predict(comm_tmp_path / "rows.h5", "--trust-code", "--what", "embeddings")


def test_script_learns_what_one_rank_learns(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), method="empty second")
    script = load_example("pyg_script").main
    sections = {"train": {"dtype": "float64"}, "run": {"threads": 1}}
    torch.set_default_dtype(torch.float64)
    try:
        losses = [script(str(store), each, epochs=3, **sections) for each in (comm, MPI.COMM_SELF)]
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(*losses, rtol=1e-9)


@pytest.mark.usefixtures("module_here")
def test_what_does_not_fit_is_said(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    shape = ModelShape(num_features=4, num_classes=3, hidden=5, num_layers=2)
    make = {"directed": True, "seed": 1, "dtype": torch.float64}
    with pytest.raises(InputError, match="Wrong wants 'number', which no key gives"):
        find_model("pyg:pyg_module:Wrong")
    own = find_model("pyg:torch_geometric.nn:PNA").own_options
    with pytest.raises(InputError, match="missing 3 required positional arguments"):
        make_model("pyg:torch_geometric.nn:PNA", replace(shape, own=own), **make)
    store = write_store(comm, comm_tmp_path, make_graph())
    name = "model.name=pyg:pyg_module:Narrow"
    with pytest.raises(InputError, match=r"Narrow gives \(\d+, 1\), not \(nodes, classes\)"):
        train(comm, make_config(store, comm_tmp_path / "narrow", name))
    closed = pytest.raises(InputError, match='open the graph with aggregations=\\["messages"\\]')
    with hpcgnn.open_graph(comm, str(store), model={"name": "gcn"}) as graph, closed:
        graph.data  # noqa: B018
    with hpcgnn.open_graph(comm, str(store), aggregations=["messages"]) as graph:
        data = graph.data
        assert data.edge_attr is None
        with pytest.raises(InputError, match="edges of a distributed graph are read by modules"):
            data.edge_index[0]
        with pytest.raises(InputError, match="no edges of a distributed graph are among"):
            hpcgnn.distribute(torch.nn.Linear(7, 2))(data.x)
