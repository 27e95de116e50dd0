"""Rollouts: a model reads its own predictions, step after step, and is compared with the truth.

Values that are not predicted come from the store: other inputs, and the targets of fixed nodes.
Beyond the last step of a trajectory they keep the values of that step. Targets without a value at
any step are read as missing, as in training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.spmd import collective
from hpcgnn.train.fields.dynamics import Dynamics, RowDynamics, Scales
from hpcgnn.train.fields.frames import Frame
from hpcgnn.train.fields.metrics import FieldErrors, Judged
from hpcgnn.train.fields.samples import Sample
from hpcgnn.train.fields.steps import Unroller


@dataclass(frozen=True, eq=False)
class RolledStep:
    """A step of a rollout.

    `step` is its number in the series; steps beyond the end are numbered on. `values` (rows, W)
    float64 are targets of the local nodes and edges, as the next step reads them; `read` is the
    stored frame of this step, or of the last one of the trajectory, NaN where missing; `is_known`
    tells whether this step is in the trajectory. `unchanged` (rows, W) float64 are targets of the
    last frame that the model read from the store, means where they were missing; NaN if targets are
    predicted at the same step.
    """

    step: int
    values: Frame
    read: Frame
    is_known: bool
    unchanged: Frame


class RolloutErrors:
    """The errors of rollouts after each number of steps.

    The baseline beside the model predicts that nothing changes: it repeats the last frame that the
    model read from the store. So both have errors of the same values.
    """

    def __init__(self, unroller: Unroller, scales: Scales, steps: int) -> None:
        self._unroller, columns = unroller, unroller.series.columns
        rows = columns.rows
        sizes = rows.map(lambda row, scales: scales.frames.deviation[: row.num_predicted], scales)
        self._fields = [field.name for field in columns.targets]
        self._errors, self._unchanged = (
            [FieldErrors(columns, sizes) for _ in range(steps)] for _ in range(2)
        )

    @collective
    def add(self, step: int, rolled: RolledStep) -> None:
        """Add a step whose truth is known; `step` is counted from 0 in the rollout."""

        def compare(rows: RowDynamics, weights: Tensor, raw: Tensor, values: Tensor) -> Judged:
            mean, size = rows.mean[: rows.width], rows.deviation[: rows.width]
            truth = rows.filled(raw)[:, : rows.width]
            return Judged((values - truth) / size, weights, truth, (truth - mean) / size)

        dynamics, counted = self._unroller.dynamics, self._unroller.counted
        for errors, values, weights in (
            (self._errors[step], rolled.values, counted(rolled.read)),
            (
                self._unchanged[step],
                rolled.unchanged.map(torch.nan_to_num),
                counted(rolled.read, rolled.unchanged),
            ),
        ):
            errors.add(dynamics.rows.map(compare, weights, rolled.read, values), dynamics.view.sums)

    def told(self) -> dict[str, Any]:
        """Return the errors by metric and field after 1, 2, ... steps; {} without any.

        An error is None where no truth is known.
        """
        rows = [scores.metrics() for scores in self._errors]
        while rows and not rows[-1]:
            rows.pop()
        if not rows:
            return {}
        still = [scores.metrics() for scores in self._unchanged[: len(rows)]]
        of_model = {
            metric: {name: [row.get(f"{metric}_{name}") for row in rows] for name in self._fields}
            for metric in ("rmse", "rel_l2", "r2")
        }
        unchanged = {name: [row.get(f"rmse_{name}") for row in still] for name in self._fields}
        return {"steps": len(rows), **of_model, "unchanged_rmse": unchanged}


class Rollouts:
    """Rollouts of models of one series, on a graph of `num_nodes`."""

    def __init__(
        self, grid: ProcessGrid, unroller: Unroller, scales: Scales, num_nodes: int
    ) -> None:
        self.grid, self.unroller, self.num_nodes = grid, unroller, num_nodes
        self.series, self._scales = unroller.series, scales

    def errors(self, steps: int) -> RolloutErrors:
        """Return empty error sums for rollouts of `steps` steps."""
        return RolloutErrors(self.unroller, self._scales, steps)

    def target_means(self) -> dict[str, list[float]]:
        """Return the means of the targets' columns, read where a value is missing."""
        return {
            field.name: scales.frames.mean[rows.slices[field.name]].tolist()
            for rows, scales in zip(self.series.columns.rows, self._scales, strict=True)
            for field in rows.targets
        }

    @property
    def first_step(self) -> int:
        """The number of steps from an anchor to the first predicted step."""
        return 0 if self.unroller.dynamics.predict == "same" else 1

    @property
    def usual_start(self) -> int:
        """The first possible anchor of the test part, or else of validation or training."""
        windows = self.series.windows
        anchors = (windows.anchors(part, self.first_step) for part in ("test", "valid", "train"))
        return next((int(anchor[0]) for anchor in anchors if len(anchor)), windows.history - 1)

    @collective
    def roll(self, model: Any, anchor: int, steps: int) -> Iterator[RolledStep]:
        """Yield the predicted steps after an anchor, or from it on if `predict` is "same".

        Raises `CollectiveInputError` if a step cannot be read.
        """
        dynamics, series, shift = self.unroller.dynamics, self.series, self.first_step
        last = series.last_step(anchor)
        sample = self._frames(anchor - series.windows.history + 1, anchor)
        frames = self.unroller.read(sample)
        unchanged = _targets(dynamics, frames[-1])
        if not shift:
            # The anchor itself is predicted first, so no earlier targets are read.
            unchanged = unchanged.map(lambda rows: torch.full_like(rows, torch.nan))
        for step in range(anchor + shift, anchor + shift + steps):
            raw = self._frames(min(step, last), min(step, last)).at(0)
            if not shift and step > anchor:
                frames = [*frames[1:], dynamics.filled(raw)]
            with torch.no_grad():
                outputs = dynamics.outputs(model, frames, None)
            predicted = dynamics.predicted(outputs, frames[-1])
            following = dynamics.follow(predicted, dynamics.filled(raw))
            values = _targets(dynamics, following)
            yield RolledStep(step, values, raw, step <= last, unchanged)
            if shift:
                frames = [*frames[1:], following]

    @collective
    def judge(self, model: Any, starts: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Return the errors of rollouts; `starts` holds their anchors and numbers of steps."""
        errors = self.errors(max((steps for _, steps in starts), default=0))
        for anchor, steps in starts:
            for step, rolled in enumerate(self.roll(model, anchor, steps)):
                errors.add(step, rolled)
        metrics = errors.told()
        return {"starts": [anchor for anchor, _ in starts], **metrics} if metrics else {}

    @collective
    def _frames(self, first: int, last: int) -> Sample:
        with agree(self.grid.world):
            return self.series.frames(first, last)


def _targets(dynamics: Dynamics, frame: Frame) -> Frame:
    return dynamics.rows.map(lambda rows, frame: frame[:, : rows.width], frame)
