"""Modules of torch_geometric train by command and in scripts, equally on any number of ranks."""

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
    NUM_CLASSES,
    NUM_FEATURES,
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
from torch_geometric.nn import PNA, GINEConv, Linear, GraphNorm, RGCNConv, SAGEConv

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

class Typed(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_relations):
        super().__init__()
        self.first = RGCNConv(in_channels, hidden_channels, num_relations)
        self.last = RGCNConv(hidden_channels, out_channels, num_relations, num_bases=2)

    def forward(self, x, edge_index, edge_type):
        return self.last(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)

class Untyped(Typed):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__(in_channels, hidden_channels, out_channels, 1)

class Reads(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.last = SAGEConv(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.last(x, edge_index) / edge_index.size(1)

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


@pytest.mark.several_ranks
@pytest.mark.usefixtures("module_here")
def test_losses_are_those_of_one_rank(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), method="empty second")
    for name, words in MODELS.items():
        given = [f"model.name=pyg:{words.split()[0]}", *words.split()[1:]]
        given += ["train.epochs=2", "model.dropout=0.4", "train.dtype=float64", "model.hidden=6"]
        run = train(comm, make_config(store, comm_tmp_path / name, *given))
        if comm.rank == 0:
            config = make_config(store, comm_tmp_path / f"{name}-alone", *given)
            alone = train(MPI.COMM_SELF, config).column("train_loss")
            np.testing.assert_allclose(run.column("train_loss"), alone, rtol=1e-9, err_msg=name)
        comm.Barrier()


OWN_MODELS: Mapping[str, str] = {
    "GCN": "torch_geometric.nn:GCN exchange.method=joint",
    "GCN norm": "torch_geometric.nn:GCN model.options.norm=batch_norm exchange.method=push",
    "GraphSAGE": "torch_geometric.nn:GraphSAGE exchange.method=joint exchange.schedule=sequential",
    "GraphSAGE jk": "torch_geometric.nn:GraphSAGE model.options.jk=cat",
    # Another draw drops coefficients.
    "GAT": "torch_geometric.nn:GAT exchange.method=joint model.dropout=0",
    "GIN": "torch_geometric.nn:GIN model.options.norm=layer_norm exchange.active_sets=false",
}


def test_layers_on_operators_learn_as_their_own(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(directed=False), method="empty second")
    for name, line in OWN_MODELS.items():
        module, *keys = line.split()
        sizes = ["train.epochs=2", "train.dtype=float64", "model.hidden=6", "model.dropout=0.4"]
        keys = [*sizes, "model.num_layers=3", "graph.undirected=true", *keys]
        losses = []
        for prefix in ("pyg-kernels", "pyg"):
            ours = keys if prefix != "pyg" else [k for k in keys if not k.startswith("exchange")]
            run = comm_tmp_path / f"{name}-{prefix}"
            config = make_config(store, run, f"model.name={prefix}:{module}", *ours)
            trained = train(comm, config)
            losses.append(trained.column("train_loss"))
        np.testing.assert_allclose(*losses, rtol=1e-9, err_msg=name)


@pytest.mark.usefixtures("module_here")
def test_relations_are_those_of_the_store(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    whole = make_graph(directed=False).with_relations()
    store = write_store(comm, comm_tmp_path, whole)
    sections = {
        "model": {"name": "pyg-kernels:pyg_module:Typed", "hidden": 5, "dropout": 0.0},
        "graph": {"undirected": True},
        "train": {"dtype": "float64"},
        "run": {"threads": 1},
        "exchange": {"method": "joint"},
    }
    with hpcgnn.open_graph(comm, str(store), **sections) as graph:
        model = graph.make_model(seed=1)
        ids, out = graph.node_ids, model(graph.view, graph.features, None)
    module = model.get_submodule("module").__class__(NUM_FEATURES, 5, NUM_CLASSES, 3).double()
    module.load_state_dict(model.get_submodule("module").state_dict())
    ends, types = [], []
    for number, matrix in enumerate(whole.relations.values()):
        both = (matrix + matrix.T).nonzero()
        ends.append(np.stack(both[::-1]))
        types.append(np.full(len(both[0]), number))
    x = torch.from_numpy(whole.features).double()
    arrays = (np.concatenate(ends, axis=1).astype(np.int64), np.concatenate(types))
    expected = module(x, *map(torch.from_numpy, arrays))
    np.testing.assert_allclose(out.detach(), expected.detach()[ids], atol=1e-12)


@pytest.mark.usefixtures("module_here")
def test_modules_without_equals_are_refused(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    for module, message in (
        ("torch_geometric.nn:EdgeCNN", "of the layers of EdgeCNN EdgeConv runs on operators"),
        ("torch.nn:Identity", "of the layers of Identity none runs"),
        ("pyg_module:Reads", "torch.size on edges: with layers on operators"),
        ("pyg_module:Untyped", "a layer has 1 relations; the graph has 2"),
        ("torch_geometric.nn:GCN", "GCNConv scales both ends of a directed edge"),
        ("torch_geometric.nn:GraphSAGE exchange.active_sets=true", "its module may join any rows"),
    ):
        name, *keys = module.split()
        words = [f"model.name=pyg-kernels:{name}", *keys]
        with pytest.raises(InputError, match=message):
            train(comm, make_config(store, comm_tmp_path / "refused", *words))


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
    with pytest.raises(InputError, match="SGConv is a user's module, whose last layer"):
        predict(comm_tmp_path / "rows.h5", "--trust-code", "--what", "embeddings")


def test_script_learns_what_one_rank_learns(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), method="empty second")
    script = load_example("pyg_script").main
    sections = {"train": {"dtype": "float64"}, "run": {"threads": 1}}
    torch.set_default_dtype(torch.float64)
    try:
        losses = script(str(store), comm, epochs=3, **sections)
        if comm.rank == 0:
            alone = script(str(store), MPI.COMM_SELF, epochs=3, **sections)
            np.testing.assert_allclose(losses, alone, rtol=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)
    comm.Barrier()


@pytest.mark.usefixtures("module_here")
def test_what_does_not_fit_is_said(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    shape = ModelShape(num_features=4, num_classes=3, hidden=5, num_layers=2)
    make = {"directed": True, "seed": 1, "dtype": torch.float64}
    with pytest.raises(InputError, match="Wrong needs 'number', which no key sets"):
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
        with pytest.raises(InputError, match="can only be read inside modules"):
            data.edge_index[0]
        with pytest.raises(InputError, match="no edges of a distributed graph are among"):
            hpcgnn.distribute(torch.nn.Linear(7, 2))(data.x)
