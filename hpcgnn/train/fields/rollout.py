"""Rollouts: a model reads what it has predicted, step after step, beside the truth where known.

What is not predicted is taken from the store: other inputs, fields of edges, and the targets of
fixed nodes; behind the last step of a trajectory they stay as they were there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.spmd import collective
from hpcgnn.train.fields.metrics import FieldErrors
from hpcgnn.train.fields.samples import Sample
from hpcgnn.train.fields.scales import Scale
from hpcgnn.train.fields.steps import Unroller


@dataclass(frozen=True, eq=False)
class RolledStep:
    """A step of a rollout.

    Parameters
    ----------
    step
        Of the series; those behind its end go on counting.
    values
        (n, W) float64, the targets of the local nodes.
    given
        (n, other inputs) as read, of this step or the last one of the trajectory.
    truth
        (n, W) as read, NaN where missing; None behind the end of the trajectory.
    unchanged
        (n, W) float64, the targets that were read last before the rollout.
    """

    step: int
    values: Tensor
    given: Tensor
    truth: Tensor | None
    unchanged: Tensor


class RolloutErrors:
    """How far rollouts are from the truth after each number of steps.

    Beside the model stands what knows nothing: that all stays as it was before the rollout.
    """

    def __init__(self, unroller: Unroller, scale: Scale, steps: int) -> None:
        self._unroller, columns = unroller, unroller.series.columns
        fields, width = columns.targets, columns.num_predicted
        self._mean, self._size = (
            torch.from_numpy(column[:width]) for column in (scale.mean, scale.deviation)
        )
        self._fields = [field.name for field in fields]
        self._errors, self._unchanged = (
            [FieldErrors(fields, scale.deviation[:width]) for _ in range(steps)] for _ in range(2)
        )

    @collective
    def add(self, step: int, rolled: RolledStep) -> None:
        """Take a step that has a truth, so many after the first."""
        assert rolled.truth is not None
        truth, series = rolled.truth.double(), self._unroller.series
        is_known = ~truth.isnan()
        weights = (series.weights * ~series.fixed)[:, None] * is_known
        truth = torch.where(is_known, truth, self._mean)
        scaled, sums = (truth - self._mean) / self._size, self._unroller.dynamics.view.sums
        for errors, values in (
            (self._errors[step], rolled.values),
            (self._unchanged[step], rolled.unchanged),
        ):
            errors.add(weights, (values - truth) / self._size, truth, scaled, sums)

    def told(self) -> dict[str, Any]:
        """Return by metric and field the numbers after 1, 2, ... steps; {} without any."""
        rows = [scores.metrics() for scores in self._errors]
        still = [scores.metrics() for scores in self._unchanged]
        rows, still = ([row for row in table if row] for table in (rows, still))
        if not rows:
            return {}
        of_model = {
            metric: {name: [row.get(f"{metric}_{name}") for row in rows] for name in self._fields}
            for metric in ("rmse", "rel_l2", "r2")
        }
        unchanged = {name: [row.get(f"rmse_{name}") for row in still] for name in self._fields}
        return {"steps": len(rows), **of_model, "unchanged_rmse": unchanged}


class Rollouts:
    """Rollouts of models of one series.

    Parameters
    ----------
    scale
        Of frames, for errors.
    num_nodes
        Of the whole graph.
    """

    def __init__(self, grid: ProcessGrid, unroller: Unroller, scale: Scale, num_nodes: int) -> None:
        self.grid, self.unroller, self.num_nodes = grid, unroller, num_nodes
        self.series, self._scale = unroller.series, scale

    def errors(self, steps: int) -> RolloutErrors:
        """Return what takes the errors of so many steps."""
        return RolloutErrors(self.unroller, self._scale, steps)

    @property
    def first_step(self) -> int:
        """Steps between an anchor and what is predicted first."""
        return 0 if self.unroller.dynamics.predict == "same" else 1

    @property
    def usual_start(self) -> int:
        """The first step of the test part that a rollout may start from, or else of another."""
        windows = self.series.windows
        anchors = (windows.anchors(part, self.first_step) for part in ("test", "valid", "train"))
        return next((int(anchor[0]) for anchor in anchors if len(anchor)), windows.history - 1)

    @collective
    def roll(self, model: Any, anchor: int, steps: int) -> Iterator[RolledStep]:
        """Yield predicted steps after an anchor, or from it on where targets are of the same time.

        Raises `CollectiveInputError` when a step does not read.
        """
        dynamics, series, shift = self.unroller.dynamics, self.series, self.first_step
        width, last = series.columns.num_predicted, series.last_step(anchor)
        sample = self._frames(anchor - series.windows.history + 1, anchor)
        frames, edges = self.unroller.read(sample, 0, None), sample.edges
        unchanged = frames[-1][:, :width]
        for step in range(anchor + shift, anchor + shift + steps):
            at = self._frames(min(step, last), min(step, last))
            raw = at.frames[0]
            if not shift and step > anchor:
                frames, edges = [*frames[1:], dynamics.filled(raw)], _slid(edges, at)
            with torch.no_grad():
                outputs = dynamics.outputs(model, frames, [edges], None)
            predicted = dynamics.predicted(outputs, frames[-1])
            following = dynamics.follow(predicted, dynamics.filled(raw))
            truth = raw[:, :width] if step <= last else None
            yield RolledStep(step, following[:, :width], raw[:, width:], truth, unchanged)
            if shift:
                frames, edges = [*frames[1:], following], _slid(edges, at)

    @collective
    def judge(self, model: Any, starts: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Return the errors of rollouts from some anchors over so many steps each."""
        errors = self.errors(max((steps for _, steps in starts), default=0))
        for anchor, steps in starts:
            for step, rolled in enumerate(self.roll(model, anchor, steps)):
                errors.add(step, rolled)
        metrics = errors.told()
        return {"starts": [anchor for anchor, _ in starts], **metrics} if metrics else {}

    @collective
    def _frames(self, first: int, last: int) -> Sample:
        samples: list[Sample] = []
        with agree(self.grid.world):
            samples.append(self.series.frames(first, last))
        return samples[0]


def _slid(edges: Tensor, step: Sample) -> Tensor:
    """Return the frames of edges one step later."""
    return torch.cat([edges[1:], step.edges])
