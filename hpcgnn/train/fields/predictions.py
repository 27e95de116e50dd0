"""Write rollouts of trained models for the command ``predict``."""

import argparse
from typing import Any

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.config.options import require
from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.graph.context import Context
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.fields.objective import FieldObjective
from hpcgnn.train.fields.rollout_file import write_rollout
from hpcgnn.train.run.saved_model import SavedModel


@collective
def predict_fields(
    grid: ProcessGrid, saved: SavedModel, options: argparse.Namespace
) -> dict[str, Any]:
    """Write a rollout as the command's options say; return a summary of it."""
    context = Context.open(grid, saved.config, TraceRecorder.off())
    objective = FieldObjective.of_saved(context, saved)
    with agree(grid.world):
        start, steps = _start(objective, options)
    model = saved.model(grid, objective.make_model)
    span, place = (start, steps), (options.output, options.like)
    scores = write_rollout(objective.rollouts, model, span, *place, saved.origin())
    series, facts = objective.series, objective.facts
    _report_absent(objective, context.config.graph.store)
    beyond = steps - int(scores.get("steps", 0))
    fixed = grid.layer.allreduce(sum(int(rows.any()) for rows in series.fixed))
    has_given = series.columns.has_given or fixed > 0
    if beyond and has_given and grid.rank == 0:
        report(
            f"{beyond} steps are beyond the last one of the store: what is not predicted stays as "
            "it is there"
        )
    return {
        "output": str(options.output),
        "what": f"{steps} steps",
        "of": "nodes" if series.columns.rows.nodes.targets else "edges",
        "rows": facts.num_nodes if series.columns.rows.nodes.targets else facts.num_edges,
        "start": start,
        "ranks": grid.size,
        "rollout": scores,
        **saved.origin(),
    }


@collective
def _report_absent(objective: FieldObjective, store: str) -> None:
    series, layer = objective.series, objective.grid.layer
    missing = []
    for columns, absent in zip(series.columns.rows, series.absent, strict=True):
        for field in columns.targets:
            count = layer.allreduce(int(absent[:, columns.slices[field.name]].any(1).sum()))
            what = "edges" if field.of_edges else "nodes"
            missing += [f"{field.name} of {count:,} {what}"] if count else []
    if missing and objective.grid.rank == 0:
        report(f"missing, since {store} never has a value: {', '.join(missing)}")


def _start(objective: FieldObjective, options: argparse.Namespace) -> tuple[int, int]:
    """Return the last step that is read, and the number of steps to predict."""
    series, steps, anchor = objective.series, options.rollout, options.from_step
    require(steps >= 1, "--rollout", steps, "give a number from 1 on")
    if anchor is None:
        anchor = objective.rollouts.usual_start
    series.require_anchor(f"--from {anchor}", anchor)
    if objective.dynamics.predict == "same" and anchor + steps - 1 > series.last_step(anchor):
        raise InputError(
            f"--rollout {steps}: the trajectory ends with step {series.last_step(anchor)}, and "
            "the model reads each step that it predicts"
        )
    return anchor, steps
