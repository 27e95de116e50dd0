"""Figures of rollouts of fields: errors after each step, and truth next to prediction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.tri import Triangulation

from hpcgnn.analysis.figures import new_figure
from hpcgnn.analysis.page import FigureOf
from hpcgnn.errors import InputError
from hpcgnn.typing import FloatArray, GlobalIndices

_MOST_POINTS = 30_000
"""Most points of a picture; of more nodes a random sample is shown."""
_LONG = 6.0
"""A triangle with a side this many times the median length spans a hole of the mesh."""
_MODEL, _UNCHANGED = "#0072b2", "#4d4d4d"


def error_figures(rollouts: Mapping[str, Mapping[str, Any]]) -> Iterator[FigureOf]:
    """Yield a figure of the errors after each step for each field.

    `rollouts` are rollout entries of a seed in `summary.json`, by the name of the curve.
    """
    names = dict.fromkeys(name for entry in rollouts.values() for name in entry["rmse"])
    for name in names:
        note = "Dashed: error if the fields stayed unchanged."
        yield FigureOf(
            f"Error of {name} over a rollout", partial(_draw_errors, rollouts, name), note
        )


def _draw_errors(rollouts: Mapping[str, Mapping[str, Any]], name: str) -> Figure:
    figure = new_figure(4.6, 2.8)
    axis = figure.subplots()
    axis.grid()
    for number, (label, entry) in enumerate(rollouts.items()):
        if name not in entry["rmse"]:
            continue
        errors, unchanged = (_numbers(entry[key][name]) for key in ("rmse", "unchanged_rmse"))
        steps, look = np.arange(1, len(errors) + 1), ("-", ":")[number % 2]
        mark = "o" if len(errors) == 1 else None
        axis.plot(steps, errors, look, color=_MODEL, marker=mark, label=label)
        steps = np.arange(1, len(unchanged) + 1)
        axis.plot(steps, unchanged, "--", color=_UNCHANGED, linewidth=0.9)
    axis.set_xlabel("steps")
    axis.set_ylabel(f"RMSE of {name}")
    axis.set_ylim(bottom=0)
    axis.legend()
    return figure


def _numbers(values: Sequence[float | None]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values])


@dataclass(frozen=True, eq=False)
class Plane:
    """The nodes of a picture with one or two axes.

    `nodes` (m,) are the indices of the shown nodes, `points` (m, 2) or (m, 1) their coordinates in
    the picture, `labels` those of the axes. `title` names the slice; empty if it is not a slice.
    """

    nodes: GlobalIndices
    points: FloatArray
    labels: tuple[str, ...]
    title: str = ""

    @classmethod
    def of(cls, positions: FloatArray, axis: str | None = None, at: float | None = None) -> "Plane":
        """Select the nodes to show: all, or in 3-D a slice normal to `axis` (default z) at `at`.

        A slice holds the nodes within a twentieth of the extent; by default it is in the middle.
        Raises `InputError` for an empty slice, or a slice in fewer than three dimensions.
        """
        names = "xyz"[: positions.shape[1]]
        nodes, title = np.arange(len(positions)), ""
        if len(names) == 3:
            axis = axis or "z"
            across = positions[:, names.index(axis)]
            low, high = float(across.min()), float(across.max())
            middle = (low + high) / 2 if at is None else at
            nodes = np.flatnonzero(np.abs(across - middle) <= (high - low) / 20)
            if not len(nodes):
                raise InputError(f"--at {middle:g}: {axis} goes from {low:g} to {high:g}")
            title = f"{axis} = {middle:.4g}"
            names = names.replace(axis, "")
        elif axis is not None or at is not None:
            fault = "--axis and --at need positions in 3 dimensions"
            raise InputError(f"{fault}, and these have {len(names)}; leave them out")
        if len(nodes) > _MOST_POINTS:
            chosen = np.random.default_rng(0).choice(len(nodes), _MOST_POINTS, replace=False)
            nodes = nodes[np.sort(chosen)]
        kept = ["xyz".index(name) for name in names]
        return cls(nodes, positions[nodes][:, kept], tuple(names), title)

    @cached_property
    def triangles(self) -> tuple[Triangulation, GlobalIndices] | None:
        """A triangulation of the distinct points, without holes, and their indices in `points`.

        None if the points span no area.
        """
        points, order = np.unique(self.points, axis=0, return_index=True)
        if self.points.shape[1] < 2 or len(points) < 4 or np.ptp(points, axis=0).min() == 0:
            return None
        mesh = Triangulation(*self.points[order].T)
        corners = self.points[order][mesh.triangles]
        sides = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2).max(axis=1)
        mesh.set_mask(sides > _LONG * np.median(sides))
        return mesh, order

    def show(self, axis: Axes, values: FloatArray, norm: Normalize, colours: str) -> Any:
        """Draw values (m,) of the nodes; return the artist for a colour bar, or None."""
        axis.set_xlabel(self.labels[0])
        if self.points.shape[1] < 2:
            order = np.argsort(self.points[:, 0])
            axis.plot(self.points[order, 0], values[order], linewidth=0.9)
            axis.set_ylim(norm.vmin, norm.vmax)
            return None
        axis.set_ylabel(self.labels[1])
        axis.set_aspect("equal")
        look: dict[str, Any] = {"norm": norm, "cmap": colours, "rasterized": True}
        if self.triangles is None:
            x, y = self.points.T
            return axis.scatter(x, y, s=4, c=values, **look)
        triangles, order = self.triangles
        return axis.tripcolor(triangles, values[order], **look)


@dataclass(frozen=True, eq=False)
class Picture:
    """A step of a rollout: prediction (m,) and truth (m,), NaN where it is unknown."""

    title: str
    predicted: FloatArray
    truth: FloatArray


def draw_steps(plane: Plane, pictures: Sequence[Picture], name: str) -> Figure:
    """Return a figure with a row for each step: truth, prediction, difference.

    Truth and prediction have the same colour scale in all rows.
    """
    norm = _norm(pictures)
    sizes = np.abs(np.concatenate([each.predicted - each.truth for each in pictures]))
    most = float(sizes.max(where=~np.isnan(sizes), initial=0)) or 1.0
    figure = new_figure(9.0, 2.4 * len(pictures) + 0.4)
    axes = figure.subplots(len(pictures), 3, squeeze=False)
    for row, each in zip(axes, pictures, strict=True):
        panels = (
            ("truth", each.truth, norm, "viridis"),
            ("prediction", each.predicted, norm, "viridis"),
            ("difference", each.predicted - each.truth, Normalize(-most, most), "RdBu_r"),
        )
        for axis, (title, values, scale, colours) in zip(row, panels, strict=True):
            axis.set_title(f"{each.title}: {title}")
            drawn = plane.show(axis, values, scale, colours)
            if drawn is not None:
                figure.colorbar(drawn, ax=axis, label="" if title == "truth" else name)
    return figure


def _norm(pictures: Sequence[Picture]) -> Normalize:
    """Return the common colour scale of predictions and truths."""
    values = np.concatenate([part for each in pictures for part in (each.predicted, each.truth)])
    known = values[~np.isnan(values)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    return Normalize(low, high if high > low else low + 1)


def animate(plane: Plane, pictures: Sequence[Picture], path: str, name: str) -> None:
    """Write an animation (GIF) of truth and prediction, one frame per step."""
    norm = _norm(pictures)
    figure = new_figure(7.0, 3.0)
    writer = PillowWriter(fps=8)
    with writer.saving(figure, path, dpi=90):
        for each in pictures:
            figure.clear()
            axes = figure.subplots(1, 2)
            for axis, title, rows in zip(
                axes, ("truth", "prediction"), (each.truth, each.predicted), strict=True
            ):
                drawn = plane.show(axis, rows, norm, "viridis")
                axis.set_title(f"{each.title}: {title}")
            if drawn is not None:
                figure.colorbar(drawn, ax=axes, label=name)
            writer.grab_frame()
