"""Node types in the training command: equal to the dense reference."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError
from tests.support import training
from tests.support.emulated_gpu import some_gpu
from tests.support.training_oracle import assert_reference

QUIET = ("train.epochs=3", "train.evaluate_every=3", "run.save_predictions=false")
DOUBLE = ("train.dtype=float64", "model.dropout=0.3", "model.input_dropout=0.2")

CASES = {
    "rgcn, joint": ("num_bases=2", "exchange.method=joint"),
    "rgcn, stages": ("hidden=8", "exchange.schedule=sequential", "exchange.active_sets=false"),
    "sage, stages": ("norm=batch", "exchange.schedule=sequential", "exchange.prefetch=1"),
    "gat, joint": ("input_width=3", "exchange.method=joint", "exchange.prepare=first_epoch"),
    "gat, labels": ("input_width=9", "train.label_augmentation=0.6"),
    "sage, all labels": ("train.label_augmentation=0.6", "exchange.active_sets=false"),
}


def typed_graph(name: str) -> training.Graph:
    graph = training.make_graph(weighted=True).with_types()
    return graph.with_relations() if name.startswith("rgcn") else graph


@pytest.mark.parametrize("name", CASES)
def test_losses_equal_the_reference(comm: MPI.Intracomm, comm_tmp_path: Path, name: str) -> None:
    graph = typed_graph(name)
    method = "empty second" if comm.size > 2 else "random"
    store = training.write_store(comm, comm_tmp_path, graph, method=method, parts=comm.size)
    words = [each if "." in each.split("=")[0] else f"model.{each}" for each in CASES[name]]
    model = f"model.name={name.partition(',')[0]}"
    config = training.make_config(store, comm_tmp_path / "run", model, *QUIET, *DOUBLE, *words)
    assert_reference(comm, training.train(comm, config), graph, config, 1e-11)


def test_each_type_is_standardised_and_a_run_goes_on(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = typed_graph("sage")
    store = training.write_store(comm, comm_tmp_path, graph)
    words = (*DOUBLE, "graph.normalize_features=standard", "train.epochs=3")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *words))
    scaled = {name: standard(each) for name, each in graph.type_features.items()}
    config = training.make_config(store, comm_tmp_path / "parts", *words, "run.checkpoint_every=1")
    assert_reference(comm, whole, replace(graph, type_features=scaled), config, 1e-11)
    training.train(comm, config, training.StopAfter(2))
    parts = training.train(comm, config)
    names = {name.rpartition("/")[2] for name in parts.tensors() if "/features/" in name}
    assert names == {f"{t}.{each}" for t in ("plain", "rare", "absent") for each in SCALE}
    training.assert_same(whole, parts)


SCALE = ("mean", "deviation")


def standard(part: np.ndarray | None) -> np.ndarray | None:
    if part is None or not len(part):
        return part
    wide = part.astype(np.float64)
    return (wide - wide.mean(0)) / wide.std(0)


@pytest.mark.several_ranks
def test_results_do_not_depend_on_the_ranks(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, typed_graph("gat"))
    words = (*DOUBLE, "model.name=gat", "graph.normalize_features=standard", "train.epochs=3")
    smoothed = ("correct_and_smooth.enabled=true", "train.label_augmentation=0.5")
    run = training.train(
        comm, training.make_config(store, comm_tmp_path / "all", *words, *smoothed)
    )
    config = training.make_config(store, comm_tmp_path / "alone", *words, *smoothed)
    single = training.train_alone(comm, config)
    np.testing.assert_allclose(run.column("train_loss"), single.column("train_loss"), rtol=1e-11)
    np.testing.assert_allclose(
        run.predictions()["probabilities"], single.predictions()["probabilities"], rtol=1e-5
    )
    types = run.summary["graph"]["node_types"]
    assert [each["name"] for each in types] == ["plain", "bare", "rare", "absent"]
    assert [each["num_features"] for each in types] == [5, 0, 3, 2]
    assert sum(each["num_nodes"] for each in types) == run.summary["graph"]["num_nodes"]


def test_first_layers_decay_alone(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, typed_graph("sage"))
    words = ("train.epochs=1", "train.optimizer=sgd", "train.learning_rate=1e-9")
    decay = ("train.weight_decays=['inputs.*=1e8', 'layers.0.*=1e8']", "train.select=last")
    run = training.train(comm, training.make_config(store, comm_tmp_path / "run", *words, *decay))
    before = training.train(
        comm, training.make_config(store, comm_tmp_path / "before", *words)
    ).tensors()
    fallen = {
        name.partition("/model/")[2]
        for name, value in run.tensors().items()
        if "/model/" in name and value.size and abs(value).max() < 0.95 * abs(before[name]).max()
    }
    expected = {f"inputs.weights.{t}" for t in (0, 2, 3)} | {"inputs.biases.1"}
    assert {name for name in fallen if name.startswith("inputs.")} == expected
    assert any(name.startswith("body.layers.0.") for name in fallen)
    assert not any(name.startswith("body.layers.1.") for name in fallen)


def test_widths_of_input_layers_need_node_types(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    config = training.make_config(store, comm_tmp_path / "run", "model.input_width=8")
    with pytest.raises(CollectiveInputError, match=r"input_width = 8 .* without node types"):
        training.train(comm, config)


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
    store = training.write_store(comm, comm_tmp_path, graph)
    config = training.make_config(store, comm_tmp_path / "run", *SAMPLED, *words)
    run = training.train(comm, config)
    both = graph.adjacency.maximum(graph.adjacency.T)
    whole = replace(graph, adjacency=both, directed=False)
    assert_reference(comm, run, whole, config, 1e-9)


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    "options",
    [
        ("train.label_augmentation=0.5", "exchange.method=joint"),
        ("model.name=rgcn", "model.embeddings=true", "train.clip_norm=0.5"),
    ],
    ids=["sage", "rgcn"],
)
def test_a_gpu_trains_alike(
    comm: MPI.Intracomm, comm_tmp_path: Path, options: tuple[str, ...]
) -> None:
    graph = training.make_graph(4, num_nodes=29).with_types()
    graph = graph.with_relations() if "rgcn" in options[0] else graph
    store = training.write_store(comm, comm_tmp_path, graph)
    words = (*DOUBLE, "train.epochs=3", "run.save_predictions=false", *options)
    host = training.train(comm, training.make_config(store, comm_tmp_path / "host", *words))
    with some_gpu():
        config = training.make_config(store, comm_tmp_path / "device", *words, "train.device=cuda")
        device = training.train(comm, config)
    for name in ("train_loss", "valid_accuracy", "test_accuracy"):
        np.testing.assert_allclose(device.column(name), host.column(name), rtol=1e-9)


def test_formats_of_numbers(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = typed_graph("sage")
    store = training.write_store(comm, comm_tmp_path, graph)
    for precision, tolerance in (("float32", 1e-5), ("bfloat16", 0.02)):
        words = (f"train.precision={precision}", "model.dropout=0.2")
        config = training.make_config(store, comm_tmp_path / precision, *QUIET, *words)
        assert_reference(comm, training.train(comm, config), graph, config, tolerance)
