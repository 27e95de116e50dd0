"""Losses over several steps: their gradients, the fed-back values, and user-defined losses."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.context import Context
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.fields.losses import Predicted, squared_error
from hpcgnn.train.tasks import Task, load_task
from tests.support.series import field_config, planted, with_flows, with_holes, write_series

MODULE = "tests.train.fields.test_unrolled"
OF_EDGES = (
    "model.name=meshgraphnet",
    "graph.positions=relative",
    "model.hidden=8",
    "model.options.maps=2",
)


def own(step: Predicted) -> Tensor:
    """Return the squared error, plus a penalty with its own fields and operators."""
    (operator,) = step.view.operators.values()
    assert operator.shape[0] == len(step.values["u"]) == len(step.positions)
    assert step.times[1] > step.times[0]
    assert torch.isfinite(step.before["u"]).all()
    change = step.values["u"] - step.before["u"]
    return squared_error(step) + 1e-3 * (step.weights * change).square().sum() / step.size


def loss_of(task: Task, model: torch.nn.Module) -> Tensor:
    """Return this rank's share of the loss of the first step of an epoch."""
    steps = task.steps(1, 0)
    return next(steps)(model)


@pytest.mark.parametrize(
    "words",
    [
        ("fields.predict=difference", "fields.noise=0.1"),
        ("fields.predict=next", "fields.inputs=['u', 'p']", "fields.history=2"),
        ("fields.predict=next", f"fields.loss={MODULE}:own", "fields.fixed=feature:1"),
        ("fields.edge_targets=['q', 'w']", "fields.predict=difference", *OF_EDGES),
        ("fields.edge_targets=q", "fields.edge_inputs=['w', 'q']", "fields.targets=[]", *OF_EDGES),
    ],
)
def test_gradients_are_finite_differences(
    comm: MPI.Intracomm, comm_tmp_path: Path, words: tuple[str, ...]
) -> None:
    store = write_series(comm, comm_tmp_path, with_flows(with_holes(planted())))
    more = ("fields.unroll=3", "fields.batch=2", "model.num_layers=2", "model.activation=elu")
    config = field_config(store, comm_tmp_path / "run", *more, *words)
    with ProcessGrid(comm, 1) as grid:
        task = load_task(Context.open(grid, config, TraceRecorder.off()))
        model = task.objective.make_model(1)
        loss_of(task, model).backward()
        for number, parameter in enumerate(model.parameters()):
            # Gradients are summed over all ranks, so each parameter is checked on one rank.
            if number % comm.size:
                continue
            found = grid.layer.allreduce(parameter.grad.numpy())
            place = np.unravel_index(number % parameter.numel(), parameter.shape)
            sides = []
            for shift in (1e-6, -2e-6):
                with torch.no_grad():
                    parameter[place] += shift
                    sides.append(grid.layer.allreduce(float(loss_of(task, model))))
            with torch.no_grad():
                parameter[place] += 1e-6
            np.testing.assert_allclose(found[place], (sides[0] - sides[1]) / 2e-6, rtol=2e-5)


def test_steps_follow_one_another(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    fields = planted()
    store = write_series(comm, comm_tmp_path, fields)
    words = ("fields.unroll=3", "fields.inputs=['u', 'p']", "fields.fixed=feature:1")
    config = field_config(store, comm_tmp_path / "run", *words)
    with ProcessGrid(comm, 1) as grid:
        objective = load_task(Context.open(grid, config, TraceRecorder.off())).objective
        model, unroller = objective.make_model(1), objective.unroller
        sample, keys = objective.series.sample(2, 3), [None] * 3
        ids = objective.graph.products.node_ids
        frames, before = unroller.read(sample), None
        for step, lasts, every in unroller.unroll(model, [sample], [frames], keys):
            last, outputs = lasts[0].nodes, every[0].nodes
            whole = {name: array[2 + step - 1][ids] for name, array in fields.values.items()}
            if step > 1:
                # Prescribed: p at all nodes, u at the fixed ones.
                np.testing.assert_allclose(last[:, 2:].detach(), whole["p"], rtol=1e-12)
                fixed = ids < 3
                assert objective.series.fixed.nodes.tolist() == fixed.tolist()
                np.testing.assert_allclose(last[fixed, :2].detach(), whole["u"][fixed], rtol=1e-12)
                free = last[~fixed, :2].detach()
                np.testing.assert_array_equal(free, before[~fixed])
            before = unroller.dynamics.rows.nodes.predicted(outputs, last).detach()
            scale = objective.scales.nodes.outputs
            expected = outputs.detach().numpy() * scale.deviation + scale.mean
            np.testing.assert_allclose(before, expected, rtol=1e-12)
