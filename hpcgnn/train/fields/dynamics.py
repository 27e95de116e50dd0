"""A model of fields as a function from frames to the next frame.

Frames are float64 tensors in physical units without missing values, a row for each node and for
each edge, the columns of the targets first, see `Columns`. With mean m and deviation s of frames
x, M and S of what is given:

    same, next:   y = M + S model((x - m) / s)
    difference:   y = x + M + S model((x - m) / s)

What is read of nodes is behind their features that do not change, and what is read of edges
behind theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import Moment
from hpcgnn.nn import GraphView, NodeFeatures, TypedRows
from hpcgnn.nn.norm import running_means_stay
from hpcgnn.spmd import collective
from hpcgnn.train.fields.frames import ByRows, Columns, Frame, RowColumns
from hpcgnn.train.fields.scales import Scale
from hpcgnn.typing import GlobalIndices


class RowScales(NamedTuple):
    """The scales of the columns of a frame of some rows, and of what a model gives of them."""

    frames: Scale
    outputs: Scale


Scales: TypeAlias = ByRows[RowScales]

_NAMES = ByRows(("frames", "outputs"), ("edges", "edge_outputs"))
"""Of scales in checkpoints."""


def unit_scales(columns: Columns) -> Scales:
    """Return those that change nothing."""
    return columns.rows.map(
        lambda rows: RowScales(Scale.unit(rows.width), Scale.unit(rows.num_predicted))
    )


def scale_tensors(scales: Scales) -> dict[str, Tensor]:
    """Return them in the form that checkpoints hold; nothing of what has no columns."""
    names, found = (*_NAMES.nodes, *_NAMES.edges), (*scales.nodes, *scales.edges)
    pairs = zip(names, found, strict=True)
    tensors = [scale.tensors(name) for name, scale in pairs if len(scale.mean)]
    return {name: tensor for each in tensors for name, tensor in each.items()}


def scales_of(tensors: Mapping[str, Tensor]) -> Scales:
    """Return what `scale_tensors` was given."""

    def find(name: str) -> Scale:
        there = f"{name}/mean" in tensors
        return Scale.from_tensors(name, tensors) if there else Scale.unit(0)

    return _NAMES.map(lambda names: RowScales(*map(find, names)))


@dataclass(frozen=True, eq=False)
class Mesh:
    """The rows of a graph, or of several copies of it.

    Parameters
    ----------
    static
        Features that do not change.
    fixed
        (n,) and (E,) rows whose targets are given.
    absent
        (n, W) and (E, W) targets that no step has.
    moment
        Of its ranks.
    edge_targets
        (E,) int64 rows that the edges with fields end at, in the order of the store.
    """

    view: GraphView
    static: NodeFeatures
    fixed: Frame
    absent: Frame
    moment: Moment
    edge_targets: GlobalIndices


class RowDynamics:
    """What of a frame is predicted of nodes, or of edges, and how it is scaled.

    Parameters
    ----------
    fixed
        (rows,) whose targets are given.
    absent
        (rows, W) targets that no step has: what a model gives there means nothing.
    predict
        A name in `hpcgnn.config.fields.PREDICTIONS`.
    """

    def __init__(
        self, columns: RowColumns, scales: RowScales, fixed: Tensor, absent: Tensor, predict: str
    ) -> None:
        self.columns, self.fixed, self._predict = columns, fixed, predict
        self.width, self._stays = columns.num_predicted, fixed[:, None] | absent
        self.mean, self.deviation, self.output_mean, self.output_deviation = (
            torch.from_numpy(each).to(fixed.device)
            for scale in scales
            for each in (scale.mean, scale.deviation)
        )
        self.read = torch.from_numpy(columns.read).long().to(fixed.device)

    def filled(self, frame: Tensor) -> Tensor:
        """Return a frame as read in float64, its missing values replaced by means."""
        frame = frame.double()
        return torch.where(frame.isnan(), self.mean, frame)

    def moved(self, frame: Tensor, drawn: Tensor) -> Tensor:
        """Return a frame with noise in deviations (rows, any) on what a model reads.

        Fixed rows have none: what is given is exact.
        """
        noise = (drawn * self.deviation[self.read]).masked_fill(self.fixed[:, None], 0)
        return frame.index_add(1, self.read, noise)

    def inputs(self, frames: Sequence[Tensor]) -> Tensor:
        """Return the scaled columns (rows, any) that a model reads of frames, the oldest first."""
        scaled = [((frame - self.mean) / self.deviation)[:, self.read] for frame in frames]
        return torch.cat(scaled, dim=1)

    def predicted(self, outputs: Tensor, last: Tensor) -> Tensor:
        """Return the targets (rows, W) from what a model gives of the `last` frame."""
        values = outputs * self.output_deviation + self.output_mean
        if self._predict == "difference":
            values = values + last[:, : self.width]
        return values

    def scaled(self, truth: Tensor, last: Tensor) -> Tensor:
        """Return what a model should give for targets (rows, W) to be `truth`."""
        if self._predict == "difference":
            truth = truth - last[:, : self.width]
        return (truth - self.output_mean) / self.output_deviation

    def follow(self, predicted: Tensor, given: Tensor) -> Tensor:
        """Return the next frame: predicted targets, and what else is `given` of that step.

        `given` (rows, width) is filled; its targets count at fixed rows, and where they are absent.
        """
        if not self.width:
            # Without the history of what the model gives, which is no column of it.
            return given
        targets = torch.where(self._stays, given[:, : self.width], predicted)
        return torch.cat([targets, given[:, self.width :]], dim=1)

    def told(self, values: Tensor, raw: Tensor) -> Tensor:
        """Return targets (rows, W), NaN where they are given and missing in `raw`."""
        return values.masked_fill(self._stays & raw[:, : self.width].isnan(), torch.nan)


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
        self.view, self.predict, self._mesh = mesh.view, predict, mesh
        self._columns, self._scales, self._dtype = columns, scales, dtype
        self.rows: ByRows[RowDynamics] = columns.rows.map(
            partial(RowDynamics, predict=predict), scales, mesh.fixed, mesh.absent
        )

    def side_by_side(self, view: GraphView, copies: int) -> "Dynamics":
        """Return the same on the view of some copies of the graph, whose rows are one by one."""
        mesh = self._mesh
        count = len(mesh.fixed.nodes)
        static = mesh.static[torch.arange(count).repeat(copies)]
        first = count * np.arange(copies)[:, None]
        targets = (first + mesh.edge_targets).reshape(-1)
        fixed = mesh.fixed.map(lambda rows: rows.repeat(copies))
        absent = mesh.absent.map(lambda rows: rows.repeat(copies, 1))
        mesh = Mesh(view, static, fixed, absent, mesh.moment, targets)
        return Dynamics(mesh, self._columns, self._scales, self.predict, self._dtype)

    def filled(self, frame: Frame) -> Frame:
        """Return a frame as read in float64, its missing values replaced by means."""
        return self.rows.map(RowDynamics.filled, frame)

    def predicted(self, outputs: Frame, last: Frame) -> Frame:
        """Return the targets from what a model gives of the `last` frame."""
        return self.rows.map(RowDynamics.predicted, outputs, last)

    def follow(self, predicted: Frame, given: Frame) -> Frame:
        """Return the next frame: predicted targets, and what else is `given` of that step."""
        return self.rows.map(RowDynamics.follow, predicted, given)

    def inputs(self, frames: Sequence[Frame]) -> NodeFeatures:
        """Return what a model reads of nodes in the last frames, the oldest first."""
        rows = self.rows.nodes.inputs([frame.nodes for frame in frames]).to(self._dtype)
        static = self._mesh.static
        if isinstance(static, TypedRows):
            parts = zip(static.parts, static.rows, strict=True)
            joined = tuple(torch.cat([part, rows[places]], dim=1) for part, places in parts)
            return replace(static, parts=joined)
        return torch.cat([static, rows], dim=1)

    @collective
    def view_at(self, frames: Sequence[Frame]) -> GraphView:
        """Return the view of the graph with frames of edges among the features of its edges."""
        if not len(self.rows.edges.read):
            return self.view
        rows = self.rows.edges.inputs([frame.edges for frame in frames])
        return self.view.with_edge_columns(rows, self._mesh.edge_targets)

    @collective
    def outputs(self, model: Any, frames: Sequence[Frame], key: DropoutKey | None) -> Frame:
        """Return what a model gives of the last frames, predicted columns in float64."""
        nodes, edges = model.with_edges(self.view_at(frames), self.inputs(frames), key)
        if edges is None:
            edges = nodes.new_empty((len(self._mesh.fixed.edges), 0))
        return ByRows(nodes.double(), edges.double())

    @collective
    def made_again(self, model: Any, frames: Sequence[Frame], key: DropoutKey | None) -> Frame:
        """Return the same, without memory: the backward pass computes the model again."""
        moment = self._mesh.moment
        begun = moment.now

        def run(_needs_gradient: Tensor, *tensors: Tensor) -> Frame:
            read = [ByRows(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]
            if not torch.is_grad_enabled():
                # What needs a gradient decides which product of a layer comes first: it is told
                # here as it will be there.
                with torch.enable_grad():
                    return self.outputs(model, read, key).map(Tensor.detach)
            # The backward pass: this step has been counted.
            with moment.again(begun), running_means_stay(model):
                return self.outputs(model, read, key)

        # The first frames are data, without which gradients would not be asked for.
        needs_gradient = torch.zeros((), requires_grad=True)
        tensors = [tensor for frame in frames for tensor in frame]
        outputs = checkpoint(
            run, needs_gradient, *tensors, use_reentrant=True, preserve_rng_state=False
        )
        return ByRows(*outputs)
