"""A model of fields as a function from frames to the next frame.

Frames are (n, width) float64 tensors in physical units without missing values, the columns of the
targets first, see `Columns`. With mean m and deviation s of frames x, M and S of what is given:

    same, next:   y = M + S model((x - m) / s)
    difference:   y = x + M + S model((x - m) / s)

Fields of edges are scaled likewise, and are features of edges behind those that do not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import Moment
from hpcgnn.nn import GraphView, NodeFeatures, TypedRows
from hpcgnn.nn.norm import running_means_stay
from hpcgnn.spmd import collective
from hpcgnn.train.fields.frames import Columns
from hpcgnn.train.fields.scales import Scale
from hpcgnn.typing import FloatArray, GlobalIndices

EdgeFrames: TypeAlias = Sequence[Tensor]
"""Of each copy of the graph the last frames (history, E, edge width) of its edges, as read."""


@dataclass(frozen=True, eq=False)
class Scales:
    """The scales of the columns of a frame, of what a model gives, and of a frame of edges."""

    frames: Scale
    outputs: Scale
    edges: Scale

    @classmethod
    def unit(cls, columns: Columns) -> "Scales":
        """Return those that change nothing."""
        widths = columns.width, columns.num_predicted, columns.edge_width
        return cls(*map(Scale.unit, widths))

    def tensors(self) -> dict[str, Tensor]:
        """Return them in the form that checkpoints hold; nothing of edges without such fields."""
        of_edges = self.edges.tensors("edges") if len(self.edges.mean) else {}
        return {**self.frames.tensors("frames"), **self.outputs.tensors("outputs"), **of_edges}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Scales":
        """Return what `tensors` gave."""
        edges = Scale.unit(0)
        if any(key.startswith("edges/") for key in tensors):
            edges = Scale.from_tensors("edges", tensors)
        frames, outputs = (Scale.from_tensors(name, tensors) for name in ("frames", "outputs"))
        return cls(frames, outputs, edges)


@dataclass(frozen=True, eq=False)
class Mesh:
    """The rows of a graph, or of several copies of it.

    Parameters
    ----------
    static
        Features that do not change.
    fixed
        (n,) nodes whose targets are given.
    moment
        Of its ranks.
    edge_targets
        (E,) int64 rows that the edges with fields end at, in the order of the store.
    """

    view: GraphView
    static: NodeFeatures
    fixed: Tensor
    moment: Moment
    edge_targets: GlobalIndices


class Dynamics:
    """What a model reads of frames, and what of a frame it predicts.

    Parameters
    ----------
    mesh
        The graph, or copies of it.
    predict
        A name in `hpcgnn.config.fields.PREDICTIONS`.
    dtype
        Of what models read.
    """

    def __init__(
        self,
        mesh: Mesh,
        columns: Columns,
        scales: Scales,
        predict: str,
        dtype: torch.dtype,
    ) -> None:
        self.view, self.fixed, self._static = mesh.view, mesh.fixed, mesh.static
        self.columns, self.predict, self._scales, self._dtype = columns, predict, scales, dtype
        self._moment, self._edge_targets = mesh.moment, mesh.edge_targets
        place = mesh.fixed.device
        self.mean = _row(scales.frames.mean, place)
        self.deviation = _row(scales.frames.deviation, place)
        self.output_mean = _row(scales.outputs.mean, place)
        self.output_deviation = _row(scales.outputs.deviation, place)
        self.edge_mean, self.edge_deviation = (
            _row(each, place) for each in (scales.edges.mean, scales.edges.deviation)
        )
        self.read = torch.from_numpy(columns.read).long().to(place)

    def side_by_side(self, view: GraphView, copies: int) -> "Dynamics":
        """Return the same on the view of some copies of the graph, whose rows are one by one."""
        rows = torch.arange(len(self.fixed)).repeat(copies)
        first = len(self.fixed) * np.arange(copies)[:, None]
        targets = (first + self._edge_targets).reshape(-1)
        mesh = Mesh(view, self._static[rows], self.fixed[rows], self._moment, targets)
        return Dynamics(mesh, self.columns, self._scales, self.predict, self._dtype)

    def filled(self, frame: Tensor) -> Tensor:
        """Return a frame as read in float64, its missing values replaced by means."""
        frame = frame.double()
        return torch.where(frame.isnan(), self.mean, frame)

    def inputs(self, frames: Sequence[Tensor]) -> NodeFeatures:
        """Return what a model reads of the last frames, the oldest first."""
        scaled = [((frame - self.mean) / self.deviation)[:, self.read] for frame in frames]
        rows = torch.cat(scaled, dim=1).to(self._dtype)
        if isinstance(self._static, TypedRows):
            parts = zip(self._static.parts, self._static.rows, strict=True)
            joined = tuple(torch.cat([part, rows[places]], dim=1) for part, places in parts)
            return replace(self._static, parts=joined)
        return torch.cat([self._static, rows], dim=1)

    @collective
    def view_at(self, edges: EdgeFrames) -> GraphView:
        """Return the view of the graph with the frames of edges among the features of its edges."""
        if not len(self.edge_mean):
            return self.view
        rows = []
        for copy in edges:
            known = torch.where(copy.isnan(), self.edge_mean, copy.double())
            scaled = (known - self.edge_mean) / self.edge_deviation
            rows.append(torch.cat(list(scaled), dim=1))
        return self.view.with_edge_columns(torch.cat(rows), self._edge_targets)

    @collective
    def outputs(
        self, model: Any, frames: Sequence[Tensor], edges: EdgeFrames, key: DropoutKey | None
    ) -> Tensor:
        """Return what a model gives (n, predicted columns) of the last frames, in float64."""
        outputs: Tensor = model(self.view_at(edges), self.inputs(frames), key)
        return outputs.double()

    @collective
    def made_again(
        self, model: Any, frames: Sequence[Tensor], edges: EdgeFrames, key: DropoutKey | None
    ) -> Tensor:
        """Return the same, without memory: the backward pass computes the model again."""
        begun = self._moment.now

        def run(_needs_gradient: Tensor, *frames: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                # What needs a gradient decides which product of a layer comes first: it is told
                # here as it will be there.
                with torch.enable_grad():
                    return self.outputs(model, frames, edges, key).detach()
            # The backward pass: this step has been counted.
            with self._moment.again(begun), running_means_stay(model):
                return self.outputs(model, frames, edges, key)

        # The first frames are data, without which gradients would not be asked for.
        needs_gradient = torch.zeros((), requires_grad=True)
        outputs: Tensor = checkpoint(
            run, needs_gradient, *frames, use_reentrant=True, preserve_rng_state=False
        )
        return outputs

    def predicted(self, outputs: Tensor, last: Tensor) -> Tensor:
        """Return the targets (n, predicted columns) from what a model gives of the `last` frame."""
        values = outputs * self.output_deviation + self.output_mean
        if self.predict == "difference":
            values = values + last[:, : values.shape[1]]
        return values

    def scaled(self, truth: Tensor, last: Tensor) -> Tensor:
        """Return what a model should give for targets (n, predicted columns) to be `truth`."""
        if self.predict == "difference":
            truth = truth - last[:, : truth.shape[1]]
        return (truth - self.output_mean) / self.output_deviation

    def follow(self, predicted: Tensor, given: Tensor) -> Tensor:
        """Return the next frame: predicted targets, and what else is `given` of that step.

        `given` (n, width) is filled; its targets count at fixed nodes.
        """
        width = predicted.shape[1]
        targets = torch.where(self.fixed[:, None], given[:, :width], predicted)
        return torch.cat([targets, given[:, width:]], dim=1)


def _row(values: FloatArray, place: torch.device) -> Tensor:
    return torch.from_numpy(values).to(place)
