"""Every model and option, from the command's side: training equals the dense reference."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from tests.train.oracle import dense_losses
from tests.train.support import (
    StopAfter,
    assert_same,
    make_config,
    make_graph,
    train,
    write_store,
)

SETTINGS = [
    ("gcn", "norm=batch", "residual=true", "num_layers=3"),
    ("sage", "norm=graph", "jumping=max", "num_layers=3"),
    ("mixhop", "norm=layer", "activation=elu"),
    ("gin", "norm=batch"),
    ("appnp", "hops=3", "teleport=0.2"),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting[0])
@pytest.mark.parametrize("active", ["true", "false"])
def test_losses_equal_the_reference(
    comm: MPI.Intracomm, comm_tmp_path: Path, setting: tuple[str, ...], active: str
) -> None:
    graph = make_graph(weighted=True)
    store = write_store(comm, comm_tmp_path, graph)
    name, *options = setting
    words = [f"model.{each}" for each in (f"name={name}", "dropout=0.4", *options)]
    spread = ("exchange.method=joint", f"exchange.active_sets={active}", "train.dtype=float64")
    quiet = ("train.epochs=6", "train.evaluate_every=6", "run.save_predictions=false")
    config = make_config(store, comm_tmp_path / "run", *words, *spread, *quiet)
    losses = train(comm, config).column("train_loss")
    np.testing.assert_allclose(losses, dense_losses(graph, config, 6), rtol=1e-11)


def test_running_statistics_survive_a_resume(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    store = write_store(comm, comm_tmp_path, make_graph())
    words = ("model.norm=batch", "train.epochs=5", "run.checkpoint_every=1", "model.dropout=0.2")
    whole = train(comm, make_config(store, comm_tmp_path / "whole", *words))
    config = make_config(store, comm_tmp_path / "parts", *words)
    train(comm, config, StopAfter(2))
    parts = train(comm, config)
    assert any(name.endswith("norms.0.running_mean") for name in parts.tensors())
    assert_same(whole, parts)
