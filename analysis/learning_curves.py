"""Loss and figures of merit by epoch, of one run or several, as mean over seeds with a band.

``hpcgnn analyse learning_curves RUN [RUN...]``. The band is one sample standard deviation; a
line is dotted where not all seeds are left, because some ended earlier.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hpcgnn.analysis.curves import METRICS, PARTS, Curve, RunCurves
from hpcgnn.analysis.figures import argument_parser, new_figure, save_figure, show_paths
from hpcgnn.analysis.load import open_runs
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, print_table

NAME = "learning_curves"

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
_DASHES = {"train": (0, (5, 2)), "valid": (0, (2, 1.2)), "test": "-"}
LABELS = {"loss": "loss", "accuracy": "accuracy", "micro_f1": "micro F1", "macro_f1": "macro F1"}


def show(runs: Sequence[RunCurves]) -> None:
    rows = []
    for summary in (run.summary() for run in runs):
        seeds = summary["seeds"]
        epochs = [entry["epochs"] for entry in seeds]
        span = str(epochs[0]) if len(set(epochs)) == 1 else f"{min(epochs)}-{max(epochs)}"
        rows.append(
            [
                summary["run"],
                LABELS.get(summary["metric"], ""),
                len(seeds),
                span,
                _mean_std(summary["valid"], 100, " %"),
                _mean_std(summary["test"], 100, " %"),
                _mean_std(summary["final_train_loss"], 1, ""),
            ]
        )
    columns = ["run", "metric", "seeds", "epochs", "valid", "test", "train loss"]
    print_table("Best epoch by validation, mean ± std over seeds", columns, rows)


def _mean_std(entry: dict[str, Any], factor: float, unit: str) -> str:
    if entry["mean"] is None:
        return ""
    digits = 2 if unit else 4
    return f"{factor * entry['mean']:.{digits}f} ± {factor * entry['std']:.{digits}f}{unit}"


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
            axis.set_ylabel(f"{label} (%)")
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
        axis.grid()
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, panels, runs)
    return figure


def _legend(figure: Figure, panels: Iterable[Axes], runs: Sequence[RunCurves]) -> None:
    handles: dict[str, Any] = {}
    for axis in panels:
        shown, labels = axis.get_legend_handles_labels()
        handles |= zip(labels, shown, strict=True)
    # A column a run: legends fill their columns first.
    order = [_label(runs, run, part) for run in runs for part in PARTS]
    figure.legend(
        handles=[handles[label] for label in order if label in handles],
        loc="outside lower center",
        ncols=len(PARTS) if len(runs) == 1 else min(len(runs), 4),
    )


def _label(runs: Sequence[RunCurves], run: RunCurves, part: str) -> str:
    if len(runs) == 1:
        return part
    return f"{run.label}: {part}"


def draw_panel(axis: Axes, runs: Sequence[RunCurves], name: str) -> None:
    """Draw one figure of merit, or the loss, of all runs."""
    for number, run in enumerate(runs):
        for part, dashes in _DASHES.items():
            key = f"{part}_{name}"
            if run.has(key):
                place, count = (number, len(runs)) if len(runs) > 1 else (PARTS.index(part), 1)
                colour = _colour(place, count)
                _curve(axis, run.curve(key), _label(runs, run, part), colour, dashes)


def _colour(place: int, count: int) -> Any:
    """Return the colour of curve `place` of `count`; no two of them are alike."""
    if count <= len(_COLOURS):
        return _COLOURS[place]
    return colormaps["turbo"](0.05 + 0.9 * place / (count - 1))


def _curve(axis: Axes, curve: Curve, label: str, colour: str, dashes: Any) -> None:
    whole = int((curve.num_seeds == curve.num_seeds.max()).sum())
    lone = "o" if len(curve.epochs) == 1 else None
    axis.plot(
        curve.epochs[:whole],
        curve.mean[:whole],
        color=colour,
        linestyle=dashes,
        linewidth=1.4,
        marker=lone,
        label=label,
    )
    rest = slice(max(whole - 1, 0), None)
    axis.plot(curve.epochs[rest], curve.mean[rest], color=colour, linestyle=":", linewidth=0.9)
    low, high = curve.mean - curve.std, curve.mean + curve.std
    axis.fill_between(curve.epochs, low, high, color=colour, alpha=0.18, linewidth=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(NAME, "Show loss and accuracy by epoch.", runs="+")
    options = parser.parse_args(arguments)
    directories = open_runs(options.run)
    runs = [RunCurves(run) for run in directories]
    directory = options.out or directories[0].path / "analysis"
    paths = save_figure(lambda: draw(runs), directory, NAME)
    if options.json:
        summaries = [run.summary() for run in runs]
        print_json({"runs": summaries, "figures": list(map(str, paths))})
    else:
        show(runs)
        show_paths(paths)


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
