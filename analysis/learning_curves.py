"""Loss and figures of merit by epoch, of one run or several, as mean over seeds with a band.

``hpcgnn analyse learning_curves RUN [RUN...]``. The band is one sample standard deviation; a
line is dotted from the epoch on at which the first seed has ended. For several runs, only
validation metrics and the training loss are drawn.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hpcgnn.analysis.curves import METRICS, Curve, RunCurves
from hpcgnn.analysis.figures import argument_parser, new_figure, publish
from hpcgnn.analysis.load import open_runs
from hpcgnn.commands.launch import run_command
from hpcgnn.console import metric_factor, print_table

NAME = "learning_curves"

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
_DASHES = {"train": (0, (5, 2)), "valid": (0, (2, 1.2)), "test": "-"}
# Styles of runs: a thinner line over a wider one keeps both visible.
_RUN_DASHES: tuple[Any, ...] = ("-", (0, (6, 3)), (0, (2, 2)), (0, (9, 2, 2, 2)))
_WIDEST, _THINNEST = 3.0, 1.1
KEPT = "#d62728"
"""Colour of the rings around kept epochs."""
LABELS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "micro_f1": "micro F1",
    "macro_f1": "macro F1",
    "mrr": "MRR",
    "r2": "R²",
}


@dataclass(frozen=True)
class Look:
    """The style of a line."""

    colour: Any
    dashes: Any
    width: float

    @classmethod
    def of_run(cls, index: int, count: int) -> "Look":
        """Return the style of run `index` of `count`; styles differ and do not hide each other."""
        if count <= len(_COLOURS):
            colour: Any = _COLOURS[index]
        else:
            colour = colormaps["turbo"](0.12 + 0.75 * index / (count - 1))
        step = (_WIDEST - _THINNEST) / max(count - 1, 1)
        dashes = _RUN_DASHES[index % len(_RUN_DASHES)]
        return cls(colour, dashes, _WIDEST - step * index if count > 1 else 1.4)


def show(runs: Sequence[RunCurves]) -> None:
    rows = []
    for summary in (run.summary() for run in runs):
        seeds = summary["seeds"]
        factor = metric_factor(summary["metric"] or "")
        merit = factor, " %" * (factor == 100)
        epochs = [entry["epochs"] for entry in seeds]
        span = str(epochs[0]) if len(set(epochs)) == 1 else f"{min(epochs)}-{max(epochs)}"
        rows.append(
            [
                summary["run"],
                LABELS.get(summary["metric"], summary["metric"] or ""),
                len(seeds),
                span,
                _mean_std(summary["valid"], *merit),
                _mean_std(summary["test"], *merit),
                _mean_std(summary["final_train_loss"], 1, ""),
            ]
        )
    columns = ["run", "metric", "seeds", "epochs", "valid", "test", "train loss"]
    print_table("Best epoch by validation, mean ± std over seeds", columns, rows)


def _mean_std(entry: dict[str, Any], factor: float, unit: str) -> str:
    if entry["mean"] is None:
        return ""
    digits = 2 if unit else 4
    spread = "" if entry["std"] is None else f" ± {factor * entry['std']:.{digits}f}"
    return f"{factor * entry['mean']:.{digits}f}{spread}{unit}"


def draw(runs: Sequence[RunCurves]) -> Figure:
    """Draw a panel for the loss and one for each figure of merit that any run has."""
    metrics = [name for name in METRICS if any(name in run.metrics for run in runs)]
    figure = new_figure(4.6 * (1 + len(metrics)), 4.2)
    panels = figure.subplots(1, 1 + len(metrics), squeeze=False)[0]
    several = any(len(run.seeds) > 1 for run in runs)
    for axis, name in zip(panels, ["loss", *metrics], strict=True):
        draw_panel(axis, runs, name)
        label = LABELS[name]
        title = label[0].upper() + label[1:] + (", mean ± 1 std over seeds" if several else "")
        axis.set(xlabel="epoch", ylabel=label, title=title)
        if name != "loss":
            in_per_cent(axis, name)
        axis.grid()
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, panels, runs)
    return figure


def in_per_cent(axis: Axes, name: str) -> None:
    """Label the y axis of a figure of merit, in per cent except for R²."""
    axis.set_ylabel(LABELS[name] if name == "r2" else f"{LABELS[name]} (%)")
    if name != "r2":
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))


def _legend(figure: Figure, panels: Iterable[Axes], runs: Sequence[RunCurves]) -> None:
    handles: dict[str, Any] = {}
    for axis in panels:
        shown, labels = axis.get_legend_handles_labels()
        handles |= zip(labels, shown, strict=True)
    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        ncols=len(handles) if len(runs) == 1 else min(len(runs), 4),
    )


def draw_panel(axis: Axes, runs: Sequence[RunCurves], name: str) -> None:
    """Draw one figure of merit, or the loss.

    One run is drawn with all its parts; several with `shared_key` of each.
    """
    if len(runs) == 1:
        for index, (part, dashes) in enumerate(_DASHES.items()):
            if runs[0].has(f"{part}_{name}"):
                look = Look(_COLOURS[index], dashes, 1.4)
                _curve(axis, runs[0].curve(f"{part}_{name}"), part, look)
    else:
        for index, run in enumerate(runs):
            key = shared_key(name)
            if run.has(key):
                _curve(axis, run.curve(key), run.label, Look.of_run(index, len(runs)))
    mark_kept(axis, runs, name)


def shared_key(name: str) -> str:
    """Return the key that is drawn for each of several runs."""
    return f"train_{name}" if name == "loss" else f"valid_{name}"


def mark_kept(axis: Axes, runs: Sequence[RunCurves], name: str) -> None:
    """Mark the kept epoch of each seed on its run's curve."""
    epochs, heights = list[int](), list[float]()
    for run in runs:
        curve = run.curve(shared_key(name))
        if len(curve.epochs):
            kept = run.kept()
            epochs += kept
            heights += np.interp(kept, curve.epochs, curve.mean).tolist()
    if epochs:
        axis.plot(epochs, heights, "o", mfc="none", mec=KEPT, markersize=8, label="kept epoch")


def _curve(axis: Axes, curve: Curve, label: str, look: Look) -> None:
    whole = int((curve.num_seeds == curve.num_seeds.max()).sum())
    lone = "o" if len(curve.epochs) == 1 else None
    axis.plot(
        curve.epochs[:whole],
        curve.mean[:whole],
        color=look.colour,
        linestyle=look.dashes,
        linewidth=look.width,
        marker=lone,
        label=label,
    )
    rest = slice(max(whole - 1, 0), None)
    axis.plot(curve.epochs[rest], curve.mean[rest], color=look.colour, linestyle=":", linewidth=0.9)
    low, high = curve.mean - curve.std, curve.mean + curve.std
    axis.fill_between(curve.epochs, low, high, color=look.colour, alpha=0.18, linewidth=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(NAME, "Show loss and accuracy by epoch.", runs="+")
    options = parser.parse_args(arguments)
    directories = open_runs(options.run)
    runs = [RunCurves(run) for run in directories]
    facts = {"runs": [run.summary() for run in runs]}
    directory = directories[0].path / "analysis"
    publish(options, NAME, partial(draw, runs), directory, facts, partial(show, runs))


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
