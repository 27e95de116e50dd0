"""Breakdown of an epoch's time: seconds by phase over ranks, exposed and hidden communication.

``hpcgnn analyse epoch_breakdown RUN``; `analysis.breakdown` defines the quantities.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcgnn.analysis.breakdown import (
    COMMUNICATION,
    OTHER,
    PHASE_ORDER,
    RankTimes,
    SpanTotal,
    measure_rank,
)
from hpcgnn.analysis.figures import (
    Bars,
    argument_parser,
    hint,
    new_figure,
    publish,
    scaled,
    spread,
)
from hpcgnn.analysis.load import open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.analysis.trace import first_sent, in_order, read_sessions
from hpcgnn.analysis.waiting import Waits, who_waits
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_table
from hpcgnn.errors import InputError

NAME = "epoch_breakdown"

Part = tuple[list[float], str, str]
"""Heights, colour and hatch of one part of the bars."""

# Blue is communication, warm colours computation, grey the rest; hatches work without colour.
LOOKS = {
    "exchange": ("#0b4f8a", ""),
    "wait": ("#56a8dc", "///"),
    "reduce": ("#bfe0f3", "..."),
    "interior": ("#e69f00", ""),
    "boundary": ("#f5d06f", "\\\\\\"),
    "dense": ("#b5480c", ""),
    "optimiser": ("#7a5195", ""),
    "evaluate": ("#4d4d4d", ""),
    "checkpoint": ("#8c8c8c", "xxx"),
    "read": ("#a6761d", "---"),
    "plan": ("#c9c9c9", "|||"),
    OTHER: ("#eeeeee", ""),
}


def summarise(trace: Trace) -> dict[str, Any]:
    """Return the breakdown of all ranks: seconds of one epoch, and total seconds outside epochs.

    The seconds of a phase are its share of the time of all counted epochs, times the median epoch:
    the phases of a rank add up to the seconds of an epoch (`hpcgnn.trace.epochs`).

    Raises `InputError` if no rank has recorded a span.
    """
    sessions = in_order(read_sessions(trace))
    sent, waits = first_sent(sessions), who_waits(trace, sessions)
    ranks = [
        measure_rank(rank, trace.spans(rank), sent.get(rank), trace.epoch_s) for rank in trace.ranks
    ]
    if not any(times.names or times.outside for times in ranks):
        raise InputError("the trace holds no span yet; wait until the run has read its graph")
    usual_s = None if trace.epoch_s is None else median(trace.epoch_s.values())

    def share(times: RankTimes, seconds: float) -> float:
        if usual_s is None:
            return seconds / max(times.counted, 1)
        return usual_s * seconds / times.wall if times.wall else 0.0

    wall = sum(share(times, times.wall) for times in ranks)
    return {
        "ranks": trace.num_ranks,
        "missing_ranks": trace.missing,
        "sessions": trace.num_sessions,
        "epochs": max(times.epochs for times in ranks),
        "counted": max(times.counted for times in ranks),
        "epoch_s": max(share(times, times.wall) for times in ranks),
        "phases": _by_phase(ranks, partial(_phases, share), wall),
        "outside_epochs": _by_phase(ranks, lambda times: times.outside, None),
        "communication": _communication(ranks, share, wall, waits),
        "spans": _by_name(ranks),
        "per_rank": [_rank_entry(times, share, waits[times.rank]) for times in ranks],
    }


Share = Callable[[RankTimes, float], float]
"""Converts a rank's seconds in all counted epochs to seconds of one epoch."""


def _phases(share: Share, times: RankTimes) -> dict[str, float]:
    return {phase: share(times, seconds) for phase, seconds in times.phases.items()}


def _by_phase(
    ranks: Sequence[RankTimes],
    seconds_of: Callable[[RankTimes], dict[str, float]],
    wall: float | None,
) -> dict[str, Any]:
    rows = [seconds_of(times) for times in ranks]
    result: dict[str, Any] = {}
    for phase in PHASE_ORDER:
        values = [row.get(phase, 0.0) for row in rows]
        if any(values):
            result[phase] = spread(values, "_s")
            if wall is not None:
                result[phase]["share"] = sum(values) / wall if wall else 0.0
    return result


def _communication(
    ranks: Sequence[RankTimes], share: Share, wall: float, waits: Mapping[int, Waits]
) -> dict[str, Any]:
    kinds: dict[str, Callable[[RankTimes], float]] = {
        "exposed": lambda times: times.exposed,
        "of it for late ranks": lambda times: sum(waits[times.rank].late_s.values()),
        "of it for rows that move": lambda times: waits[times.rank].moving_s,
        "hidden": lambda times: times.hidden.hidden_s,
        "coverable": lambda times: times.hidden.coverable_s,
    }
    result: dict[str, Any] = {}
    for kind, seconds in kinds.items():
        values = [share(times, seconds(times)) for times in ranks]
        result[kind] = {**spread(values, "_s"), "share": sum(values) / wall if wall else 0.0}
    return result


def _by_name(ranks: Sequence[RankTimes]) -> dict[str, Any]:
    sums: dict[str, SpanTotal] = defaultdict(SpanTotal)
    for times in ranks:
        for name, total in times.names.items():
            sums[name].include(total)
    return {name: asdict(sums[name]) for name in sorted(sums)}


def _rank_entry(times: RankTimes, share: Share, waits: Waits) -> dict[str, Any]:
    epochs = max(times.counted, 1)
    return {
        "rank": times.rank,
        "epochs": times.epochs,
        "phases_s": _phases(share, times),
        "outside_epochs_s": dict(times.outside),
        "exposed_s": share(times, times.exposed),
        "late_s": {str(rank): share(times, late) for rank, late in waits.late_s.items()},
        "moving_s": share(times, waits.moving_s),
        "moved_bytes": round(waits.moved_bytes / epochs),
        "moves": round(waits.moves / epochs),
        "hidden_s": share(times, times.hidden.hidden_s),
        "coverable_s": share(times, times.hidden.coverable_s),
        "exchanges": round(times.hidden.exchanges / epochs),
        "awaited_bytes": round(times.hidden.awaited_bytes / epochs),
        "arrived_bytes": round(times.hidden.arrived_bytes / epochs),
    }


def show(name: str, summary: dict[str, Any]) -> None:
    size = f"ranks: {summary['ranks']}, epochs: {summary['epochs']}"
    if summary["missing_ranks"]:
        print(f"note: no trace of ranks {summary['missing_ranks']}; they are left out")
    if summary["phases"]:
        _show_times(f"{name}: time per epoch over ranks ({size})", summary["phases"])
        _show_times("Communication per epoch", summary["communication"])
        print(arrivals(summary["per_rank"]))
    if summary["outside_epochs"]:
        _show_times(f"{name}: time outside epochs", summary["outside_epochs"])


def arrivals(per_rank: Sequence[dict[str, Any]]) -> str:
    """Return a sentence about arrived bytes and hidden communication."""
    keys = ("exchanges", "awaited_bytes", "arrived_bytes", "hidden_s", "coverable_s")
    exchanges, awaited, arrived, hidden, coverable = (
        sum(entry[key] for entry in per_rank) for key in keys
    )
    if not awaited:
        return "It was not measured how much had arrived when waiting began."
    share = f"{100 * hidden / coverable:.0f} % of what it could have" if coverable else "nothing"
    return (
        f"Of {awaited / 1e6:.4g} MB in {exchanges} exchanges of an epoch, "
        f"{100 * arrived / awaited:.0f} % had arrived when waiting began. "
        f"Computation hid {share}."
    )


def _show_times(title: str, entries: dict[str, dict[str, float]]) -> None:
    factor, unit = scaled(max(entry["max_s"] for entry in entries.values()), "s")
    columns = ["", *(f"{key} ({unit})" for key in ("min", "median", "max")), "imbalance", "share"]
    rows = [
        [
            label,
            *(f"{factor * entry[key]:.3f}" for key in ("min_s", "median_s", "max_s")),
            f"{100 * entry['imbalance']:.1f} %",
            f"{100 * entry['share']:.1f} %" if "share" in entry else "",
        ]
        for label, entry in entries.items()
    ]
    print_table(title, columns, rows)


def draw(name: str, summary: dict[str, Any]) -> Figure:
    """Draw a stacked bar for each rank; before the first epoch, of the time outside epochs."""
    inside = summary["epochs"] > 0
    per_rank, key = summary["per_rank"], "phases_s" if inside else "outside_epochs_s"
    figure = new_figure(7.5, 5.6 if inside else 3.6)
    axes = figure.subplots(2 if inside else 1, 1, squeeze=False, height_ratios=[3, 1][: 1 + inside])
    unit = stack_seconds(axes[0, 0], per_rank, phase_parts(per_rank, key), COMMUNICATION)
    label = "time per epoch" if inside else "time outside epochs"
    axes[0, 0].set(title=f"{name}: {label} by phase", ylabel=f"{label} ({unit})")
    if inside:
        unit = stack_seconds(axes[1, 0], per_rank, communication_parts(per_rank))
        axes[1, 0].set(title="Communication", ylabel=f"per epoch ({unit})")
    for axis in axes.flat:
        if axis.containers:
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
    return figure


def phase_parts(per_rank: Sequence[dict[str, Any]], key: str = "phases_s") -> dict[str, Part]:
    """Return seconds by phase of each rank."""
    phases = [phase for phase in PHASE_ORDER if any(phase in entry[key] for entry in per_rank)]
    return {
        phase: ([entry[key].get(phase, 0.0) for entry in per_rank], *LOOKS[phase])
        for phase in phases
    }


def communication_parts(per_rank: Sequence[dict[str, Any]]) -> dict[str, Part]:
    """Return the parts of each rank's communication, exposed and hidden."""
    late = [sum(entry["late_s"].values()) for entry in per_rank]
    moving = [entry["moving_s"] for entry in per_rank]
    exposed = [entry["exposed_s"] for entry in per_rank]
    rest = [max(all_ - a - b, 0.0) for all_, a, b in zip(exposed, late, moving, strict=True)]
    return {
        "waiting for late ranks": (late, "#56a8dc", "///"),
        "waiting for rows": (moving, "#0b4f8a", ""),
        "packing and other": (rest, "#8c8c8c", "xxx"),
        "hidden": ([entry["hidden_s"] for entry in per_rank], "#bfe0f3", "..."),
    }


def stack_seconds(
    axis: Axes,
    per_rank: Sequence[dict[str, Any]],
    parts: Mapping[str, Part],
    unranked: Sequence[str] = (),
) -> str:
    """Draw stacked bars of seconds, without a legend; return their unit.

    With many ranks, those highest in the parts other than `unranked` get a bar.
    """
    heights = [sum(part[0][rank] for part in parts.values()) for rank in range(len(per_rank))]
    ranked = [part[0] for label, part in parts.items() if label not in unranked]
    factor, unit = scaled(max(heights), "s")
    in_unit = {
        label: ([factor * value for value in values], colour, hatch)
        for label, (values, colour, hatch) in parts.items()
    }
    order = list(map(sum, zip(*ranked, strict=True))) or heights
    stack_bars(axis, Bars.of([entry["rank"] for entry in per_rank], order), in_unit)
    return unit


def stack_bars(axis: Axes, bars: Bars, parts: Mapping[str, Part]) -> None:
    """Draw stacked bars; `parts` (label to values, from the bottom) have a value per rank."""
    bottom = [0.0] * len(bars.places)
    for label, (every, colour, hatch) in parts.items():
        values = bars.pick(every)
        drawn = axis.bar(
            range(len(values)),
            values,
            bottom=bottom,
            label=label,
            color=colour,
            hatch=hatch,
            width=0.75,
            edgecolor="0.35" if hatch or label == OTHER else "white",
            linewidth=0.4,
        )
        for name, bar, value in zip(bars.names, drawn, values, strict=True):
            if value > 0:
                hint(bar, f"{name}, {label}: {value:.4g}")
        bottom = [low + value for low, value in zip(bottom, values, strict=True)]
    bars.label(axis)
    axis.grid(axis="y")


def main(arguments: Sequence[str] | None = None) -> None:
    options = argument_parser(NAME, "Seconds by phase of an epoch, over ranks.").parse_args(
        arguments
    )
    run = open_run(options.run)
    summary = summarise(Trace(run))
    facts = {"run": str(run.path), **summary}
    told = run.name, summary
    publish(options, NAME, partial(draw, *told), run.path / "analysis", facts, partial(show, *told))


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
