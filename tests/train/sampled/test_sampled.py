"""Sampled training: gradients equal the dense reference; ranks, models, resuming."""

import json
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.sampling import Topology
from hpcgnn.storage import Split
from hpcgnn.train.tasks import Task, load_task
from tests.support.training import (
    Graph,
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    train,
    train_alone,
    write_store,
)

COMMON = (
    "train.task=sampled",
    "train.dtype=float64",
    "train.epochs=2",
    "sampling.walkers=5",
    "sampling.clip=1",
    "sampling.steps=3",
    "run.save_predictions=false",
)
SUBGRAPHS = (*COMMON, "sampling.budget=40", "sampling.subgraphs=3")
BATCHES = (
    *COMMON,
    "sampling.sampler=neighbour",
    "sampling.budget=9",
    "sampling.fan_outs=[3, 2]",
    "graph.undirected=true",
)


def losses(comm: MPI.Intracomm, path: Path, store: Path, *words: str) -> np.ndarray:
    return np.array(train(comm, make_config(store, path, *words)).column("train_loss"))


def losses_alone(comm: MPI.Intracomm, path: Path, store: Path, *words: str) -> np.ndarray:
    """Return the losses of one rank, for which the others wait."""
    return np.array(train_alone(comm, make_config(store, path, *words)).column("train_loss"))


@pytest.mark.parametrize(
    ("sampler", "coverage"),
    [("frontier", 0), ("multidimensional", 1), ("walk", 2), ("edge", 1), ("node", 1)],
)
def test_losses_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, sampler: str, coverage: int
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    words = (*SUBGRAPHS, f"sampling.sampler={sampler}", f"sampling.coverage={coverage}")
    together = losses(comm, comm_tmp_path / "run", store, *words, "sampling.threads=2")
    alone = losses_alone(comm, comm_tmp_path / "alone", store, *words)
    np.testing.assert_allclose(together, alone, rtol=1e-10)


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    "model",
    [
        ("gcn", "norm=batch", "dropout=0.3"),
        ("mixhop",),
        ("gat", "heads=2", "hidden=8"),
        ("gin",),
        ("appnp", "hops=2"),
        ("gcnii", "num_layers=2"),
        ("sign", "hops=2"),
    ],
    ids=lambda model: model[0],
)
def test_models_train_alike_on_any_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: tuple[str, ...]
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    name, *options = model
    words = [f"model.{each}" for each in (f"name={name}", *options)]
    together = losses(comm, comm_tmp_path / "run", store, *SUBGRAPHS, *words)
    alone = losses_alone(comm, comm_tmp_path / "alone", store, *SUBGRAPHS, *words)
    np.testing.assert_allclose(together, alone, rtol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        ("gcn",),
        ("sage",),
        ("gat",),
        # Statistics over rows of several ranks.
        ("sage", "norm=batch", "dropout=0.3"),
        ("mixhop", "norm=graph", "num_layers=1", "hops=2"),
    ],
    ids="-".join,
)
def test_batches_train_alike_on_any_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: tuple[str, ...]
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    name, *options = model
    words = (*BATCHES, *(f"model.{each}" for each in (f"name={name}", *options)))
    together = losses(comm, comm_tmp_path / "run", store, *words)
    alone = losses_alone(comm, comm_tmp_path / "alone", store, *words)
    np.testing.assert_allclose(together, alone, rtol=1e-10)


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize("kind", ["whole subgraph", "whole fan-out"])
@pytest.mark.parametrize("model", ["gcn", "sage", "mixhop", "gat"])
def test_a_sample_of_everything_is_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, kind: str
) -> None:
    """With all nodes, or all neighbours, losses are those of full-graph training."""
    graph = make_graph(weighted=True)
    store = write_store(comm, comm_tmp_path, graph)
    words = ["train.dtype=float64", "train.epochs=4", "run.save_predictions=false"]
    words += [f"model.name={model}", "model.dropout=0", "graph.undirected=true"]
    full = losses(comm, comm_tmp_path / "full", store, *words)
    words += ["train.task=sampled", "sampling.steps=1", "sampling.clip=1", "sampling.coverage=0"]
    if kind == "whole subgraph":
        words += ["sampling.sampler=node", "sampling.budget=40000"]
    else:
        depth = 4 if model == "mixhop" else 2
        words += ["sampling.sampler=neighbour", "sampling.budget=1000"]
        words += [f"sampling.fan_outs={[1000] * depth}"]
    sampled = losses(comm, comm_tmp_path / "sampled", store, *words)
    np.testing.assert_allclose(sampled, full, rtol=1e-9)


@pytest.mark.parametrize(
    "words",
    [
        ("sampling.sampler=neighbour", "sampling.fan_outs=[1000, 1000]"),
        (
            "sampling.sampler=node",
            "sampling.budget=40000",
            "sampling.topology=partitioned",
            "sampling.halo=2",
        ),
    ],
    ids=["fan-outs", "parts"],
)
def test_degrees_are_those_of_the_whole_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...]
) -> None:
    """With all messages, what PNA scales by degrees is as in full-graph training."""
    store = write_store(comm, comm_tmp_path, make_graph(directed=False), parts=comm.size)
    common = ("model.name=pna", "model.dropout=0", "train.dtype=float64", "train.epochs=2")
    common += ("run.save_predictions=false",)
    full = losses(comm, comm_tmp_path / "full", store, *common)
    of_all = ("train.task=sampled", "sampling.steps=1", "sampling.coverage=0")
    sampled = losses(comm, comm_tmp_path / "sampled", store, *common, *of_all, *words)
    np.testing.assert_allclose(sampled, full, rtol=1e-9)


@pytest.mark.parametrize("model", ["sage", "gat", "transformer"])
def test_features_of_edges_come_with_samples(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(), edge_width=2)
    words = (f"model.name={model}", "model.edge_features=true", "model.dropout=0")
    common = (*words, "train.dtype=float64", "train.epochs=2", "run.save_predictions=false")
    full = losses(comm, comm_tmp_path / "full", store, *common)
    of_all = ("train.task=sampled", "sampling.steps=1", "sampling.coverage=0")
    of_all += ("sampling.sampler=node", "sampling.budget=40000")
    sampled = losses(comm, comm_tmp_path / "sampled", store, *common, *of_all)
    np.testing.assert_allclose(sampled, full, rtol=1e-9)
    some = (*SUBGRAPHS, *words, "sampling.coverage=2")
    for estimator in ("ratio", "unbiased"):
        chosen = (*some, f"sampling.estimator={estimator}")
        together = losses(comm, comm_tmp_path / f"run.{estimator}", store, *chosen)
        alone = losses_alone(comm, comm_tmp_path / f"alone.{estimator}", store, *chosen)
        np.testing.assert_allclose(together, alone, rtol=1e-9)
    plain = losses(comm, comm_tmp_path / "plain", store, *chosen, "model.edge_features=false")
    assert (together != plain).all()


@pytest.mark.max_ranks(2)
def test_ratios_do_not_depend_on_ranks(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(weighted=True))
    words = (*SUBGRAPHS, "sampling.coverage=2", "sampling.estimator=ratio")
    together = losses(comm, comm_tmp_path / "run", store, *words)
    alone = losses_alone(comm, comm_tmp_path / "alone", store, *words)
    np.testing.assert_allclose(together, alone, rtol=1e-10)
    unbiased = losses(comm, comm_tmp_path / "other", store, *words[:-1])
    assert (together != unbiased).all()


@pytest.mark.quality
@pytest.mark.max_ranks(2)
def test_coefficients_make_losses_estimates_of_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    """The mean of a linear model's gradients over many subgraphs is that of the full graph."""
    store = write_store(comm, comm_tmp_path, make_graph(directed=False))
    words = ["model.name=gcn", "model.num_layers=1", "model.dropout=0", "train.dtype=float64"]
    words += ["train.task=sampled", "sampling.steps=300", "sampling.sampler=walk"]
    words += ["sampling.budget=60", "sampling.coverage=600", "sampling.clip=1"]
    config = make_config(store, comm_tmp_path / "run", *words)
    check_mean_gradient(comm, config)


def check_mean_gradient(comm: MPI.Intracomm, config: Config) -> None:
    with ProcessGrid(comm) as grid:
        task = load_task(Context(grid, config))
        model = task.objective.make_model(1)
        # The cross entropy is not linear in the logits; at zero weights its gradient is.
        with torch.no_grad():
            for each in model.parameters():
                each.zero_()
        expected = gradient(task, [lambda m: whole_loss(task, m)], model)[0]
        found = np.stack(gradient(task, task.steps(5, 0), model))
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - expected) < 5 * error + 0.03 * np.abs(expected).max()).all()


def whole_loss(task: Task, model: torch.nn.Module) -> torch.Tensor:
    whole, graph = task.objective.examples, task.objective.graph
    logits = model(graph.view, graph.features, None)[whole.train_rows]
    labels = whole.labels[whole.train_rows]
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / whole.num_train


def gradient(task: Task, steps, model: torch.nn.Module) -> list[np.ndarray]:
    gradients = []
    for step in steps:
        model.zero_grad()
        step(model).backward()
        flat = torch.cat([each.grad.reshape(-1) for each in model.parameters()]).numpy()
        task.objective.grid.sum_over_blocks(flat)
        gradients.append(flat)
    return gradients


def test_a_batch_reads_the_degrees_of_its_rows_alone(
    comm: MPI.Intracomm, comm_tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    with ProcessGrid(comm) as grid:
        task = load_task(Context(grid, make_config(store, comm_tmp_path / "run", *BATCHES)))
        monkeypatch.delattr(Topology, "degrees")
        gradient(task, task.steps(1, 0), task.objective.make_model(1))


@pytest.mark.max_ranks(2)
def test_multi_label_graphs_train(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(multi_label=True))
    for words in (SUBGRAPHS, BATCHES):
        run = comm_tmp_path / words[7].split("=")[1]
        assert np.isfinite(losses(comm, run, store, *words)).all()


@pytest.mark.max_ranks(2)
def test_resume_goes_on_as_if_nothing_had_happened(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = (*SUBGRAPHS, "model.dropout=0.3", "run.checkpoint_every=1", "run.save_predictions=true")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(1))
    assert_same(whole, train(comm, config))


@pytest.mark.max_ranks(2)
def test_the_summary_tells_of_sampling(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    train(comm, make_config(store, comm_tmp_path / "run", *SUBGRAPHS))
    told = json.loads((comm_tmp_path / "run" / "summary.json").read_text())["sampling"]
    assert told["steps_per_epoch"] == 3
    assert told["mean_nodes"] > 10
    assert told["counted_subgraphs"] > 0


@pytest.mark.max_ranks(2)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("sampling.sampler=neighbour", "sampling.fan_outs=[3]", "graph.undirected=true"),
            "aggregates 2 times",
        ),
        (("sampling.sampler=neighbour", "sampling.fan_outs=[3, 2]"), "undirected"),
    ],
)
def test_options_that_do_not_apply(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph(directed=True))
    config = make_config(store, comm_tmp_path / "run", "train.task=sampled", *words)
    with pytest.raises(CollectiveInputError, match=message):
        train(comm, config)


def test_bad_configurations_name_the_key(tmp_path: Path) -> None:
    for word in ("sampling.budget=0", "sampling.sampler=all", "sampling.fan_outs=[2]"):
        with pytest.raises(InputError, match=word.split("=")[0]):
            make_config(tmp_path / "x.h5", tmp_path / "run", word)
    for words in (
        ("sampling.coverage=0",),
        ("sampling.sampler=neighbour", "sampling.fan_outs=[2, 2]"),
    ):
        with pytest.raises(InputError, match=r"sampling.estimator = 'ratio': needs"):
            make_config(tmp_path / "x.h5", tmp_path / "run", *words, "sampling.estimator=ratio")


INDUCTIVE = ("train.inductive=true", "model.norm=batch", "graph.normalize_features=standard")


def between_training_nodes(graph: Graph) -> Graph:
    """Return the graph of the training nodes alone."""
    chosen = np.flatnonzero(graph.split == Split.TRAIN)
    return replace(
        graph,
        adjacency=graph.adjacency[chosen][:, chosen],
        features=graph.features[chosen],
        labels=graph.labels[chosen],
        split=graph.split[chosen],
        ids=graph.ids[chosen],
    )


@pytest.mark.max_ranks(3)
@pytest.mark.parametrize(("model", "sampler"), [("sage", "frontier"), ("gcn", "node")])
def test_inductive_training_is_that_of_the_training_nodes(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, sampler: str
) -> None:
    graph, found = make_graph(weighted=True), []
    words = (*SUBGRAPHS, *INDUCTIVE, f"sampling.sampler={sampler}", f"model.name={model}")
    for name, each in (("whole", graph), ("alone", between_training_nodes(graph))):
        (comm_tmp_path / name).mkdir(exist_ok=True)
        store = write_store(comm, comm_tmp_path / name, each, method="block")
        found.append(losses(comm, comm_tmp_path / name / "run", store, *words))
    np.testing.assert_allclose(*found, rtol=1e-10)


@pytest.mark.max_ranks(3)
@pytest.mark.parametrize(
    "words", [("sampling.topology=partitioned",), BATCHES], ids=["parts", "batches"]
)
def test_inductive_training_knows_nothing_of_other_nodes(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...]
) -> None:
    graph, found = make_graph(), []
    others = np.flatnonzero(graph.split != Split.TRAIN)
    adjacency = graph.adjacency.tolil()
    adjacency[others] = 1 - adjacency[others].toarray()
    features = graph.features.copy()
    features[others] *= -3
    changed = replace(graph, adjacency=adjacency.tocsr(), features=features)
    for name, each in (("first", graph), ("second", changed)):
        (comm_tmp_path / name).mkdir(exist_ok=True)
        # A partition, and parts for ranks, that do not depend on the edges.
        store = write_store(
            comm, comm_tmp_path / name, each, method="empty second", parts=comm.size
        )
        run = train(comm, make_config(store, comm_tmp_path / name, *SUBGRAPHS, *INDUCTIVE, *words))
        found.append((run.column("train_loss"), run.metrics[-1]["test_loss"]))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.parametrize("relation", ["cites", "names"])
def test_weights_whose_sum_is_zero_are_those_of_the_whole_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, relation: str
) -> None:
    graph = make_graph(weighted=True).with_relations()
    weights = graph.relations[relation]
    for row in np.argsort(np.diff(weights.indptr))[-3:]:
        weights.data[weights.indptr[row] : weights.indptr[row + 1]] = 0
    store = write_store(comm, comm_tmp_path, graph)
    words = ("model.name=rgcn", "train.dtype=float64", "train.epochs=2")
    every = ("train.task=sampled", "sampling.sampler=neighbour", "sampling.budget=1000")
    sampled = (*words, *every, "sampling.fan_outs=[1000,1000]")
    of_sample = losses(comm, comm_tmp_path / "sampled", store, *sampled)
    whole = losses(comm, comm_tmp_path / "whole", store, *words)
    np.testing.assert_allclose(of_sample, whole, rtol=1e-9)
