"""Rows that a backward pass fetches again are rounded as in its forward pass."""

from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch

from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.graph.context import Context
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.fields.dynamics import Dynamics
from hpcgnn.train.tasks import load_task
from tests.support.series import field_config, planted, with_flows, write_series
from tests.support.training import make_config, make_graph, write_store

SEED, EPOCH = 5, 2
LAYERS = (
    "model.num_layers=3",
    "model.hidden=8",
    "model.dropout=0.2",
    # Kept products are not rounded, and only one of the schedules keeps them.
    "exchange.keep_products=never",
)
KEPT, AGAIN = (
    ("exchange.schedule=resident", "exchange.keep_states=always"),
    ("exchange.schedule=sequential", "exchange.keep_states=always"),
)
SUMS = ("gcn", "sage", "rgcn", "mixhop")
MESSAGES = ("gine", "nnconv", "pna", "gatedgcn", "meshgraphnet")
ATTENTION = ("gat", "gatv2", "rgat", "transformer", "hgt")


def gradient(comm: MPI.Intracomm, config: Config) -> np.ndarray:
    """Return the gradient of the first step of an epoch, all parameters concatenated."""
    with ProcessGrid(comm) as grid:
        task = load_task(Context.open(grid, config, TraceRecorder.off()))
        model = task.objective.make_model(SEED)
        grid.run_position.begin(SEED, EPOCH)
        loss = next(task.steps(SEED, EPOCH))(model)
        with grid.run_position.backward():
            loss.backward()
        found = [torch.zeros_like(e) if e.grad is None else e.grad for e in model.parameters()]
        total = np.concatenate([each.numpy().astype(np.float64).ravel() for each in found])
        grid.layer.Allreduce(MPI.IN_PLACE, total)
        return total


def check(one: np.ndarray, other: np.ndarray) -> None:
    """Two draws differ by at least a hundredth, sums in other orders by about 1e-7."""
    assert np.linalg.norm(one - other) <= 2e-5 * np.linalg.norm(one)


@pytest.mark.several_ranks
@pytest.mark.parametrize("wire", ["int4", "int8/native", "native/int8"])
@pytest.mark.parametrize("name", [*SUMS, *MESSAGES, *ATTENTION])
def test_a_sequential_schedule_keeps_the_draw(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, wire: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph().with_relations(), edge_width=2)
    words = (f"model.name={name}", *LAYERS, f"exchange.wire={wire}")
    one, other = (
        gradient(comm, make_config(store, comm_tmp_path / "run", *words, *more))
        for more in (KEPT, AGAIN)
    )
    check(one, other)


@pytest.mark.several_ranks
@pytest.mark.parametrize("wire", ["int4", "int8/native", "native/int8"])
@pytest.mark.parametrize("name", ["gatedgcn", "meshgraphnet"])
@pytest.mark.parametrize("schedule", ["resident", "sequential"])
def test_states_that_are_made_again_keep_it(
    comm: MPI.Intracomm, comm_tmp_path: Path, name: str, wire: str, schedule: str
) -> None:
    store = write_store(comm, comm_tmp_path, make_graph().with_relations(), edge_width=2)
    words = (f"model.name={name}", *LAYERS, f"exchange.wire={wire}")
    never = ("exchange.keep_states=never", f"exchange.schedule={schedule}")
    one, other = (
        gradient(comm, make_config(store, comm_tmp_path / "run", *words, *more))
        for more in (KEPT, never)
    )
    check(one, other)


@pytest.mark.several_ranks
@pytest.mark.parametrize("wire", ["int4", "int8/native", "native/int8"])
@pytest.mark.parametrize("name", ["gcn", "rgcn", "gat", "gatedgcn fields.edge_targets=q"])
def test_unrolled_steps_keep_it(
    comm: MPI.Intracomm,
    comm_tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    wire: str,
) -> None:
    store = write_series(comm, comm_tmp_path, replace(with_flows(planted()), edge_features=True))
    words = ("fields.unroll=3", "train.dtype=float32", *f"model.name={name}".split(), *LAYERS)
    config = field_config(store, comm_tmp_path / "run", *words, f"exchange.wire={wire}", *KEPT)
    again = gradient(comm, config)
    monkeypatch.setattr(Dynamics, "made_again", Dynamics.outputs)
    check(gradient(comm, config), again)
