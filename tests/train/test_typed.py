"""Node types from the command's side: training equals the dense reference, and bad input."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from tests.emulated_gpu import some_gpu
from tests.train.oracle import dense_losses
from tests.train.support import (
    Graph,
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    predict_with,
    train,
    write_store,
)

EPOCHS = 5
QUIET = (f"train.epochs={EPOCHS}", f"train.evaluate_every={EPOCHS}", "run.save_predictions=false")
DOUBLE = ("train.dtype=float64", "model.dropout=0.3", "model.input_dropout=0.2")

CASES = {
    "rgcn, joint": ("num_bases=2", "exchange.method=joint"),
    "rgcn, stages": ("hidden=8", "exchange.schedule=sequential", "exchange.active_sets=false"),
    "sage, stages": ("norm=batch", "exchange.schedule=sequential", "exchange.prefetch=1"),
    "gat, joint": ("input_width=3", "exchange.method=joint", "exchange.prepare=first_epoch"),
    "gat, labels": ("input_width=9", "train.label_augmentation=0.6"),
    "sage, all labels": ("train.label_augmentation=0.6", "exchange.active_sets=false"),
}


def typed_graph(name: str) -> Graph:
    graph = make_graph(weighted=True).with_types()
    return graph.with_relations() if name.startswith("rgcn") else graph


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_the_reference(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    graph = typed_graph(name)
    method = "empty second" if comm.size > 2 else "random"
    store = write_store(comm, comm_tmp_path, graph, method=method, parts=comm.size)
    words = [each if "." in each.split("=")[0] else f"model.{each}" for each in CASES[name]]
    model = f"model.name={name.partition(',')[0]}"
    config = make_config(store, comm_tmp_path / "run", model, *QUIET, *DOUBLE, *words)
    losses = train(comm, config).column("train_loss")
    np.testing.assert_allclose(losses, dense_losses(graph, config, EPOCHS), rtol=1e-11)


def test_each_type_is_standardised_and_a_run_goes_on(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = typed_graph("sage")
    store = write_store(comm, comm_tmp_path, graph)
    words = (*DOUBLE, "graph.normalize_features=standard", "train.epochs=4")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    scaled = {name: standard(each) for name, each in graph.type_features.items()}
    config = make_config(store, comm_tmp_path / "parts", *words, "run.checkpoint_every=1")
    expected = dense_losses(replace(graph, type_features=scaled), config, 4)
    np.testing.assert_allclose(whole.column("train_loss"), expected, rtol=1e-11)
    train(comm, config, StopAfter(2))
    parts = train(comm, config)
    names = {name.rpartition("/")[2] for name in parts.tensors() if "/features/" in name}
    assert names == {f"{t}.{each}" for t in ("plain", "rare", "absent") for each in SCALE}
    assert_same(whole, parts)


SCALE = ("mean", "deviation")


def standard(part: np.ndarray | None) -> np.ndarray | None:
    if part is None or not len(part):
        return part
    wide = part.astype(np.float64)
    return (wide - wide.mean(0)) / wide.std(0)


def test_results_do_not_depend_on_the_ranks(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, typed_graph("gat"))
    words = (*DOUBLE, "model.name=gat", "graph.normalize_features=standard", "train.epochs=4")
    smoothed = ("correct_and_smooth.enabled=true", "train.label_augmentation=0.5")
    run = train(comm, make_config(store, comm_tmp_path / "all", *words, *smoothed))
    alone = comm.Split(comm.rank)
    single = train(
        alone, make_config(store, comm_tmp_path / f"alone{comm.rank}", *words, *smoothed)
    )
    alone.Free()
    np.testing.assert_allclose(run.column("train_loss"), single.column("train_loss"), rtol=1e-11)
    np.testing.assert_allclose(
        run.predictions()["probabilities"], single.predictions()["probabilities"], rtol=1e-5
    )
    types = run.summary["graph"]["node_types"]
    assert [each["name"] for each in types] == ["plain", "bare", "rare", "absent"]
    assert [each["num_features"] for each in types] == [5, 0, 3, 2]
    assert sum(each["num_nodes"] for each in types) == run.summary["graph"]["num_nodes"]


def test_first_layers_decay_alone(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, typed_graph("sage"))
    words = ("train.epochs=1", "train.optimizer=sgd", "train.learning_rate=1e-9")
    decay = ("train.weight_decay=1e8", "train.weight_decay_layers=first", "train.select=last")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words, *decay))
    before = train(comm, make_config(store, comm_tmp_path / "before", *words)).tensors()
    fallen = {
        name.partition("/model/")[2]
        for name, value in run.tensors().items()
        if "/model/" in name and value.size and abs(value).max() < 0.95 * abs(before[name]).max()
    }
    expected = {f"inputs.weights.{t}" for t in (0, 2, 3)} | {"inputs.biases.1"}
    assert {name for name in fallen if name.startswith("inputs.")} == expected
    assert any(name.startswith("body.layers.0.") for name in fallen)
    assert not any(name.startswith("body.layers.1.") for name in fallen)


def narrow(graph: Graph) -> Graph:
    part = graph.type_features["plain"]
    return replace(graph, type_features={**graph.type_features, "plain": part[:, :4]})


def renamed(graph: Graph) -> Graph:
    return replace(graph, type_features={f"my {k}": v for k, v in graph.type_features.items()})


def untyped(graph: Graph) -> Graph:
    return replace(graph, types=None, type_features={})


def labelled(graph: Graph) -> Graph:
    return replace(graph, labels=np.where(graph.types == 1, 0, graph.labels).astype(np.int32))


FITS = r"does not fit the model: "
OTHERS: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "narrow": (narrow, FITS + r"node types with features \(\('plain', 4\).*\('plain', 5\)"),
    "renamed": (renamed, FITS + r"node types .*'my plain'"),
    "untyped": (untyped, FITS + "features a node 7, .* trained with 0"),
    "labelled": (labelled, FITS + "labelled node types .*'bare'"),
}


def test_models_are_for_their_node_types(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = typed_graph("sage")
    store = write_store(comm, comm_tmp_path, graph)
    words = ("train.epochs=2", "train.label_augmentation=0.5", "graph.normalize_features=standard")
    run = train(comm, make_config(store, comm_tmp_path / "run", *words))
    predict = predict_with(comm, run, monkeypatch, capsys)
    predict(comm_tmp_path / "same.h5")
    for name, (change, message) in OTHERS.items():
        (comm_tmp_path / name).mkdir(exist_ok=True)
        wrong = write_store(comm, comm_tmp_path / name, change(graph))
        with pytest.raises(CollectiveInputError, match=message):
            predict(comm_tmp_path / "other.h5", "--store", wrong)


def test_a_model_sees_another_graph_by_its_own_scale(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    graph = typed_graph("sage")
    store = write_store(comm, comm_tmp_path, graph)
    config = make_config(store, comm_tmp_path / "run", "graph.normalize_features=standard")
    run = train(comm, config)
    (comm_tmp_path / "shifted").mkdir(exist_ok=True)
    shifted = {k: v if v is None else v + 5 for k, v in graph.type_features.items()}
    other = write_store(comm, comm_tmp_path / "shifted", replace(graph, type_features=shifted))
    predict = predict_with(comm, run, monkeypatch, capsys)
    found = [comm_tmp_path / f"{name}.npy" for name in ("same", "other")]
    predict(found[0])
    predict(found[1], "--store", other, "--format", "npy")
    same, moved = (np.load(each) for each in found)
    np.testing.assert_allclose(same, run.predictions()["probabilities"], rtol=1e-6)
    assert abs(same - moved).max() > 0.01


def test_widths_of_input_layers_need_node_types(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    config = make_config(store, comm_tmp_path / "run", "model.input_width=8")
    with pytest.raises(CollectiveInputError, match="input_width = 8: planted has no node types"):
        train(comm, config)


SAMPLED = (
    "train.task=sampled",
    "train.dtype=float64",
    "train.epochs=3",
    "run.save_predictions=false",
    "graph.undirected=true",
    "sampling.clip=1",
    "sampling.coverage=0",
    "sampling.steps=1",
)


@pytest.mark.parametrize(
    "words",
    [
        ("sampling.sampler=node", "sampling.budget=40000"),
        ("sampling.sampler=neighbour", "sampling.budget=1000", "sampling.fan_outs=[1000, 1000]"),
        (
            "sampling.sampler=neighbour",
            "sampling.budget=1000",
            "sampling.fan_outs=[1000, 1000]",
            "sampling.topology=partitioned",
            "sampling.halo=2",
            "sampling.reshuffle_epochs=2",
            "sampling.reshuffle_share=0.5",
        ),
    ],
    ids=["subgraph", "fan-outs", "parts"],
)
def test_a_sample_of_everything_is_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...]
) -> None:
    graph = typed_graph("sage")
    store = write_store(comm, comm_tmp_path, graph)
    config = make_config(store, comm_tmp_path / "run", *SAMPLED, *words)
    losses = train(comm, config).column("train_loss")
    both = graph.adjacency.maximum(graph.adjacency.T)
    whole = replace(graph, adjacency=both, directed=False)
    np.testing.assert_allclose(losses, dense_losses(whole, config, 3), rtol=1e-9)


def test_a_gpu_trains_alike(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(4, num_nodes=29).with_types())
    words = (
        *DOUBLE,
        "train.epochs=3",
        "train.label_augmentation=0.5",
        "run.save_predictions=false",
    )
    host = train(comm, make_config(store, comm_tmp_path / "host", *words))
    with some_gpu():
        config = make_config(store, comm_tmp_path / "device", *words, "train.device=cuda")
        device = train(comm, config)
    for name in ("train_loss", "valid_accuracy", "test_accuracy"):
        np.testing.assert_allclose(device.column(name), host.column(name), rtol=1e-9)


def test_formats_of_numbers(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = typed_graph("sage")
    store = write_store(comm, comm_tmp_path, graph)
    for activations, wire, tolerance in (
        ("native", "native", 1e-5),
        ("bfloat16", "bfloat16", 0.02),
    ):
        words = (f"train.activations={activations}", f"exchange.wire={wire}", "model.dropout=0.2")
        config = make_config(store, comm_tmp_path / activations, *QUIET, *words)
        losses = train(comm, config).column("train_loss")
        expected = dense_losses(graph, config, EPOCHS)
        np.testing.assert_allclose(losses, expected, rtol=tolerance)
