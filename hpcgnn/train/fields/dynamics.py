"""A model of fields as a function from frames to the next frame.

Frames are float64 tensors in physical units without missing values, one row per node and per edge,
target columns first, see `Columns`. With mean m and deviation s of the frames x, and mean M and
deviation S of the model's outputs, the predicted targets y are:

    same, next:   y = M + S model((x - m) / s)
    difference:   y = x + M + S model((x - m) / s)

A model reads the static features of a node or an edge followed by the scaled columns of its frames.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from hpcgnn.autograd import DropoutKey
from hpcgnn.comm import RunPosition
from hpcgnn.nn import GraphView, NodeFeatures, TypedRows
from hpcgnn.nn.norm import running_means_stay
from hpcgnn.spmd import collective
from hpcgnn.train.fields.frames import ByRows, Columns, Frame, RowColumns
from hpcgnn.train.fields.scales import Scale
from hpcgnn.typing import GlobalIndices


class RowScales(NamedTuple):
    """The scales of the frame columns of nodes or edges, and of the model's outputs for them."""

    frames: Scale
    outputs: Scale


Scales: TypeAlias = ByRows[RowScales]

_NAMES = ByRows(("frames", "outputs"), ("edges", "edge_outputs"))
"""The names of scales in checkpoints."""


def unit_scales(columns: Columns) -> Scales:
    """Return scales that change nothing: mean 0 and deviation 1."""
    return columns.rows.map(
        lambda rows: RowScales(Scale.unit(rows.width), Scale.unit(rows.num_predicted))
    )


def scale_tensors(scales: Scales) -> dict[str, Tensor]:
    """Return scales as checkpoints hold them; rows without columns have no entry."""
    names, all_scales = (*_NAMES.nodes, *_NAMES.edges), (*scales.nodes, *scales.edges)
    pairs = zip(names, all_scales, strict=True)
    tensors = [scale.tensors(name) for name, scale in pairs if len(scale.mean)]
    return {name: tensor for scale_dict in tensors for name, tensor in scale_dict.items()}


def scales_of(tensors: Mapping[str, Tensor]) -> Scales:
    """Return the scales that `scale_tensors` turned into `tensors`."""

    def find(name: str) -> Scale:
        stored = f"{name}/mean" in tensors
        return Scale.from_tensors(name, tensors) if stored else Scale.unit(0)

    return _NAMES.map(lambda names: RowScales(*map(find, names)))


@dataclass(frozen=True, eq=False)
class Mesh:
    """The rows of a graph, or of several copies of it.

    `static` features do not change over time. `fixed` (n,) and (E,) are masks of the rows whose
    targets are prescribed, not predicted; `absent` (n, W) and (E, W) those of the targets that have
    no value at any step. `edge_targets` (E,) int64 are local target rows of the edges that have
    fields, in the order of the store.
    """

    view: GraphView
    static: NodeFeatures
    fixed: Frame
    absent: Frame
    run_position: RunPosition
    edge_targets: GlobalIndices


class RowDynamics:
    """Scales the frames and outputs of nodes, or of edges, and forms the next frame from them.

    Model outputs at `absent` targets mean nothing; for the masks (rows,) and (rows, W), see `Mesh`.
    `predict` is a name in `hpcgnn.config.fields.PREDICTIONS`.
    """

    def __init__(
        self, columns: RowColumns, scales: RowScales, fixed: Tensor, absent: Tensor, predict: str
    ) -> None:
        self.columns, self.fixed, self._predict = columns, fixed, predict
        self.width, self._stays = columns.num_predicted, fixed[:, None] | absent
        self.mean, self.deviation, self.output_mean, self.output_deviation = (
            torch.from_numpy(values).to(fixed.device)
            for scale in scales
            for values in (scale.mean, scale.deviation)
        )
        self.read = torch.from_numpy(columns.read).long().to(fixed.device)

    def filled(self, frame: Tensor) -> Tensor:
        """Return a stored frame in float64, with its missing values replaced by means."""
        frame = frame.double()
        return torch.where(frame.isnan(), self.mean, frame)

    def moved(self, frame: Tensor, drawn: Tensor) -> Tensor:
        """Return a frame with noise on the columns that a model reads.

        `drawn` (rows, columns read) is in units of their deviations. Fixed rows get no noise:
        prescribed values are exact.
        """
        noise = (drawn * self.deviation[self.read]).masked_fill(self.fixed[:, None], 0)
        return frame.index_add(1, self.read, noise)

    def inputs(self, frames: Sequence[Tensor]) -> Tensor:
        """Return the scaled columns (rows, any) of frames that a model reads, oldest first."""
        scaled = [((frame - self.mean) / self.deviation)[:, self.read] for frame in frames]
        return torch.cat(scaled, dim=1)

    def predicted(self, outputs: Tensor, last: Tensor) -> Tensor:
        """Return the targets (rows, W) from a model's outputs for the `last` frame."""
        values = outputs * self.output_deviation + self.output_mean
        if self._predict == "difference":
            values = values + last[:, : self.width]
        return values

    def scaled(self, truth: Tensor, last: Tensor) -> Tensor:
        """Return the outputs with which a model would predict exactly `truth` (rows, W)."""
        if self._predict == "difference":
            truth = truth - last[:, : self.width]
        return (truth - self.output_mean) / self.output_deviation

    def follow(self, predicted: Tensor, known: Tensor) -> Tensor:
        """Return the next frame: the predicted targets, and the other columns of `known`.

        `known` (rows, width) is filled. Its targets are used at fixed rows and where absent.
        """
        if not self.width:
            # No column is predicted: do not attach the frame to the model's graph.
            return known
        targets = torch.where(self._stays, known[:, : self.width], predicted)
        return torch.cat([targets, known[:, self.width :]], dim=1)

    def told(self, values: Tensor, raw: Tensor) -> Tensor:
        """Return targets (rows, W), NaN where they are fixed or absent and missing in `raw`."""
        return values.masked_fill(self._stays & raw[:, : self.width].isnan(), torch.nan)


class Dynamics:
    """Turns frames into model inputs, of `dtype`, and model outputs into the next frame."""

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
        """Return these dynamics on the `view` of several copies, whose rows follow each other."""
        mesh = self._mesh
        count = len(mesh.fixed.nodes)
        static = mesh.static[torch.arange(count).repeat(copies)]
        first = count * np.arange(copies)[:, None]
        targets = (first + mesh.edge_targets).reshape(-1)
        fixed = mesh.fixed.map(lambda rows: rows.repeat(copies))
        absent = mesh.absent.map(lambda rows: rows.repeat(copies, 1))
        mesh = Mesh(view, static, fixed, absent, mesh.run_position, targets)
        return Dynamics(mesh, self._columns, self._scales, self.predict, self._dtype)

    def filled(self, frame: Frame) -> Frame:
        """Return a stored frame in float64, with its missing values replaced by means."""
        return self.rows.map(RowDynamics.filled, frame)

    def predicted(self, outputs: Frame, last: Frame) -> Frame:
        """Return the targets from a model's outputs for the `last` frame."""
        return self.rows.map(RowDynamics.predicted, outputs, last)

    def follow(self, predicted: Frame, known: Frame) -> Frame:
        """Return the next frame: the predicted targets, and the other columns of `known`."""
        return self.rows.map(RowDynamics.follow, predicted, known)

    def inputs(self, frames: Sequence[Frame]) -> NodeFeatures:
        """Return the node inputs of a model: the static ones, then the frames, oldest first."""
        rows = self.rows.nodes.inputs([frame.nodes for frame in frames]).to(self._dtype)
        static = self._mesh.static
        if isinstance(static, TypedRows):
            parts = zip(static.parts, static.rows, strict=True)
            joined = tuple(torch.cat([part, rows[members]], dim=1) for part, members in parts)
            return replace(static, parts=joined)
        return torch.cat([static, rows], dim=1)

    @collective
    def view_at(self, frames: Sequence[Frame]) -> GraphView:
        """Return the graph's view with the edge frames appended to its edge features."""
        if not len(self.rows.edges.read):
            return self.view
        rows = self.rows.edges.inputs([frame.edges for frame in frames])
        return self.view.with_edge_columns(rows, self._mesh.edge_targets)

    @collective
    def outputs(self, model: Any, frames: Sequence[Frame], key: DropoutKey | None) -> Frame:
        """Return a model's outputs for the last frames in float64."""
        nodes, edges = model.with_edges(self.view_at(frames), self.inputs(frames), key)
        if edges is None:
            edges = nodes.new_empty((len(self._mesh.fixed.edges), 0))
        return ByRows(nodes.double(), edges.double())

    @collective
    def made_again(self, model: Any, frames: Sequence[Frame], key: DropoutKey | None) -> Frame:
        """Return the same, but store no activations: the backward pass recomputes the model."""
        run_position = self._mesh.run_position
        start = run_position.now

        def run(_needs_gradient: Tensor, *tensors: Tensor) -> Frame:
            read = [ByRows(*pair) for pair in zip(tensors[::2], tensors[1::2], strict=True)]
            if not torch.is_grad_enabled():
                # Layers choose the order of their products by which inputs need a gradient, so
                # this pass must see the same as the recomputation.
                with torch.enable_grad():
                    return self.outputs(model, read, key).map(Tensor.detach)
            # The backward pass: the forward pass has already counted this step.
            with run_position.replaying(start), running_means_stay(model):
                return self.outputs(model, read, key)

        # The first frames are data: without this input, no gradient would be recorded.
        needs_gradient = torch.zeros((), requires_grad=True)
        tensors = [tensor for frame in frames for tensor in frame]
        # `checkpoint` would do the same, after importing the compiler of torch: 0.9 s and 34 MiB.
        outputs = CheckpointFunction.apply(run, False, needs_gradient, *tensors)  # type: ignore[no-untyped-call]
        return ByRows(*outputs)
