"""Every model and option in the training command equals the dense reference."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from hpcgnn.comm import CollectiveInputError, ProcessGrid
from hpcgnn.train.run.saved_model import (
    load_saved_graph,
    open_saved_model,
)
from tests.support import training
from tests.support.training_oracle import assert_reference

SETTINGS = [
    ("gcn", "norm=batch", "residual=true", "num_layers=3"),
    ("sage", "norm=graph", "jumping=max", "num_layers=3"),
    ("mixhop", "norm=layer", "activation=elu"),
    ("gin", "norm=batch"),
    ("appnp", "hops=3", "teleport=0.2"),
    ("rgcn", "num_bases=2", "norm=batch"),
    ("gcnii", "num_layers=4", "teleport=0.2"),
    ("sign", "hops=2", "norm=batch"),
    ("transformer", "heads=2", "hidden=6", "norm=batch", "options.gate=true"),
    ("hgt", "heads=2", "hidden=6", "norm=batch"),
    ("rgat", "heads=2", "hidden=6", "norm=batch"),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting[0])
@pytest.mark.parametrize("active", ["true", "false", "backward"])
def test_losses_equal_the_reference(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...], active: str
) -> None:
    name, *options = setting
    graph = training.make_graph(weighted=True)
    if name in ("rgcn", "rgat", "hgt"):
        graph = graph.with_relations()
    store = training.write_store(comm, comm_tmp_path, graph)
    words = [f"model.{each}" for each in (f"name={name}", "dropout=0.4", *options)]
    method = "aware" if name == "rgat" else "joint"
    spread = (f"exchange.method={method}", f"exchange.active_sets={active}", "train.dtype=float64")
    quiet = ("train.epochs=3", "train.evaluate_every=3", "run.save_predictions=false")
    config = training.make_config(store, comm_tmp_path / "run", *words, *spread, *quiet)
    assert_reference(comm, training.train(comm, config), graph, config, 1e-11)


def test_running_statistics_survive_a_resume(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph())
    words = ("model.norm=batch", "train.epochs=5", "run.checkpoint_every=1", "model.dropout=0.2")
    whole = training.train(comm, training.make_config(store, comm_tmp_path / "whole", *words))
    config = training.make_config(store, comm_tmp_path / "parts", *words)
    training.train(comm, config, training.StopAfter(2))
    parts = training.train(comm, config)
    assert any(name.endswith("norms.0.running_mean") for name in parts.tensors())
    training.assert_same(whole, parts)


BATCH_NORMALISED = ("gcn", "sage", "gat", "gin", "mixhop", "rgcn", "sign", "transformer", "hgt")


@pytest.mark.parametrize("name", BATCH_NORMALISED)
def test_rounding_does_not_reach_running_means(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str
) -> None:
    """The gradient of a bias before the norm is only rounding, with which Adam makes full steps."""
    graph = training.make_graph(num_nodes=40)
    store = training.write_store(comm, comm_tmp_path, graph)
    words = (f"model.name={name}", "model.norm=batch", "model.dropout=0", "train.epochs=3")
    found = []
    for dtype in ("float32", "float64"):
        config = training.make_config(
            store, comm_tmp_path / dtype, *words, f"train.dtype={dtype}", "model.hidden=16"
        )
        found.append(training.train(comm, config).column("valid_loss"))
    np.testing.assert_allclose(*found, rtol=3e-6)


def num_weights(run: training.Run) -> int:
    """Return the number of weight matrices of the first layer."""
    (name,) = (each for each in run.tensors() if each.endswith("model/layers.0.matrices"))
    return len(run.tensors()[name])


def test_relations_are_those_that_are_named(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = training.write_store(comm, comm_tmp_path, training.make_graph().with_relations())
    words = ("model.name=rgcn", "graph.relations=['names', 'nothing']", "train.epochs=1")
    both = training.train(comm, training.make_config(store, comm_tmp_path / "both", *words))
    assert num_weights(both) == 4
    one_way = training.train(
        comm, training.make_config(store, comm_tmp_path / "one", *words, "graph.reverse=false")
    )
    assert num_weights(one_way) == 2
    config = training.make_config(store, comm_tmp_path / "bases", *words, "model.num_bases=5")
    with pytest.raises(CollectiveInputError, match="there are only 4 relations; lower it"):
        training.train(comm, config)


def test_a_typed_model_needs_its_relations(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    graph = training.make_graph().with_relations()
    store = training.write_store(comm, comm_tmp_path, graph)
    run = training.train(
        comm,
        training.make_config(store, comm_tmp_path / "run", "model.name=rgcn", "train.epochs=1"),
    )
    (comm_tmp_path / "other").mkdir(exist_ok=True)
    fewer = {name: each for name, each in graph.relations.items() if name != "names"}
    other = training.write_store(comm, comm_tmp_path / "other", replace(graph, relations=fewer))
    with ProcessGrid(comm) as grid:
        saved = open_saved_model(run.path, None, str(other))
        with pytest.raises(CollectiveInputError, match="does not fit the model: relations"):
            load_saved_graph(grid, saved)
