"""Scaling over ranks: seconds, efficiency, bytes and memory, compared with plans.

``hpcgnn analyse scaling RUN [RUN...]``. Runs whose configurations differ only in the graph's file
have the same method. Its runs on one graph form a strong-scaling series; runs on graphs that grow
in proportion to the ranks form a weak-scaling series. The plan of a run is ``plan.json`` in its
directory, the output of ``hpcgnn plan --json``; ``jobs/scaling.sh`` writes both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcgnn.analysis.figures import argument_parser, new_figure, publish, scaled
from hpcgnn.analysis.load import Run, open_runs
from hpcgnn.analysis.memory import read_plan
from hpcgnn.analysis.settings import Settings, differing_keys, read_settings
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_table
from hpcgnn.errors import InputError
from hpcgnn.trace import describe_epochs

NAME = "scaling"

_FIGURES = ("epoch_s", "bytes", "memory_bytes")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")
# These settings do not belong to a run's method.
_NOT_METHOD = ("graph.store", "run.dir", "run.threads", "train.epochs")
_SIZES_ALIKE = 0.1


@dataclass(frozen=True)
class Point:
    """The measured and planned figures of a run; `planned` is None without a plan.

    Bytes are sent by all ranks in a training epoch; memory is the largest over ranks.
    """

    run: str
    graph: str
    nodes: int
    ranks: int
    measured: dict[str, float]
    planned: dict[str, float] | None


@dataclass(frozen=True)
class Series:
    """Points of one method by number of ranks; `kind` is strong or weak."""

    method: str
    kind: str
    points: list[Point]

    def efficiency(self, point: Point) -> float:
        """Return the parallel efficiency of a point relative to the fewest ranks of the series."""
        first = self.points[0]
        ratio = first.measured["epoch_s"] / point.measured["epoch_s"]
        return ratio if self.kind == "weak" else ratio * first.ranks / point.ranks


def read_point(run: Run) -> Point:
    """Return the point of a finished run.

    Raises `InputError` if it has not ended, or its task has no nodes.
    """
    summary = run.summary
    nodes, ranks = summary.get("graph", {}).get("num_nodes"), summary.get("ranks_detail")
    epoch_s = (summary.get("epoch_s") or {}).get("median")
    if nodes is None or not ranks or not epoch_s:
        raise InputError(f"{run.path}: has not ended, or its task has no nodes; leave it out")
    memory_bytes = max(each["peak_rss_bytes"] for each in ranks)
    measured = {"epoch_s": epoch_s, "memory_bytes": memory_bytes}
    size = describe_epochs(run.metrics())["epoch_bytes"]
    if size is not None:
        measured["bytes"] = size
    plan, planned = read_plan(run), None
    if plan is not None:
        planned = {
            "epoch_s": plan["epoch_s"],
            "bytes": plan["bytes_epoch"],
            "memory_bytes": plan["peak_bytes"],
        }
    return Point(run.name, str(summary.get("name", "")), nodes, len(ranks), measured, planned)


def make_series(runs: Sequence[Run]) -> list[Series]:
    """Group runs into series, see the docstring of the module.

    Raises `InputError` if no series has two points.
    """
    settings = [read_settings(run.path) for run in runs]
    keys = [key for key in differing_keys(settings) if key not in _NOT_METHOD]
    named = sorted(
        ((_method(each, keys), read_point(run)) for run, each in zip(runs, settings, strict=True)),
        key=lambda pair: (pair[0], pair[1].nodes, pair[1].ranks),
    )
    series = []
    for method, pairs in groupby(named, key=lambda pair: pair[0]):
        points = [point for _, point in pairs]
        single = []
        for _, group in groupby(points, key=lambda point: (point.graph, point.nodes)):
            same_graph = list(group)
            if len({point.ranks for point in same_graph}) > 1:
                series.append(Series(method, "strong", same_graph))
            else:
                single += same_graph
        share = [point.nodes / point.ranks for point in single]
        if len(single) > 1 and max(share) <= (1 + _SIZES_ALIKE) * min(share):
            weak = sorted(single, key=lambda point: point.ranks)
            series.append(Series(method, "weak", weak))
    if not series:
        raise InputError(
            "no two of these runs differ only in their ranks (strong scaling), or have graphs that "
            "grow with the ranks (weak scaling); jobs/scaling.sh makes such runs"
        )
    return series


def _method(settings: Settings, keys: Sequence[str]) -> str:
    differing = [f"{key.partition('.')[2]}={settings.get(key)}" for key in keys]
    return ", ".join(differing) or str(settings.get("exchange.method", "one method"))


def errors(series: Sequence[Series]) -> dict[str, float | None]:
    """Return the median relative error of the plans over all points, by figure."""
    medians: dict[str, float | None] = {}
    points = [point for each in series for point in each.points if point.planned is not None]
    for key in _FIGURES:
        known = [value for point in points if (value := _error(point, key)) is not None]
        medians[key] = median(known) if known else None
    return medians


def _error(point: Point, key: str) -> float | None:
    if point.planned is None or key not in point.measured:
        return None
    measured, planned = point.measured[key], point.planned[key]
    if measured == planned:
        return 0.0
    return abs(planned - measured) / measured if measured else None


def show(series: Sequence[Series]) -> None:
    for each in series:
        first = each.points[0]
        graph = first.graph if each.kind == "strong" else f"{first.graph} and larger"
        rows = []
        for point in each.points:
            cells = [str(point.ranks), f"{point.nodes:,}"]
            for key, factor, form in (
                ("epoch_s", 1.0, "{:.3f}"),
                ("bytes", 1e-6, "{:.3f}"),
                ("memory_bytes", 2.0**-20, "{:.0f}"),
            ):
                error = _error(point, key)
                cells += [
                    form.format(factor * values[key]) if key in values else ""
                    for values in (point.measured, point.planned or {})
                ]
                cells.append("" if error is None else f"{100 * error:.0f} %")
            rows.append([*cells, f"{each.efficiency(point):.2f}"])
        columns = (
            "ranks", "nodes", "epoch s", "plan", "off", "MB an epoch", "plan", "off", "peak MiB",
            "plan", "off", "efficiency",
        )  # fmt: skip
        print_table(f"{each.kind} scaling of {each.method} on {graph}", columns, rows)
    known = {key: value for key, value in errors(series).items() if value is not None}
    if known:
        texts = {"epoch_s": "seconds", "bytes": "bytes", "memory_bytes": "memory"}
        print(
            "median error of the plans: "
            + ", ".join(f"{texts[key]} {100 * value:.1f} %" for key, value in known.items())
        )


def draw(series: Sequence[Series]) -> Figure:
    """Draw seconds, efficiency, bytes and memory over ranks; plans have hollow, dashed marks."""
    figure = new_figure(11.0, 7.0)
    panels = figure.subplots(2, 2)
    titles = ("Epoch", "Efficiency", "Sent in an epoch, all ranks", "Memory of the largest rank")
    for axis, key, title, unit in zip(
        panels.ravel(),
        ("epoch_s", None, "bytes", "memory_bytes"),
        titles,
        ("s", "", "B", "B"),
        strict=True,
    ):
        factor = 1.0
        if key is not None:
            levels = [p.measured.get(key, 0.0) for each in series for p in each.points]
            factor, unit = scaled(max(levels), unit)
        for number, each in enumerate(series):
            _draw_series(axis, each, key, factor, _COLOURS[number % len(_COLOURS)])
        axis.set(title=title, xlabel="ranks", ylabel=unit or "relative to the fewest ranks")
        ranks = sorted({point.ranks for each in series for point in each.points})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ranks, list(map(str, ranks)))
        axis.minorticks_off()
        axis.set_ylim(0)
        axis.grid()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _draw_series(axis: Axes, series: Series, key: str | None, factor: float, colour: str) -> None:
    label = f"{series.kind}, {series.method}, {series.points[0].graph}"
    chosen = [point for point in series.points if key is None or key in point.measured]
    ranks = [point.ranks for point in chosen]
    if key is None:
        heights = [series.efficiency(point) for point in chosen]
    else:
        heights = [factor * point.measured[key] for point in chosen]
    axis.plot(ranks, heights, "o-", color=colour, label=label, markersize=4)
    planned = [(p.ranks, factor * p.planned[key]) for p in chosen if key and p.planned]
    if planned:
        places, levels = zip(*planned, strict=True)
        axis.plot(
            places, levels, "s--", color=colour, mfc="none", linewidth=0.9, label=f"{label}: plan"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(NAME, "Seconds, efficiency, bytes and memory over ranks.", runs="+")
    options = parser.parse_args(arguments)
    runs = open_runs(options.run)
    series = make_series(runs)
    facts = {"series": [_as_json(each) for each in series], "errors": errors(series)}
    directory = runs[0].path.parent / "analysis"
    publish(options, NAME, partial(draw, series), directory, facts, partial(show, series))


def _as_json(series: Series) -> dict[str, Any]:
    points = [{**vars(point), "efficiency": series.efficiency(point)} for point in series.points]
    return {"method": series.method, "kind": series.kind, "points": points}


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
