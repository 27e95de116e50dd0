"""Figures of a report's page, with their captions; they are drawn when the page is made."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hpcgnn.analysis.breakdown import COMMUNICATION, PHASE_ORDER
from hpcgnn.analysis.comm_matrix import heat_map, show_totals
from hpcgnn.analysis.curves import METRICS, RunCurves
from hpcgnn.analysis.epoch_breakdown import (
    LOOKS,
    Part,
    arrivals,
    communication_parts,
    phase_parts,
    stack_bars,
    stack_seconds,
)
from hpcgnn.analysis.figures import Bars, hint, new_figure, scaled
from hpcgnn.analysis.learning_curves import KEPT, LABELS, Look, draw_panel, in_per_cent, shared_key
from hpcgnn.analysis.memory import RunMemory
from hpcgnn.analysis.page import FigureOf
from hpcgnn.analysis.subject import Subject

_WIDTH, _HEIGHT = 4.4, 3.1
_MEBI = 2**20
_GHOST, _OWN, _PEAK, _PLAN = "#e69f00", "#0b72b5", "#8aa4c4", "#d55e00"
_FEW_EPOCHS = 150


def side_by_side(subjects: Sequence[Subject]) -> Iterator[FigureOf]:
    """Yield the figures that compare runs."""
    names = [each.run.name for each in subjects]
    if any(each.epochs for each in subjects):
        means = [_phase_means(each.epochs) for each in subjects]
        missing = [each.run.name for each in subjects if each.epochs is None]
        note = "Of an epoch, mean over ranks."
        note += f" No trace: {', '.join(missing)}." if missing else ""
        yield FigureOf("Epoch by phase", partial(_draw_phases, names, means), note)
    peaks = [
        max(rank.peak for rank in each.memory.ranks) if each.memory else None for each in subjects
    ]
    sent = [each.epoch["epoch_bytes"] for each in subjects]
    for caption, values, unit in (
        ("Sent in an epoch, all ranks", sent, "B"),
        ("Peak memory, largest over ranks", peaks, "MiB"),
    ):
        if any(values):
            yield FigureOf(caption, partial(_draw_bars, names, values, unit))


def learning(runs: Sequence[RunCurves]) -> Iterator[FigureOf]:
    """Yield loss and metrics by epoch, the first metric over seconds, and times of epochs."""
    metrics = [name for name in METRICS if any(name in each.metrics for each in runs)]
    for name in ("loss", *metrics):
        part = "" if len(runs) == 1 else (" of training" if name == "loss" else ", validation")
        caption = f"{LABELS[name][0].upper()}{LABELS[name][1:]}{part}"
        yield FigureOf(caption, partial(_draw_learning, runs, name))
    timed = [each for each in runs if each.epoch_seconds()]
    if metrics and any(each.over_seconds(shared_key(metrics[0])) for each in timed):
        label = LABELS[metrics[0]]
        caption = f"{label[0].upper()}{label[1:]} over seconds, validation"
        note = "Seconds of epochs and evaluations since the start of a seed."
        yield FigureOf(caption, partial(_draw_over_seconds, runs, metrics[0]), note)
    if timed:
        note = "Seconds of training of each epoch, seed after seed; the line is the median."
        yield FigureOf("Time of each epoch", partial(_draw_epoch_times, runs), note)


def by_rank(subject: Subject) -> Iterator[FigureOf]:
    """Yield the figures of a run by rank."""
    epochs, traffic, memory = subject.epochs, subject.traffic, subject.memory
    if epochs is not None and epochs["counted"]:
        note = f"{epochs['epochs']} epochs on {epochs['ranks']} ranks; of the median epoch."
        if epochs["missing_ranks"]:
            note += f" No trace of ranks {epochs['missing_ranks']}."
        ranks = epochs["per_rank"]
        draw = partial(_stacked, ranks, phase_parts(ranks), "time of an epoch", COMMUNICATION)
        yield FigureOf("Epoch by phase and rank", draw, note)
        if epochs["ranks"] > 1:
            note = "Hidden: seconds of computing while rows moved. " + arrivals(ranks)
            draw = partial(_stacked, ranks, communication_parts(ranks), "of an epoch", ("hidden",))
            yield FigureOf("Communication by rank", draw, note)
    if traffic is not None and traffic["bytes"]["total"]:
        summed = sum(traffic["summed_bytes"])
        note = f"Of exchanges in an epoch; sums over ranks are {summed / 1e6:.3g} MB more."
        yield FigureOf("Bytes from rank to rank", partial(_draw_matrix, traffic), note)
        note = "Of exchanges in an epoch."
        yield FigureOf("Bytes by rank", partial(_draw_totals, traffic), note)
    if memory is not None:
        note = "" if memory.plan else "No plan.json of this run in its directory: no prediction."
        yield FigureOf("Peak memory of the processes", partial(_draw_peaks, memory), note)
        if memory.whole is not None and len(memory.ranks) > 1:
            yield _rows_in_memory(memory, subject.run.summary.get("schedule") == "sequential")


def _rows_in_memory(memory: RunMemory, bounded: bool) -> FigureOf:
    """Return the figure of rows in memory by owner; the sequential schedule has bounds."""
    note = (
        "Sizes for the widest rows sent in an epoch: a rank's own rows, and the most rows of other "
        "ranks that it held at once."
    )
    if bounded:
        note += " The sequential schedule holds at most 2/N of all rows, 3/N with prefetch."
    caption = "Rows in memory" + ", against 2/N and 3/N" * bounded
    return FigureOf(caption, partial(_draw_rows, memory, bounded), note)


def _phase_means(epochs: dict[str, Any] | None) -> dict[str, float]:
    if epochs is None:
        return {}
    rows = [entry["phases_s"] for entry in epochs["per_rank"]]
    return {
        phase: float(np.mean([row.get(phase, 0.0) for row in rows]))
        for phase in PHASE_ORDER
        if any(phase in row for row in rows)
    }


def _horizontal(names: Sequence[str]) -> tuple[Figure, Any]:
    """Return a figure for one horizontal bar per name, the first one on top."""
    figure = new_figure(_WIDTH, max(_HEIGHT, 1.1 + 0.22 * len(names)))
    axis = figure.subplots()
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(max(len(names), 3) - 0.4, -0.6)
    axis.grid(axis="x")
    return figure, axis


def _draw_phases(names: Sequence[str], means: Sequence[dict[str, float]]) -> Figure:
    figure, axis = _horizontal(names)
    factor, unit = scaled(max(sum(row.values()) for row in means), "s")
    left = np.zeros(len(names))
    for phase in PHASE_ORDER:
        values = np.array([factor * row.get(phase, 0.0) for row in means])
        if not values.any():
            continue
        colour, hatch = LOOKS[phase]
        bars = axis.barh(
            range(len(names)), values, left=left, color=colour, hatch=hatch, label=phase,
            edgecolor="0.35" if hatch else "white", linewidth=0.4,
        )  # fmt: skip
        for name, bar, value in zip(names, bars, values, strict=True):
            if value > 0:
                hint(bar, f"{name}, {phase}: {value:.4g} {unit}")
        left += values
    axis.set_xlabel(f"time of an epoch ({unit})")
    return _with_legend(figure)


def _draw_bars(names: Sequence[str], values: Sequence[float | None], unit: str) -> Figure:
    figure, axis = _horizontal(names)
    numbers = [value or 0.0 for value in values]
    factor, unit = (1 / _MEBI, unit) if unit == "MiB" else scaled(max(numbers), unit)
    bars = axis.barh(range(len(names)), [factor * value for value in numbers], color=_OWN)
    for name, bar, value in zip(names, bars, numbers, strict=True):
        hint(bar, f"{name}: {factor * value:.4g} {unit}")
    axis.set_xlabel(unit)
    return figure


def _plain(below: str) -> tuple[Figure, Axes]:
    figure = new_figure(_WIDTH, _HEIGHT)
    axis = figure.subplots()
    axis.grid()
    axis.set_xlabel(below)
    return figure, axis


def _draw_learning(runs: Sequence[RunCurves], name: str) -> Figure:
    figure, axis = _plain("epoch")
    draw_panel(axis, runs, name)
    axis.set_ylabel(LABELS[name])
    if name != "loss":
        in_per_cent(axis, name)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure)


def _draw_over_seconds(runs: Sequence[RunCurves], name: str) -> Figure:
    figure, axis = _plain("seconds")
    for index, run in enumerate(runs):
        curve, kept = run.over_seconds(shared_key(name)), run.kept()
        if curve is None or not len(curve[0]):
            continue
        look = Look.of_run(index, len(runs))
        axis.plot(
            *curve, color=look.colour, linestyle=look.dashes, linewidth=look.width,
            label=run.label if len(runs) > 1 else "validation",
        )  # fmt: skip
        epochs = run.curve(shared_key(name)).epochs
        rings = np.interp(kept, epochs, curve[0]), np.interp(kept, epochs, curve[1])
        axis.plot(*rings, "o", mfc="none", mec=KEPT, markersize=8, label="kept epoch")
    axis.set_xlim(left=0)
    in_per_cent(axis, name)
    return _with_legend(figure)


def _draw_epoch_times(runs: Sequence[RunCurves]) -> Figure:
    figure, axis = _plain("epoch, seed after seed")
    factor, unit = scaled(max(max(run.epoch_seconds(), default=0.0) for run in runs), "s")
    for index, run in enumerate(runs):
        seconds = [factor * value for value in run.epoch_seconds()]
        if not seconds:
            continue
        look = Look.of_run(index, len(runs))
        marker = "." if len(seconds) <= _FEW_EPOCHS else ""
        axis.plot(
            range(len(seconds)), seconds, marker=marker, markersize=4, color=look.colour,
            linestyle=look.dashes, linewidth=min(look.width, 1.6), label=run.label,
        )  # fmt: skip
        axis.axhline(median(seconds[1:] or seconds), color=look.colour, linewidth=0.8, alpha=0.6)
    axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
    axis.set_ylabel(f"time ({unit})")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _with_legend(figure) if len(runs) > 1 else figure


def _stacked(
    per_rank: Sequence[dict[str, Any]],
    parts: Mapping[str, Part],
    label: str,
    unranked: Sequence[str],
) -> Figure:
    figure = new_figure(_WIDTH, _HEIGHT + 0.1 * -(-len(parts) // 4))
    axis = figure.subplots()
    unit = stack_seconds(axis, per_rank, parts, unranked)
    axis.set_ylabel(f"{label} ({unit})")
    return _with_legend(figure)


def _draw_matrix(traffic: dict[str, Any]) -> Figure:
    figure = new_figure(_WIDTH, _HEIGHT + 0.3)
    axis = figure.subplots()
    heat_map(figure, axis, np.array(traffic["bytes"]["matrix"], dtype=float))
    axis.set(xlabel="receiving rank", ylabel="sending rank")
    return figure


def _draw_totals(traffic: dict[str, Any]) -> Figure:
    figure = new_figure(_WIDTH, _HEIGHT)
    axis = figure.subplots()
    show_totals(axis, traffic["bytes"]["sent"], traffic["bytes"]["received"])
    axis.set_title("")
    return figure


def _draw_peaks(memory: RunMemory) -> Figure:
    peaks = [each.peak / _MEBI for each in memory.ranks]
    figure, axis, bars = _memory_bars(memory, peaks)
    stack_bars(axis, bars, {"measured": (peaks, _PEAK, "")})
    if memory.plan is not None:
        planned = memory.plan["peak_bytes"] / _MEBI
        axis.axhline(planned, color=_PLAN, linestyle="--", label="plan")
        hint(axis.lines[-1], f"plan, rank {memory.plan['rehearsed_rank']}: {planned:.0f} MiB")
    return _with_legend(figure)


def _draw_rows(memory: RunMemory, bounded: bool) -> Figure:
    assert memory.whole is not None
    own = [(each.own or 0) / _MEBI for each in memory.ranks]
    ghosts = [each.ghosts / _MEBI for each in memory.ranks]
    figure, axis, bars = _memory_bars(memory, [sum(pair) for pair in zip(own, ghosts, strict=True)])
    stack_bars(axis, bars, {"own": (own, _OWN, ""), "of other ranks": (ghosts, _GHOST, "///")})
    for share, style in ((2, "--"), (3, ":")) if bounded else ():
        level = share * memory.whole / len(memory.ranks) / _MEBI
        axis.axhline(level, color=_PLAN, linestyle=style, label=f"{share}/N")
    if memory.plan is not None:
        rehearsed = memory.plan["rehearsed_rank"]
        name = f"rank {rehearsed}"
        if name in bars.names:
            rank = next(each for each in memory.ranks if each.rank == rehearsed)
            level = ((rank.own or 0) + memory.plan["ghost_bytes"]) / _MEBI
            axis.plot([bars.names.index(name)], [level], "D", color="#009e73", label="plan")
    return _with_legend(figure)


def _memory_bars(memory: RunMemory, heights: Sequence[float]) -> tuple[Figure, Axes, Bars]:
    figure = new_figure(_WIDTH, _HEIGHT)
    axis = figure.subplots()
    axis.set_ylabel("MiB")
    return figure, axis, Bars.of([each.rank for each in memory.ranks], heights)


def _with_legend(figure: Figure) -> Figure:
    """Add a legend below the figure, one entry for each label, and make room for it."""
    entries = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels()), strict=True))
    longest = max(map(len, entries), default=0)
    columns = 4 if longest <= 9 else 3 if longest <= 14 else 2 if longest <= 26 else 1
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.16 * max(-(-len(entries) // columns) - 1, 0))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns)
    return figure
