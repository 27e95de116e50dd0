"""Sampled training with relations and node types, which edges and nodes keep in subgraphs."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from tests.support.many_graphs import make_graphs, write_graphs
from tests.support.training import Graph, make_config, make_graph, train, write_store
from tests.support.training_oracle import assert_reference
from tests.train.sampled.test_sampled import check_mean_gradient, losses, losses_alone

COMMON = (
    "train.dtype=float64",
    "train.epochs=3",
    "run.save_predictions=false",
    "model.dropout=0",
    "sampling.clip=1",
    "sampling.walkers=5",
)
WEIGHED = ("model.name=rgcn",)
ATTENDING = ("graph.weights=ignore", "model.heads=2", "model.hidden=8")
MODELS = {
    "rgcn": (*WEIGHED, "model.num_bases=2"),
    "rgat": ("model.name=rgat", *ATTENDING),
    "hgt": ("model.name=hgt", *ATTENDING),
}
FAN_OUTS = "sampling.fan_outs=[1000, 1000]"
ALL = {
    "subgraph": ("sampling.sampler=node", "sampling.budget=40000", "sampling.coverage=0"),
    "fan-outs": ("sampling.sampler=neighbour", "sampling.budget=1000", FAN_OUTS),
    "parts": (
        "sampling.sampler=neighbour",
        FAN_OUTS,
        "sampling.budget=1000",
        "sampling.topology=partitioned",
        "sampling.halo=2",
        "sampling.reshuffle_epochs=2",
        "sampling.reshuffle_share=0.5",
    ),
}


def typed_relations() -> Graph:
    """Return weighted relations, which share edges, between nodes of several types."""
    return make_graph(weighted=True).with_types().with_relations()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("model", MODELS)
def test_a_sample_of_everything_is_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, kind: str
) -> None:
    store = write_store(comm, comm_tmp_path, typed_relations())
    undirected = str(kind != "subgraph").lower()
    words = (*COMMON, *MODELS[model], f"graph.undirected={undirected}")
    full = losses(comm, comm_tmp_path / "full", store, *words)
    of_all = ("train.task=sampled", "sampling.steps=1", *ALL[kind])
    sampled = losses(comm, comm_tmp_path / "sampled", store, *words, *of_all)
    np.testing.assert_allclose(sampled, full, rtol=1e-9)


def test_a_sample_of_everything_is_the_dense_reference(
    comm: MPI.Intracomm, comm_tmp_path: Path
) -> None:
    graph = typed_relations()
    store = write_store(comm, comm_tmp_path, graph, parts=comm.size)
    words = (*COMMON, *MODELS["rgcn"], *ALL["subgraph"], "train.task=sampled", "sampling.steps=1")
    config = make_config(store, comm_tmp_path / "run", *words)
    assert_reference(comm, train(comm, config), graph, config, 1e-10)


TASKS = {
    "subgraphs": ("train.task=sampled", "sampling.coverage=2", "sampling.estimator=ratio"),
    "unbiased": ("train.task=sampled", "sampling.coverage=2", "sampling.estimator=unbiased"),
    "fan-outs": (
        "train.task=sampled",
        "sampling.sampler=neighbour",
        "sampling.fan_outs=[3, 2]",
        "graph.undirected=true",
    ),
    "links": ("train.task=links", "links.sampled=true", "links.train=0.3"),
}


@pytest.mark.several_ranks
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_losses_do_not_depend_on_ranks(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, task: str
) -> None:
    graph = typed_relations()
    store = write_store(
        comm, comm_tmp_path, graph, method="empty second" if comm.size > 2 else "block"
    )
    how = ("sampling.steps=2", "sampling.budget=30", "sampling.subgraphs=3")
    words = (*COMMON, *how, *MODELS[model], *TASKS[task])
    together = losses(comm, comm_tmp_path / "run", store, *words)
    alone = losses_alone(comm, comm_tmp_path / "alone", store, *words)
    np.testing.assert_allclose(together, alone, rtol=1e-9)


@pytest.mark.quality
@pytest.mark.max_ranks(2)
@pytest.mark.parametrize("sampler", ["walk", "neighbour"])
def test_gradients_estimate_those_of_the_full_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, sampler: str
) -> None:
    graph = make_graph(weighted=True, directed=False).with_relations()
    store = write_store(comm, comm_tmp_path, graph)
    words = [*WEIGHED, "model.num_layers=1", "model.dropout=0", "train.dtype=float64"]
    words += ["train.task=sampled", f"sampling.sampler={sampler}", "sampling.clip=1"]
    if sampler == "walk":
        words += ["sampling.steps=300", "sampling.budget=60", "sampling.coverage=600"]
    else:
        words += ["sampling.fan_outs=[2]", "sampling.budget=1000", "sampling.steps=300"]
    check_mean_gradient(comm, make_config(store, comm_tmp_path / "run", *words))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("topology", ["shared", "partitioned"])
def test_a_batch_of_all_graphs_is_all_at_once(
    comm: MPI.Intracomm, comm_tmp_path: Path, model: str, topology: str
) -> None:
    store = write_graphs(comm, comm_tmp_path, make_graphs())
    of_one = "model.num_bases=0" if model == "rgcn" else "model.heads=4"
    words = (*COMMON, *MODELS[model], of_one, "train.task=graphs", f"sampling.topology={topology}")
    found = [
        losses(comm, comm_tmp_path / f"run{batch}", store, *words, f"graphs.batch={batch}")
        for batch in (0, 1000)
    ]
    np.testing.assert_allclose(*found, rtol=1e-9)
