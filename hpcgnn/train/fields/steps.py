"""Predicted steps of samples beside their truth, of which losses and metrics are made."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hpcgnn.autograd import CopiesOfGraph, DropoutKey, GraphSums, arithmetic
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.spmd import collective
from hpcgnn.train.fields.dynamics import Dynamics
from hpcgnn.train.fields.losses import Predicted
from hpcgnn.train.fields.noise import normal
from hpcgnn.train.fields.samples import Sample, Series
from hpcgnn.typing import FloatArray

Frames: TypeAlias = Sequence[Sequence[Tensor]]
"""Of each of some samples the frames (n, width) that a model reads, the oldest first."""


@dataclass(frozen=True, eq=False)
class Judged:
    """What is compared of a predicted step, (n, W) float64 each; see `Predicted`.

    `truth` are the targets without missing values, `scaled` the truth of what the model gives.
    """

    errors: Tensor
    weights: Tensor
    truth: Tensor
    scaled: Tensor


class Unroller:
    """Predicts the steps of samples, each from what is predicted before."""

    def __init__(self, dynamics: Dynamics, series: Series, graph: LocalGraph) -> None:
        self.dynamics, self.series, self._graph = dynamics, series, graph
        self.node_ids = graph.products.node_ids
        self._wide: dict[tuple[int, ...], Dynamics] = {}
        self._width = series.columns.num_predicted
        free = series.weights * (~series.fixed).double()
        self._node_weights = free[:, None]

    @property
    def _history(self) -> int:
        return self.series.windows.history

    def counted(self, sample: Sample, step: int) -> Tensor:
        """Return the weights (n, W) of what is predicted `step` steps after the anchor."""
        last = self._history - 1
        is_known = ~sample.frames[last + step][:, : self._width].isnan()
        if self.dynamics.predict == "difference":
            # Without its beginning nothing tells what is added to it.
            is_known &= ~sample.frames[last][:, : self._width].isnan()
        return self._node_weights * is_known

    def edges(self, samples: Sequence[Sample], steps: int) -> list[Tensor]:
        """Return the frames of edges that a model reads so many steps after its first ones."""
        return [sample.edges[steps : steps + self._history] for sample in samples]

    @collective
    def sizes(self, samples: Sequence[Sample], steps: Sequence[int]) -> FloatArray:
        """Return (samples, steps) sums of the weights over all ranks, at least the tiniest one."""
        rows = [self.counted(sample, step).sum(1) for sample in samples for step in steps]
        sums = arithmetic().sums_and_count(torch.stack(rows, dim=1), self.dynamics.view.sums)
        # Where all is missing the sum of errors is 0 too.
        sums[sums == 0] = 1
        return sums[:-1].reshape(len(samples), len(steps))

    def read(self, sample: Sample, noise: float, key: DropoutKey | None) -> list[Tensor]:
        """Return the frames that a model reads first, with noise in units of their deviations."""
        dynamics, frames = self.dynamics, []
        for index in range(self._history):
            frame = dynamics.filled(sample.frames[index])
            if noise > 0 and key is not None:
                columns = dynamics.read
                word = DropoutKey(key.seed, key.step, index)
                drawn = torch.from_numpy(normal(self.node_ids, len(columns), word))
                drawn = drawn * (noise * dynamics.deviation[columns])
                frame[:, columns] += drawn.masked_fill(dynamics.fixed[:, None], 0)
            frames.append(frame)
        return frames

    def judge(self, sample: Sample, step: int, last: Tensor, outputs: Tensor) -> Judged:
        """Return what the model's `outputs` (n, W) are beside the truth; `last` is what it read."""
        dynamics, weights = self.dynamics, self.counted(sample, step)
        truth = dynamics.filled(sample.frames[self._history - 1 + step])[:, : self._width]
        scaled = dynamics.scaled(truth, last)
        errors = torch.where(weights > 0, outputs - scaled, 0)
        return Judged(errors, weights, truth, scaled)

    @collective
    def side_by_side(self, numbers: tuple[int, ...]) -> Dynamics:
        """Return the dynamics of copies of the graph; made once for the same `numbers`."""
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
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield the steps after the anchors: number, the last frames read, what the model gives.

        All samples are computed in one pass, whose messages they share; what is yielded is
        (samples, n, columns) each. With more than one key, of each step one, the model is computed
        again in the backward pass.

        Parameters
        ----------
        frames
            Of each sample, see `read`.
        """
        dynamics, count = (
            self.side_by_side(tuple(sample.number for sample in samples)),
            len(samples),
        )
        compute = dynamics.made_again if len(keys) > 1 else dynamics.outputs
        first = 0 if dynamics.predict == "same" else 1
        rows = [torch.cat(columns) for columns in zip(*frames, strict=True)]
        for step, key in enumerate(keys, first):
            outputs = compute(model, rows, self.edges(samples, step - first), key)
            yield step, _by_sample(rows[-1], count), _by_sample(outputs, count)
            if step < len(keys):
                frame = self._history - 1 + step
                inputs = torch.cat([dynamics.filled(sample.frames[frame]) for sample in samples])
                following = dynamics.follow(dynamics.predicted(outputs, rows[-1]), inputs)
                rows = [*rows[1:], following]

    def told(
        self, sample: Sample, step: int, last: Tensor, outputs: Tensor, size: float
    ) -> Predicted:
        """Return the step as a loss sees it."""
        series, judged = self.series, self.judge(sample, step, last, outputs)
        column_of = series.columns.places
        raw = sample.frames[self._history - 1 + step].double()
        values = self.dynamics.predicted(outputs, last)
        first, second = series.times[[sample.anchor, sample.anchor + step]].tolist()
        return Predicted(
            values={
                field.name: values[:, column_of[field.name]] for field in series.columns.targets
            },
            truth={name: raw[:, column] for name, column in column_of.items()},
            before={name: last[:, column] for name, column in column_of.items()},
            errors=judged.errors,
            weights=judged.weights,
            size=size,
            view=self.dynamics.view,
            positions=series.positions,
            times=(first, second),
        )


def _by_sample(rows: Tensor, count: int) -> Tensor:
    return rows.reshape(count, len(rows) // count, rows.shape[1])
