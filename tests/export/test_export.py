"""Exported modules compute the same as the model: in torch, and in PyG and DGL if installed."""

import importlib.util
import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from safetensors.torch import load_file, save_file

import hpcgnn
from hpcgnn.commands.command import find_command
from hpcgnn.convert import ConvertOptions, convert
from hpcgnn.errors import InputError
from hpcgnn.export import command
from hpcgnn.export.blueprint import Blueprint
from hpcgnn.storage import GraphStore
from tests.support import training
from tests.support.labelled_edges import ugly_edges
from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.series import random_fields, with_flows, with_holes, write_series
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
# Layers that a library lacks are written with torch.
CASES |= {
    "transformer": (DIRECTED, "name=transformer", "hidden=6", "heads=3", "num_layers=3"),
    "transformer gated": (
        RELATIONS,
        "name=transformer",
        "hidden=6",
        "heads=2",
        "options.gate=true",
    ),
    "mixhop directed": (WEIGHTED, "name=mixhop", "hidden=5"),
    "pna without features": (RELATIONS, "name=pna"),
    "gin directed": (WEIGHTED, "name=gin", "residual=true", "num_layers=3"),
    "rgat": (RELATIONS, "name=rgat", "heads=2", "hidden=6", "num_layers=2"),
    "rgcn weighted": (replace(RELATIONS, weighted=True), "name=rgcn"),
    "hgt": (RELATIONS, "name=hgt", "heads=2", "hidden=6", "norm=batch"),
    "hgt types": (TYPED, "name=hgt", "heads=2", "hidden=6", "activation=gelu"),
}
WITH_TORCH = {
    "pyg": {
        "mixhop directed",
        "pna without features",
        "gin directed",
        "rgat",
        "rgcn weighted",
        "hgt",
        "hgt types",
    },
    "dgl": {
        "transformer",
        "transformer gated",
        "mixhop",
        "mixhop jumping",
        "mixhop directed",
        "pna without features",
        "gin directed",
        "rgat",
        "hgt",
        "hgt types",
    },
}
LIBRARIES = ["torch", "pyg", *(["dgl"] if importlib.util.find_spec("dgl") else [])]
"""The libraries that are installed; for the others modules are only written."""


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


def check(path: Path, export: Any, with_torch: dict[str, set[str]], case: str) -> None:
    """Export a run for all libraries, and require that modules compute the same as it does."""
    for library in ("torch", "pyg", "dgl"):
        found = export(path, "--to", library)
        own = case not in with_torch.get(library, ())
        assert found["layers"] == (library if own else "torch")
        assert found["difference"] < 1e-9 if library in LIBRARIES else "nodes" not in found


def edges_with_features(path: Path) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the edges of a store by original ids, and their features, if any."""
    with GraphStore.open(path) as store:
        count, ids = store.num_nodes, store.read_original_id(0, store.num_nodes)
        block, features = store.read_adjacency(0, count), store.read_edge_data(0, count).features
    rows = np.repeat(np.arange(count), np.diff(block.indptr))
    features = None if features is None else torch.from_numpy(features)
    return torch.from_numpy(ids[np.stack([block.indices, rows])]), features


@pytest.mark.parametrize("case", CASES)
def test_modules(tmp_path: Path, export: Any, case: str) -> None:
    graph, *words = CASES[case]
    run = trained(tmp_path, graph, *(f"model.{word}" for word in words))
    check(run.path, export, WITH_TORCH, case)


@pytest.mark.parametrize(
    "words",
    [
        ("gine", "norm=batch"),
        ("nnconv", "options.inner=3"),
        ("pna", "norm=layer"),
        ("gatedgcn", "activation=gelu"),
        ("meshgraphnet", "activation=elu"),
        ("sage", "edge_features=true", "norm=graph"),
        ("gat", "edge_features=true", "heads=2", "hidden=6"),
        ("gatv2", "edge_features=true", "heads=3", "hidden=6"),
        ("transformer", "edge_features=true", "heads=2", "hidden=6"),
    ],
    ids=lambda words: words[0],
)
def test_features_of_edges(tmp_path: Path, export: Any, words: tuple[str, ...]) -> None:
    store = write_edges(MPI.COMM_SELF, tmp_path)
    given = (f"model.name={words[0]}", *(f"model.{word}" for word in words[1:]), "train.epochs=2")
    config = training.make_config(store, tmp_path / "run", *given)
    run = training.train(MPI.COMM_SELF, config)
    with_torch = {
        "pyg": {"pna", "gatedgcn", "meshgraphnet"},
        "dgl": {"pna", "gatedgcn", "meshgraphnet", "gat", "gatv2", "transformer"},
    }
    check(run.path, export, with_torch, words[0])


@pytest.mark.parametrize("undirected", ["", "convert", "train"])
@pytest.mark.parametrize("name", ["sage", "rgcn", "gin"])
def test_equal_edges_have_the_weight_of_the_store(
    tmp_path: Path, export: Any, name: str, undirected: str
) -> None:
    draw = np.random.default_rng(1)
    nodes, edges = 30, 400
    arrays = {
        "edge_index": draw.integers(0, nodes, (2, edges)),
        "weight": draw.uniform(-2 if name == "gin" else 0.1, 2, edges),
        "x": draw.normal(size=(nodes, 3)).astype(np.float32),
        "y": draw.integers(0, 2, nodes),
        "split": 1 + np.arange(nodes) % 3,
    }
    # Edges of weight 0 are no edges.
    arrays["weight"][::7] = 0
    if name == "rgcn":
        arrays |= {"etype": draw.integers(0, 2, edges), "etypes": np.array(["a", "b"])}
    np.savez(tmp_path / "g.npz", **arrays)
    options = ConvertOptions(undirected=undirected == "convert")
    convert(tmp_path / "g.npz", tmp_path / "g.h5", format_name="npz", options=options)
    given = (f"model.name={name}", "train.epochs=2", f"graph.undirected={undirected == 'train'}")
    config = training.make_config(tmp_path / "g.h5", tmp_path / "run", *map(str.lower, given))
    run = training.train(MPI.COMM_SELF, config)
    for library in ("torch", "pyg", "dgl"):
        found = export(run.path, "--to", library)
        assert found["difference"] < 1e-9 if library in LIBRARIES else "nodes" not in found
    names = ("x", "edge_index", "etype", "weight")
    words = [torch.from_numpy(arrays[each]) for each in names if each in arrays]
    logits = module_of(run.path / "export-torch").load()(*words[:-1], words[-1].float())
    shares = logits.softmax(1).detach().numpy()
    np.testing.assert_allclose(shares, run.predictions()["probabilities"], atol=1e-5)


@pytest.mark.parametrize("readout", ["mean", "sum", "max", "attention"])
def test_whole_graphs(tmp_path: Path, export: Any, readout: str) -> None:
    store = write_graphs(MPI.COMM_SELF, tmp_path, make_graphs())
    words = ("train.task=graphs", f"graphs.readout={readout}", "train.epochs=2", "model.name=gcn")
    run = training.train(
        MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words, "model.norm=graph")
    )
    check(run.path, export, {}, "")
    module, made = module_of(run.path / "export-pyg"), make_graphs().graphs
    (sources, targets), graph = made.edges[""], made.graph
    logits = module.load()(
        torch.from_numpy(made.features),
        torch.from_numpy(np.stack([sources, targets])),
        torch.from_numpy(graph),
    )
    shares = logits.softmax(1).detach().numpy()
    np.testing.assert_allclose(shares, run.predictions()["probabilities"], atol=1e-5)


@pytest.mark.parametrize("norm", ["none", "graph"])
def test_whole_graphs_scaled_by_degrees(tmp_path: Path, export: Any, norm: str) -> None:
    made = make_graphs()
    # The first graph has no edges, so that its mean degree is 0.
    (sources, targets), graph = made.graphs.edges[""], made.graphs.graph
    kept = graph[sources] > 0
    edges = {"": (sources[kept], targets[kept])}
    store = write_graphs(
        MPI.COMM_SELF, tmp_path, replace(made, graphs=replace(made.graphs, edges=edges))
    )
    words = ("train.task=graphs", "model.name=pna", f"model.norm={norm}", "train.epochs=2")
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words))
    check(run.path, export, {"pyg": {""}, "dgl": {""}}, "")


@pytest.mark.parametrize("scorer", ["dot", "distmult", "complex", "mlp"])
def test_links(
    tmp_path: Path, export: Any, scorer: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ("train.task=links", f"links.scorer={scorer}", "links.width=6", "model.name=rgcn")
    ends = ["target", "both"][scorer == "complex"]
    run = trained(tmp_path, RELATIONS, *words, f"links.ends={ends}")
    check(run.path, export, {}, "")
    module = module_of(run.path / "export-torch")
    names = list(RELATIONS.relations)
    backward = [f"{name} reversed" for name in names if ends == "both"]
    assert [*names, *backward] == module.PREDICTED
    pairs = np.array([[0, 5, 9, 60], [3, 3, 40, 2]])
    kinds = torch.tensor([0, 1, len(module.PREDICTED) - 1, 0])
    table = tmp_path / "pairs.csv"
    lines = [f"{s},{t},{module.PREDICTED[k]}" for s, t, k in zip(*pairs, kinds, strict=True)]
    table.write_text("\n".join(["source,target,relation", *lines]))
    predict = training.predict_with(MPI.COMM_SELF, run, monkeypatch, capsys)
    # No edge is left out of a given store.
    store = tomllib.loads((run.path / "config.toml").read_text())["graph"]["store"]
    predict(tmp_path / "out.h5", "--pairs", table, "--store", store)
    edges = [edges_of(matrix) for matrix in RELATIONS.relations.values()]
    types = torch.cat([torch.full(each.shape[1:], n) for n, each in enumerate(edges)])
    x, joined = torch.from_numpy(RELATIONS.features), torch.cat(edges, 1)
    scores = module.load()(x, joined, types, torch.from_numpy(pairs), kinds)
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_allclose(scores.detach(), file["score"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chosen", [slice(None, None, -1), slice(1, 2)])
def test_links_of_chosen_relations(tmp_path: Path, export: Any, chosen: slice) -> None:
    names = list(RELATIONS.relations)[chosen]
    words = ("train.task=links", "links.scorer=distmult", f"graph.relations={names}")
    run = trained(tmp_path, RELATIONS, *words)
    check(run.path, export, {}, "")
    assert names == module_of(run.path / "export-torch").PREDICTED


@pytest.mark.parametrize("kind", ["classes", "several", "numbers"])
def test_labels_of_edges(tmp_path: Path, export: Any, kind: str) -> None:
    graph = ugly_edges(kind, undirected=kind != "classes", relations=kind == "several")
    store = graph.write(MPI.COMM_SELF, tmp_path)
    words = ("train.task=edges", "train.epochs=2", "edges.width=5", "model.name=gcn")
    more = f"edges.features={str(kind != 'numbers').lower()}"
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words, more))
    check(run.path, export, {}, "")


# Scales belong to the inputs, whatever the layers are.
@pytest.mark.parametrize(
    ("name", "scaling"),
    [
        ("gine", "row"),
        ("gine", "standard"),
        ("sage", "standard"),
        ("gat", "standard"),
        ("gcn", "row"),
        ("gcn", "standard"),
    ],
)
def test_features_of_edges_are_scaled(tmp_path: Path, export: Any, name: str, scaling: str) -> None:
    graph = ugly_edges("classes", undirected=True)
    assert graph.edge_features is not None
    far = replace(graph, edge_features=1e4 + graph.edge_features.astype(np.float64))
    store = far.write(MPI.COMM_SELF, tmp_path)
    words = ["train.task=edges", "train.epochs=2", f"model.name={name}"]
    words += [f"graph.normalize_edge_features={scaling}"]
    words += ["model.edge_features=true"] if name in ("sage", "gat") else []
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words))
    for library in LIBRARIES:
        assert export(run.path, "--to", library)["difference"] < 1e-9


def test_scaled_features_of_several_relations_are_not_written(tmp_path: Path, export: Any) -> None:
    store = ugly_edges("classes", relations=True).write(MPI.COMM_SELF, tmp_path)
    words = ("train.task=edges", "train.epochs=1", "graph.normalize_edge_features=standard")
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words))
    with pytest.raises(InputError, match="of edges of 2 relations, each scaled to deviation 1"):
        export(run.path, "--to", "torch")


def test_another_graph_in_place_of_the_store_is_refused(tmp_path: Path, export: Any) -> None:
    # Its weights of edges would become an argument of the module.
    run = trained(tmp_path, DIRECTED, "model.name=gcn")
    store = training.write_store(MPI.COMM_SELF, tmp_path, WEIGHTED)
    with pytest.raises(InputError, match=r"was trained on another store than .* give --store"):
        export(run.path, "--to", "torch")
    export(run.path, "--to", "torch", "--store", store)


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
    "words",
    [
        ("fields.targets=['u', 'p']", "fields.history=2", "graph.normalize_features=l2"),
        (
            "fields.targets=u",
            "fields.inputs=['p', 'u']",
            "fields.predict=next",
            "graph.normalize_features=standard",
            "model.name=gat",
        ),
        ("fields.targets=p", "fields.inputs=u", "fields.predict=same", "model.name=meshgraphnet"),
    ],
    ids=("difference", "next", "same"),
)
def test_fields(tmp_path: Path, export: Any, words: tuple[str, ...]) -> None:
    given = replace(with_holes(random_fields()), edge_features=True)
    store = write_series(MPI.COMM_SELF, tmp_path, given)
    words = ("train.task=fields", "train.epochs=2", "fields.horizons=[]", *words)
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words))
    check(run.path, export, {name: {"meshgraphnet"} for name in ("pyg", "dgl")}, words[-1][11:])
    module, inputs = module_of(run.path / "export-torch"), [torch.from_numpy(given.features)]
    edges, features = edges_with_features(store)
    inputs += [edges, features] if words[-1].endswith("meshgraphnet") else [edges]
    model = module.load()
    with hpcgnn.Stepper(MPI.COMM_SELF, run.path) as stepper:
        states, order = stepper.stored(4), np.argsort(stepper.node_ids)
        names = [field.name for field in stepper.fields]
        for _ in range(3):
            frames = [np.concatenate([each[name] for name in names], 1)[order] for each in states]
            found = model(*inputs, torch.from_numpy(np.stack(frames))).detach().numpy()
            states = [*states[1:], stepper.step(states)]
            expected = np.concatenate([states[-1][name] for name in names], 1)[order]
            np.testing.assert_allclose(found, expected[:, : found.shape[1]], rtol=1e-5, atol=1e-5)


# Layers read one table of columns, whatever it is made of.
@pytest.mark.parametrize(
    ("name", "features"),
    [("sage", True), ("sage", False), ("gat", True), ("transformer", True), ("pna", True)],
)
def test_fields_of_edges(tmp_path: Path, export: Any, name: str, features: bool) -> None:
    given = replace(with_flows(with_holes(random_fields())), edge_features=features)
    store = write_series(MPI.COMM_SELF, tmp_path, given)
    words = ("fields.targets=u", "fields.edge_inputs=q", "fields.history=2", "fields.horizons=[]")
    words += ("graph.normalize_edge_features=standard",) * features
    words = ("train.task=fields", "train.epochs=2", f"model.name={name}", *words)
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words))
    for library in ("torch", "dgl"):
        found = export(run.path, "--to", library)
        assert found["difference"] < 1e-9 if library in LIBRARIES else "nodes" not in found
    module, x = module_of(run.path / "export-torch"), torch.from_numpy(given.features)
    assert module.EDGE_COLUMNS == ["q_0", "q_1"]
    edges, fixed = edges_with_features(store)
    model, fixed = module.load(), torch.empty(edges.shape[1], 0) if fixed is None else fixed
    with hpcgnn.Stepper(MPI.COMM_SELF, run.path) as stepper:
        states, order = stepper.stored(4), np.argsort(stepper.node_ids)
        np.testing.assert_array_equal(stepper.edge_ids.T, edges)
        for step in range(3):
            frames = torch.from_numpy(np.stack([each["u"][order] for each in states]))
            flows = torch.from_numpy(np.stack([each["q"] for each in states]))
            found = model(x, edges, fixed, frames, flows).detach().numpy()
            moved = {"q": stepper.stored(5 + step)[-1]["q"]}
            states = [*states[1:], stepper.step(states, moved)]
            np.testing.assert_allclose(found, states[-1]["u"][order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meshgraphnet", ("fields.edge_targets=['w', 'q']", "fields.edge_inputs=['q', 'w']")),
        ("meshgraphnet", ("fields.targets=[]", "fields.edge_targets=w", "fields.predict=next")),
        ("gatedgcn", ("fields.edge_targets=q", "fields.inputs=p")),
        (
            "gatedgcn",
            (
                "fields.predict=same",
                "fields.inputs=p",
                "fields.edge_inputs=w",
                "fields.edge_targets=q",
            ),
        ),
    ],
    ids=("both", "edges alone", "not read", "same"),
)
def test_targets_on_edges(tmp_path: Path, export: Any, name: str, words: tuple[str, ...]) -> None:
    given = replace(with_flows(with_holes(random_fields())), edge_features=True)
    store = write_series(MPI.COMM_SELF, tmp_path, given)
    words = ("fields.targets=u", "fields.history=2", "fields.horizons=[]", *words)
    words = ("train.task=fields", "train.epochs=2", f"model.name={name}", *words)
    run = training.train(MPI.COMM_SELF, training.make_config(store, tmp_path / "run", *words))
    for library in ("torch", "pyg", "dgl"):
        found = export(run.path, "--to", library)
        assert found["difference"] < 1e-9 if library in LIBRARIES else "nodes" not in found
    edges, fixed = edges_with_features(store)
    inputs = [torch.from_numpy(given.features), edges, fixed]
    with hpcgnn.Stepper(MPI.COMM_SELF, run.path) as stepper:
        states, order = stepper.stored(4), np.argsort(stepper.node_ids)
        np.testing.assert_array_equal(stepper.edge_ids.T, edges)

        def joined(state: Any, fields: Any, rows: Any) -> np.ndarray:
            tables = [state[field.name][rows] for field in fields]
            return np.concatenate([np.empty((len(rows), 0)), *tables], 1)

        following = stepper.step(states)
        for library in {"torch", "pyg"} & {"torch", *LIBRARIES}:
            module = module_of(run.path / f"export-{library}")
            every, predicted = np.arange(edges.shape[1]), []
            frames = [
                torch.from_numpy(np.stack([joined(each, fields, rows) for each in states]))
                for fields, rows in ((stepper.fields, order), (stepper.edge_fields, every))
            ]
            nodes, rows = (each.detach().numpy() for each in module.load()(*inputs, *frames))
            assert len(module.CLASSES) == nodes.shape[1]
            assert len(module.EDGE_CLASSES) == rows.shape[1] > 0
            for found, columns, fields, places in (
                (nodes, nodes.shape[1], stepper.fields, order),
                (rows, rows.shape[1], stepper.edge_fields, every),
            ):
                due = joined(following, fields, places)[:, :columns]
                size = np.abs(due).max(initial=0)
                np.testing.assert_allclose(found, due, rtol=0, atol=1e-5 * size)
                predicted.append(columns)
            assert sum(predicted) == len(module.CLASSES) + len(module.EDGE_CLASSES)


@pytest.mark.parametrize("structure", ["degree", "projection"])
def test_features_of_the_graph(tmp_path: Path, export: Any, structure: str) -> None:
    words = (f"graph.structure={structure}", "graph.structure_columns=3")
    run = trained(tmp_path, DIRECTED, *words, "graph.normalize_features=standard")
    check(run.path, export, {}, "")
    columns = np.load(run.path / "export-torch" / "structure.npy")
    x = torch.from_numpy(np.concatenate([DIRECTED.features, columns], 1, dtype=np.float32))
    logits = module_of(run.path / "export-torch").load()(x, edges_of(DIRECTED.adjacency))
    shares = logits.softmax(1).detach().numpy()
    np.testing.assert_allclose(shares, run.predictions()["probabilities"], atol=1e-5)


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
    # Predicting needs nothing else.
    alone = tmp_path / "alone.safetensors"
    file.rename(alone)
    predict = training.predict_with(MPI.COMM_SELF, training.Run(alone, 0), monkeypatch, capsys)
    found = predict(tmp_path / "out.npy")
    assert found["seed"] == seed
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), run.predictions()["probabilities"])
    with pytest.raises(InputError, match=r"has seed \d; leave --seed out"):
        export(alone, "--to", "torch", "--seed", "77")
    (tmp_path / "config.toml").touch()
    save_file({name: value + 1 for name, value in tensors.items()}, alone)
    with pytest.raises(InputError, match="is damaged"):
        export(alone, "--to", "torch")
    with pytest.raises(InputError, match=r"config.toml: give a run directory, or its model.safe"):
        export(tmp_path / "config.toml", "--to", "torch")
