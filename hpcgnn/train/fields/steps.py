"""Predict the steps of samples and compare them with the truth, for losses and metrics."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import CopiesOfGraph, DropoutKey, GraphSums, arithmetic
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.spmd import collective
from hpcgnn.train.fields.dynamics import Dynamics, RowDynamics
from hpcgnn.train.fields.frames import ByRows, Frame
from hpcgnn.train.fields.losses import Predicted
from hpcgnn.train.fields.metrics import Judged
from hpcgnn.train.fields.noise import Noise
from hpcgnn.train.fields.samples import Sample, Series

Frames: TypeAlias = Sequence[Sequence[Frame]]
"""For each sample, the frames that a model reads, oldest first."""


class Unroller:
    """Predicts the steps of samples, each from the predictions before it."""

    def __init__(
        self, dynamics: Dynamics, series: Series, graph: LocalGraph, noise: Noise | None = None
    ) -> None:
        self.dynamics, self.series, self._graph, self._noise = dynamics, series, graph, noise
        self.node_ids, self._history = graph.products.node_ids, series.windows.history
        self._wide: dict[tuple[int, ...], Dynamics] = {}
        self._free = series.weights.map(
            lambda weights, fixed: (weights * (~fixed).double())[:, None], series.fixed
        )

    def counted(self, truth: Frame, before: Frame | None = None) -> Frame:
        """Return the weights (rows, W) of predictions, 0 where a stored frame lacks the value.

        Predicted differences need the values of the frame `before` too.
        """

        def count(rows: RowDynamics, weights: Tensor, *frames: Tensor) -> Tensor:
            is_known = [~frame[:, : rows.width].isnan() for frame in frames]
            return weights * torch.stack(is_known).all(0)

        frames = [truth] if before is None else [truth, before]
        return self.dynamics.rows.map(count, self._free, *frames)

    def weights(self, sample: Sample, step: int) -> Frame:
        """Return the weights (rows, W) of the predictions `step` steps after the anchor."""
        last = self._history - 1
        before = sample.at(last) if self.dynamics.predict == "difference" else None
        return self.counted(sample.at(last + step), before)

    @collective
    def sizes(self, samples: Sequence[Sample], steps: Sequence[int]) -> list[list[ByRows[float]]]:
        """Return the sums of the weights over all ranks, by sample and step.

        They are multiplied by the ratio of all predicted columns to those of nodes, or of edges,
        so that the mean errors of both add up.
        """
        weights = [self.weights(sample, step) for sample in samples for step in steps]
        whole, sizes_by_rows = self.series.columns.num_predicted, []
        for rows, parts in zip(self.dynamics.rows, zip(*weights, strict=True), strict=True):
            columns = torch.stack([part.sum(1) for part in parts], dim=1)
            sums = np.zeros(len(parts) + 1)
            if rows.width:
                sums[:] = arithmetic().sums_and_count(columns, self.dynamics.view.sums)
                sums *= whole / rows.width
            # If all values are missing, the sum of errors is 0 too.
            sizes_by_rows.append(np.where(sums == 0, 1, sums)[:-1].tolist())
        sizes = [ByRows(*pair) for pair in zip(*sizes_by_rows, strict=True)]
        return [sizes[start : start + len(steps)] for start in range(0, len(sizes), len(steps))]

    def read(self, sample: Sample, key: DropoutKey | None = None) -> list[Frame]:
        """Return the first frames that a model reads, with noise if there is a key."""
        frames, rows = [], self.dynamics.rows
        for index in range(self._history):
            frame = self.dynamics.filled(sample.at(index))
            if self._noise is not None and key is not None:
                drawn = self._noise.draw(rows.map(lambda row: len(row.read)), key, index)
                frame = rows.map(RowDynamics.moved, frame, drawn)
            frames.append(frame)
        return frames

    def judge(self, sample: Sample, step: int, last: Frame, outputs: Frame) -> ByRows[Judged]:
        """Return the model's `outputs` compared with the truth; `last` is the last frame read."""

        def compare(
            rows: RowDynamics, weights: Tensor, raw: Tensor, last: Tensor, outputs: Tensor
        ) -> Judged:
            truth = rows.filled(raw)[:, : rows.width]
            scaled = rows.scaled(truth, last)
            return Judged(torch.where(weights > 0, outputs - scaled, 0), weights, truth, scaled)

        weights, raw = self.weights(sample, step), sample.at(self._history - 1 + step)
        return self.dynamics.rows.map(compare, weights, raw, last, outputs)

    @collective
    def side_by_side(self, numbers: tuple[int, ...]) -> Dynamics:
        """Return the dynamics of one copy of the graph per number; kept for the same `numbers`."""
        if numbers == (0,):
            return self.dynamics
        if numbers not in self._wide:
            assert self._graph.adjacency is not None
            view, count = self._graph.adjacency.side_by_side(numbers).view, len(numbers)
            rows = CopiesOfGraph(count, len(view.node_ids) // count, view.sums)
            view = replace(view, sums=GraphSums(view.sums, rows))
            self._wide[numbers] = self.dynamics.side_by_side(view, count)
        return self._wide[numbers]

    @collective
    def unroll(
        self, model: Any, samples: Sequence[Sample], frames: Frames, keys: Sequence[DropoutKey]
    ) -> Iterator[tuple[int, Sequence[Frame], Sequence[Frame]]]:
        """Yield each step after the anchors: its number, the last frames read, the outputs.

        All samples are computed in one pass and share its messages; frames, of which `frames` are
        the first, see `read`, are yielded by sample. `keys` has one key per step; with several, the
        backward pass recomputes the model.
        """
        dynamics = self.side_by_side(tuple(sample.number for sample in samples))
        count = len(samples)
        compute = dynamics.made_again if len(keys) > 1 else dynamics.outputs
        first = 0 if dynamics.predict == "same" else 1
        read = [_joined(steps) for steps in zip(*frames, strict=True)]
        for step, key in enumerate(keys, first):
            outputs = compute(model, read, key)
            yield step, _by_sample(count, read[-1]), _by_sample(count, outputs)
            if step < len(keys):
                index = self._history - 1 + step
                known = _joined([dynamics.filled(sample.at(index)) for sample in samples])
                following = dynamics.follow(dynamics.predicted(outputs, read[-1]), known)
                read = [*read[1:], following]

    def told(
        self, sample: Sample, step: int, last: Frame, outputs: Frame, size: ByRows[float]
    ) -> Predicted:
        """Return a predicted step in the form that losses take."""
        series, judged = self.series, self.judge(sample, step, last, outputs)
        raw = sample.at(self._history - 1 + step).map(Tensor.double)
        values, columns = self.dynamics.predicted(outputs, last), series.columns.rows
        truth, before, predicted = (
            {
                name: rows[:, field_columns]
                for row_columns, rows in zip(columns, frame, strict=True)
                for name, field_columns in row_columns.slices.items()
                if field_columns.stop <= rows.shape[1]
            }
            for frame in (raw, last, values)
        )
        first, second = series.times[[sample.anchor, sample.anchor + step]].tolist()
        nodes, edges = judged
        return Predicted(
            values=predicted,
            truth=truth,
            before=before,
            errors=nodes.errors,
            weights=nodes.weights,
            size=size.nodes,
            view=self.dynamics.view,
            positions=series.positions,
            times=(first, second),
            of_edges=(edges.errors, edges.weights, size.edges),
        )


def _joined(frames: Sequence[Frame]) -> Frame:
    return ByRows(*map(torch.cat, zip(*frames, strict=True)))


def _by_sample(count: int, frame: Frame) -> Sequence[Frame]:
    parts = (rows.reshape(count, len(rows) // count, rows.shape[1]).unbind() for rows in frame)
    return [ByRows(*pair) for pair in zip(*parts, strict=True)]
