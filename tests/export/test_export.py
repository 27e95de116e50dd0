"""Exported modules compute what the model computes: in torch, in PyG and DGL where they are."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from safetensors.torch import load_file, save_file

from hpcgnn.commands.command import find_command
from hpcgnn.errors import InputError
from hpcgnn.export import command
from hpcgnn.export.blueprint import Blueprint
from tests.support import training
from tests.train.test_edge_features import write as write_edges

COMMAND = find_command("export")

DIRECTED = training.make_graph(directed=True)
UNDIRECTED = training.make_graph(directed=False)
WEIGHTED = training.make_graph(directed=True, weighted=True)
BOTH_WEIGHTED = training.make_graph(directed=False, weighted=True)
RELATIONS = training.make_graph().with_relations()
TYPED = training.make_graph().with_relations().with_types()
SEVERAL = training.make_graph(multi_label=True)
BARE = replace(DIRECTED, features=None)

CASES = {
    "gcn": (DIRECTED, "name=gcn", "norm=batch", "residual=true", "num_layers=3"),
    "gcn weighted": (WEIGHTED, "name=gcn", "jumping=concat", "activation=elu"),
    "sage": (UNDIRECTED, "name=sage", "norm=graph", "jumping=max", "num_layers=3"),
    "sage directed": (DIRECTED, "name=sage", "norm=layer", "activation=gelu"),
    "sage weighted": (WEIGHTED, "name=sage", "residual=true", "num_layers=3"),
    "sage several labels": (SEVERAL, "name=sage", "num_layers=1"),
    "gat": (DIRECTED, "name=gat", "hidden=6", "heads=3", "num_layers=3"),
    "gatv2": (DIRECTED, "name=gatv2", "hidden=6", "heads=2", "jumping=concat"),
    "rgcn": (RELATIONS, "name=rgcn", "norm=batch"),
    "rgcn bases": (RELATIONS, "name=rgcn", "num_bases=2", "residual=true"),
    "mixhop": (BOTH_WEIGHTED, "name=mixhop", "hidden=6", "residual=true", "num_layers=3"),
    "mixhop jumping": (UNDIRECTED, "name=mixhop", "hidden=6", "jumping=max"),
    "gin": (UNDIRECTED, "name=gin", "norm=batch"),
    "appnp": (WEIGHTED, "name=appnp", "hops=3", "teleport=0.2", "num_layers=3"),
    "gcnii": (WEIGHTED, "name=gcnii", "num_layers=4", "norm=graph", "options.theta=0.7"),
    "sign": (DIRECTED, "name=sign", "hops=2", "norm=batch", "num_layers=3"),
    "types": (TYPED, "name=rgcn", "input_width=5"),
    "vectors": (BARE, "name=sage", "embeddings=true"),
    "vectors of a type": (TYPED, "name=gcn", "embeddings=true"),
}
WITHOUT_DGL = {
    "transformer": (DIRECTED, "name=transformer", "hidden=6", "heads=3", "num_layers=3"),
    "transformer gated": (
        RELATIONS,
        "name=transformer",
        "hidden=6",
        "heads=2",
        "options.gate=true",
    ),
}
TORCH_ONLY = {
    "mixhop directed": (WEIGHTED, "name=mixhop", "hidden=5"),
    "pna without features": (RELATIONS, "name=pna"),
    "gin directed": (WEIGHTED, "name=gin", "residual=true", "num_layers=3"),
    "rgat": (RELATIONS, "name=rgat", "heads=2", "hidden=6", "num_layers=2"),
    "rgcn weighted": (replace(RELATIONS, weighted=True), "name=rgcn"),
}


def trained(folder: Path, graph: training.Graph, *words: str) -> training.Run:
    """Return a run of two epochs on one rank."""
    store = training.write_store(MPI.COMM_SELF, folder, graph)
    quiet = ("train.epochs=2", "train.learning_rate=0.1", "trace.enabled=false")
    config = training.make_config(store, folder / "run", *quiet, *words)
    return training.train(MPI.COMM_SELF, config)


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return `export(run, *options)`, which runs the command and returns its JSON."""

    def call(run: Path, *options: object) -> dict[str, Any]:
        words = ["export", run, "--json", *options]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        capsys.readouterr()
        assert COMMAND.call() == 0
        return json.loads(capsys.readouterr().out)

    return call


def module_of(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def edges_of(matrix: sp.csr_matrix) -> torch.Tensor:
    entries = matrix.tocoo()
    return torch.from_numpy(np.stack([entries.col, entries.row]).astype(np.int64))


@pytest.mark.parametrize("case", [*CASES, *WITHOUT_DGL, *TORCH_ONLY])
def test_torch(tmp_path: Path, export: Any, case: str) -> None:
    graph, *words = {**CASES, **WITHOUT_DGL, **TORCH_ONLY}[case]
    run = trained(tmp_path, graph, *(f"model.{word}" for word in words))
    found = export(run.path, "--to", "torch", "-o", tmp_path / "out")
    assert found["nodes"] == training.NUM_NODES
    assert found["difference"] < 1e-9


@pytest.mark.parametrize("case", [*CASES, *WITHOUT_DGL])
@pytest.mark.parametrize("library", ["torch_geometric", "dgl"])
def test_libraries(tmp_path: Path, export: Any, case: str, library: str) -> None:
    if library == "dgl":
        pytest.importorskip("dgl")
    graph, *words = {**CASES, **WITHOUT_DGL}[case]
    if library == "dgl" and case in WITHOUT_DGL:
        pytest.skip("refused: not written for DGL")
    if graph.weighted and case.startswith(("mixhop", "rgcn")):
        pytest.skip("refused: see test_what_has_no_counterpart")
    run = trained(tmp_path, graph, *(f"model.{word}" for word in words))
    to = {"torch_geometric": "pyg"}.get(library, library)
    if library == "dgl" and case.startswith("mixhop"):
        pytest.skip("DGL has no such layer")
    assert export(run.path, "--to", to)["difference"] < 1e-9


@pytest.mark.parametrize("library", ["torch", "pyg"])
@pytest.mark.parametrize(
    "words",
    [
        ("gine", "norm=batch"),
        ("nnconv", "options.inner=3"),
        ("pna", "norm=layer"),
        ("gatedgcn", "activation=gelu"),
        ("meshgraphnet", "activation=elu"),
    ],
    ids=lambda words: words[0],
)
def test_features_of_edges(
    tmp_path: Path, export: Any, library: str, words: tuple[str, ...]
) -> None:
    store = write_edges(MPI.COMM_SELF, tmp_path)
    given = (f"model.name={words[0]}", f"model.{words[1]}", "train.epochs=2")
    config = training.make_config(store, tmp_path / "run", *given)
    run = training.train(MPI.COMM_SELF, config)
    refused = {
        "pna": "degrees of the graph that it was trained on",
        "gatedgcn": "no states of edges",
        "meshgraphnet": "no such layer",
    }
    if words[0] in refused and library == "pyg":
        with pytest.raises(InputError, match=refused[words[0]]):
            export(run.path, "--to", library)
        return
    assert export(run.path, "--to", library)["difference"] < 1e-9
    with pytest.raises(InputError, match="not written for DGL; export --to torch"):
        export(run.path, "--to", "dgl", "--no-check")


@pytest.mark.parametrize("scaling", ["row", "l2", "standard"])
def test_a_stranger_gets_the_predictions(tmp_path: Path, export: Any, scaling: str) -> None:
    words = (f"graph.normalize_features={scaling}", "graph.undirected=true", "train.seeds=[4, 2]")
    run = trained(tmp_path, DIRECTED, "model.name=gcn", *words)
    export(run.path, "--to", "torch", "-o", tmp_path / "out")
    module = module_of(tmp_path / "out")
    assert [f"kind{number}" for number in range(training.NUM_CLASSES)] == module.CLASSES
    logits = module.load()(torch.from_numpy(DIRECTED.features), edges_of(DIRECTED.adjacency))
    shares = logits.softmax(1).detach().numpy()
    np.testing.assert_allclose(shares, run.predictions()["probabilities"], atol=2e-6)


def test_numbers_and_labels_as_inputs(tmp_path: Path, export: Any) -> None:
    values = np.random.default_rng(4).normal(5, 3, (training.NUM_NODES, 2))
    np.save(tmp_path / "targets.npy", values)
    words = (f"graph.targets={tmp_path / 'targets.npy'}", "model.name=appnp")
    run = trained(tmp_path, DIRECTED, *words)
    assert export(run.path, "--to", "torch")["difference"] < 1e-9
    words = ("train.label_augmentation=0.5", "graph.normalize_features=standard")
    (tmp_path / "labels").mkdir()
    run = trained(tmp_path / "labels", DIRECTED, *words)
    assert export(run.path, "--to", "torch")["difference"] < 1e-9


def test_the_check_sees_a_wrong_weight(
    tmp_path: Path, export: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, DIRECTED)
    right = command.write_source

    def wrong(model: Blueprint, library: str) -> tuple[str, dict[str, torch.Tensor]]:
        text, tensors = right(model, library)
        tensors["layers.1.own.bias"][0] += 1e-3
        return text, tensors

    monkeypatch.setattr(command, "write_source", wrong)
    with pytest.raises(RuntimeError, match=r"torch: logits differ by 0.001"):
        export(run.path, "--to", "torch", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "nodes" not in export(run.path, "--to", "torch", "--no-check")


@pytest.mark.parametrize(
    ("library", "graph", "words", "message"),
    [
        ("dgl", UNDIRECTED, ("name=mixhop",), "DGL has no such layer; export --to torch or pyg"),
        ("pyg", DIRECTED, ("name=mixhop",), "divides by in-degrees on both sides"),
        ("pyg", UNDIRECTED, ("name=mixhop",), "the 3 powers of MixHopConv are of one width"),
        ("pyg", DIRECTED, ("name=gin",), "GINConv has no weights for a second direction"),
        ("dgl", DIRECTED, ("name=gin",), "GINConv has no weights for a second direction"),
        ("pyg", BOTH_WEIGHTED, ("name=gin",), "GINConv takes none; export --to torch"),
        ("pyg", replace(RELATIONS, weighted=True), ("name=rgcn",), "RGCNConv takes none"),
        ("pyg", RELATIONS, ("name=hgt",), "not written in other libraries"),
        ("torch", RELATIONS, ("name=hgt",), "not written in other libraries"),
    ],
)
def test_what_has_no_counterpart(
    tmp_path: Path,
    export: Any,
    library: str,
    graph: training.Graph,
    words: tuple[str, ...],
    message: str,
) -> None:
    run = trained(tmp_path, graph, *(f"model.{word}" for word in words))
    with pytest.raises(InputError, match=message):
        export(run.path, "--to", library)
    assert not list(run.path.glob("export-*"))


def test_features_of_the_graph_are_refused(tmp_path: Path, export: Any) -> None:
    run = trained(tmp_path, DIRECTED, "graph.structure=degree")
    with pytest.raises(InputError, match=r"graph.structure = 'degree': .* use hpcgnn predict"):
        export(run.path, "--to", "torch")


def test_names_of_a_store_are_no_code(tmp_path: Path, export: Any) -> None:
    run = trained(tmp_path, DIRECTED)
    state = json.loads((next(run.path.glob("checkpoints/*")) / "state.json").read_text())
    assert state["graph"]["class_names"][0] == "kind0"
    blueprint: list[Blueprint] = []
    right = command.write_source
    evil = 'a"""\nraise SystemExit(9)\n"""'

    def named(model: Blueprint, library: str) -> tuple[str, dict[str, torch.Tensor]]:
        names = (evil, *model.facts.class_names[1:])
        model = replace(model, facts=replace(model.facts, name=evil, class_names=names))
        blueprint.append(model)
        return right(model, library)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "write_source", named)
        export(run.path, "--to", "torch", "-o", tmp_path / "out")
    module = module_of(tmp_path / "out")
    assert (module.TRAINED_ON, module.CLASSES[0]) == (evil, evil)


def test_the_model_file_of_a_run(
    tmp_path: Path, export: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = trained(tmp_path, DIRECTED, "train.seeds=[4, 2]", "graph.normalize_features=standard")
    file, seed = run.path / "model.safetensors", export(run.path, "--to", "torch")["seed"]
    kept = [name for name in run.tensors() if name.startswith(f"seed{seed}-") and "/best/" in name]
    tensors = load_file(file)
    for name in kept:
        expected = torch.from_numpy(run.tensors()[name])
        assert torch.equal(tensors[name.partition("/best/")[2]], expected), name
    assert set(tensors) - {name.partition("/best/")[2] for name in kept} == {
        "features/mean",
        "features/deviation",
    }
    # Alone, it is all that predicting needs.
    alone = tmp_path / "alone.safetensors"
    file.rename(alone)
    predict = training.predict_with(MPI.COMM_SELF, training.Run(alone, 0), monkeypatch, capsys)
    found = predict(tmp_path / "out.npy")
    assert found["seed"] == seed
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), run.predictions()["probabilities"])
    with pytest.raises(InputError, match=r"is of seed \d; leave --seed out"):
        export(alone, "--to", "torch", "--seed", "77")
    (tmp_path / "config.toml").touch()
    save_file({name: value + 1 for name, value in tensors.items()}, alone)
    with pytest.raises(InputError, match="is damaged"):
        export(alone, "--to", "torch")
    with pytest.raises(InputError, match=r"config.toml: give a run directory, or its model.safe"):
        export(tmp_path / "config.toml", "--to", "torch")
