"""One page of HTML about a run or many, which needs no network and no other file.

``hpcgnn analyse report RUN [RUN...] [-o report.html]``. Figures are drawn by matplotlib as SVG
inside the page, with their text as text: they print, follow the reader's light or dark colours, and
need no script.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from hpcgnn.analysis.breakdown import PHASE_ORDER
from hpcgnn.analysis.comm_matrix import heat_map, show_totals
from hpcgnn.analysis.comm_matrix import summarise as summarise_traffic
from hpcgnn.analysis.curves import METRICS, RunCurves
from hpcgnn.analysis.epoch_breakdown import LOOKS, arrivals, stack_bars
from hpcgnn.analysis.epoch_breakdown import summarise as summarise_epochs
from hpcgnn.analysis.figures import hint, new_figure, scaled, spread
from hpcgnn.analysis.learning_curves import LABELS, draw_panel
from hpcgnn.analysis.load import Run, open_runs
from hpcgnn.analysis.memory import RunMemory, measure_memory
from hpcgnn.analysis.page import Cell, FigureOf, Page
from hpcgnn.analysis.sessions import Trace
from hpcgnn.analysis.settings import Settings, differing_keys, read_settings
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError
from hpcgnn.storage import write_whole
from hpcgnn.trace import describe_epochs

NAME = "report"

_WIDTH, _HEIGHT = 4.4, 3.1
_MOST_BYTES = 4_500_000
_MEBI = 2**20
_GHOST, _OWN, _PEAK = "#e69f00", "#0b72b5", "#8aa4c4"


@dataclass(frozen=True)
class Subject:
    """A run with what could be read of it; None for what it has not recorded."""

    run: Run
    settings: Settings
    curves: RunCurves | None
    epochs: dict[str, Any] | None
    traffic: dict[str, Any] | None
    memory: RunMemory | None

    @property
    def epoch(self) -> dict[str, Any]:
        """What is said of its epochs, see `hpcgnn.trace.epochs`."""
        return describe_epochs(self.run.metrics() if self.run.has_metrics else [])

    @property
    def session(self) -> dict[str, Any]:
        """The last start of the run, as `sessions.json` describes it."""
        sessions = self.run.sessions()
        return sessions[-1] if sessions else {}


def read_subject(run: Run) -> Subject:
    """Read all that a page tells of a run.

    Raises
    ------
    InputError
        If a file of it is damaged, or its configuration is missing.
    """
    curves = RunCurves(run) if run.has_metrics else None
    trace = Trace(run) if run.has_traces else None
    epochs = traffic = None
    if trace is not None:
        epochs, traffic = summarise_epochs(trace), summarise_traffic(trace)
    memory = measure_memory(run, trace)
    return Subject(run, read_settings(run.path), curves, epochs, traffic, memory)


def make_page(subjects: Sequence[Subject]) -> Page:
    """Return the page of some runs."""
    names = ", ".join(each.run.name for each in subjects[:3])
    title = names + (f" and {len(subjects) - 3} more" if len(subjects) > 3 else "")
    first = subjects[0]
    graph = ", ".join(dict.fromkeys(str(each.run.summary.get("name", "")) for each in subjects))
    started = first.session.get("started", "")[:16].replace("T", " ")
    date = f"; started {started} UTC" if started else ""
    count = f"{len(subjects)} runs" if len(subjects) > 1 else "One run"
    page = Page(f"hpcgnn: {title}", f"{count} on {graph or 'a graph'}{date}")
    _results(page, subjects)
    if len(subjects) > 1:
        _differences(page, subjects)
        _comparison(page, subjects)
    _learning(page, subjects)
    page.section(
        "Each run" if len(subjects) > 1 else "The run, by rank",
        "Seconds are means over the epochs of a run. Imbalance is the maximum over ranks divided "
        "by the mean, less 1.",
    )
    left_out = []
    for subject in subjects:
        if page.size > _MOST_BYTES:
            left_out.append(subject.run.name)
            continue
        if len(subjects) > 1:
            page.fold(subject.run.name, opened=len(subjects) <= 4)
        _by_rank(page, subject)
        if len(subjects) > 1:
            page.unfold()
    if left_out:
        page.text(f"Left out, or the page would pass 5 MB: {', '.join(left_out)}.")
    _environment(page, subjects)
    _configuration(page, subjects)
    return page


def _results(page: Page, subjects: Sequence[Subject]) -> None:
    page.section("Results", "Figures of merit are of the kept model, mean ± deviation over seeds.")
    rows: list[list[str | Cell]] = []
    for each in subjects:
        summary, session = each.run.summary, each.session
        curves = each.curves.summary() if each.curves else {}
        epoch = each.epoch["epoch_s"]["median"]
        peak = max((rank.peak for rank in each.memory.ranks), default=None) if each.memory else None
        size = each.epoch["epoch_bytes"]
        wall = session.get("wall_s")
        rows.append(
            [
                each.run.name,
                str(summary.get("name", "")),
                str(summary.get("model") or each.settings.get("model.name", "")),
                str(summary.get("exchange", "")),
                _number(summary.get("ranks"), "{:.0f}"),
                _number(summary.get("epochs", len(each.curves) if each.curves else 0), "{:.0f}"),
                _merit(curves.get("valid")),
                _merit(curves.get("test")),
                _number(epoch, "{:.3f}"),
                _number(size, "{:.2f}", 1e-6),
                _number(peak, "{:.0f}", 1 / _MEBI),
                _number(wall, "{:.0f}"),
                "ended" if summary else "not ended",
            ]
        )
    page.table(
        ("run", "graph", "model", "exchange", "ranks", "epochs", "valid %", "test %",
         "epoch s", "MB an epoch", "peak MiB", "wall s", "state"),
        rows,
    )  # fmt: skip


def _number(value: float | None, form: str, factor: float = 1.0) -> Cell:
    return Cell("") if value is None else Cell(form.format(value * factor), value)


def _merit(entry: dict[str, Any] | None) -> Cell:
    if not entry or entry["mean"] is None:
        return Cell("")
    deviation = f" ± {100 * entry['std']:.2f}" if entry["std"] else ""
    return Cell(f"{100 * entry['mean']:.2f}{deviation}", entry["mean"])


def _differences(page: Page, subjects: Sequence[Subject]) -> None:
    page.section("How the runs differ")
    keys = differing_keys([each.settings for each in subjects])
    ranks = {each.run.summary.get("ranks") for each in subjects}
    if not keys:
        more = ", but for the number of ranks" if len(ranks) > 1 else ""
        page.text(f"Their configurations are equal{more}.")
        return
    page.table(
        ("run", *keys),
        [[each.run.name, *(_setting(each.settings.get(key)) for key in keys)] for each in subjects],
    )


def _setting(value: object) -> Cell:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    return Cell("" if value is None else str(value), number)


def _comparison(page: Page, subjects: Sequence[Subject]) -> None:
    """Add the figures that set runs side by side."""
    page.section("Runs side by side")
    names = [each.run.name for each in subjects]
    figures = []
    if any(each.epochs for each in subjects):
        means = [_phase_means(each.epochs) for each in subjects]
        note = "Mean over ranks and epochs. " + _missing(
            "trace", [each.run.name for each in subjects if each.epochs is None]
        )
        figures.append(
            FigureOf("Epoch by phase", partial(_draw_phases, names, means), note.strip())
        )
    for caption, label, values in (
        (
            "Sent in the median epoch",
            "all ranks",
            [each.epoch["epoch_bytes"] for each in subjects],
        ),
        (
            "Peak memory",
            "rank that needed most",
            [
                max(rank.peak for rank in each.memory.ranks) if each.memory else None
                for each in subjects
            ],
        ),
    ):
        if any(value for value in values):
            figures.append(FigureOf(f"{caption}, {label}", partial(_draw_bars, names, values)))
    page.figures(figures)


def _missing(what: str, names: Sequence[str]) -> str:
    return f"No {what}: {', '.join(names)}." if names else ""


def _phase_means(epochs: dict[str, Any] | None) -> dict[str, float]:
    if epochs is None:
        return {}
    rows = [entry["phases_s"] for entry in epochs["per_rank"]]
    return {
        phase: float(np.mean([row.get(phase, 0.0) for row in rows]))
        for phase in PHASE_ORDER
        if any(phase in row for row in rows)
    }


def _lying(names: Sequence[str]) -> tuple[Figure, Any]:
    """Return a figure for a lying bar for each name, the first one on top."""
    figure = new_figure(_WIDTH, max(_HEIGHT, 1.1 + 0.22 * len(names)))
    axis = figure.subplots()
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(max(len(names), 3) - 0.4, -0.6)
    axis.grid(axis="x")
    return figure, axis


def _draw_phases(names: Sequence[str], means: Sequence[dict[str, float]]) -> Figure:
    figure, axis = _lying(names)
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
    axis.set_xlabel(f"time per epoch ({unit})")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_bars(names: Sequence[str], values: Sequence[float | None]) -> Figure:
    figure, axis = _lying(names)
    numbers = [value or 0.0 for value in values]
    factor, unit = scaled(max(numbers), "B")
    bars = axis.barh(range(len(names)), [factor * value for value in numbers], color=_OWN)
    for name, bar, value in zip(names, bars, numbers, strict=True):
        hint(bar, f"{name}: {factor * value:.4g} {unit}")
    axis.set_xlabel(unit)
    return figure


def _learning(page: Page, subjects: Sequence[Subject]) -> None:
    learned = [each for each in subjects if each.curves is not None]
    if not learned:
        return
    curves = [each.curves for each in learned if each.curves is not None]
    seeds = max(len(each.seeds) for each in curves)
    band = "Lines are means over seeds, bands one deviation. " if seeds > 1 else ""
    page.section(
        "Learning",
        f"{band}Dashed: training nodes, dotted: validation, full: test; epochs count from 0.",
    )
    metrics = [name for name in METRICS if any(name in each.metrics for each in curves)]
    page.figures(
        [
            FigureOf(
                LABELS[name][0].upper() + LABELS[name][1:], partial(_draw_learning, curves, name)
            )
            for name in ("loss", *metrics)
        ]
    )
    rows: list[list[str | Cell]] = []
    for each in learned:
        assert each.curves is not None
        rows += [
            [
                each.run.name,
                _setting(seed["seed"]),
                _setting(seed["epochs"]),
                _setting(seed["best_epoch"]),
                _number(seed["valid"], "{:.2f}", 100),
                _number(seed["test"], "{:.2f}", 100),
                _number(seed["final_train_loss"], "{:.4f}"),
            ]
            for seed in each.curves.final()
        ]
    page.table(
        ("run", "seed", "epochs", "kept epoch", "valid %", "test %", "last train loss"), rows
    )


def _draw_learning(curves: Sequence[RunCurves], name: str) -> Figure:
    rows = max(1, len(curves))
    figure = new_figure(_WIDTH, _HEIGHT + 0.14 * rows)
    axis = figure.subplots()
    draw_panel(axis, curves, name)
    axis.set(xlabel="epoch", ylabel=LABELS[name])
    if name != "loss":
        axis.set_ylabel(f"{LABELS[name]} (%)")
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    axis.grid()
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axis.get_legend_handles_labels()
    if len(curves) > 1:
        # A line a run: the dashes are explained in the text.
        chosen: dict[str, Any] = {}
        for handle, label in zip(handles, labels, strict=True):
            chosen[label.rpartition(":")[0]] = handle
        handles, labels = list(chosen.values()), list(chosen)
    figure.legend(
        handles, labels, loc="outside lower center", fontsize=8, ncols=3 if len(curves) == 1 else 2
    )
    return figure


def _by_rank(page: Page, subject: Subject) -> None:
    """Add the figures and the table of a run's ranks."""
    figures = []
    epochs, traffic, memory = subject.epochs, subject.traffic, subject.memory
    if epochs is not None and epochs["epochs"]:
        figures.append(
            FigureOf("Epoch by phase and rank", partial(_draw_epochs, epochs), _waiting(epochs))
        )
        if epochs["ranks"] > 1:
            figures.append(
                FigureOf(
                    "Communication by rank",
                    partial(_draw_communication, epochs),
                    "Hidden: seconds of computing while rows moved. "
                    + arrivals(epochs["per_rank"]),
                )
            )
    if traffic is not None and traffic["bytes"]["total"]:
        figures += [
            FigureOf("Bytes from rank to rank", partial(_draw_matrix, traffic)),
            FigureOf("Bytes by rank", partial(_draw_totals, traffic)),
        ]
    if memory is not None:
        figures.append(
            FigureOf(
                "Peak memory of the processes",
                partial(_draw_peaks, memory),
                "" if memory.plan else "No plan.json of this run in its directory: no prediction.",
            )
        )
        if memory.whole is not None and len(memory.ranks) > 1:
            figures.append(
                FigureOf(
                    "Rows in memory, against 2/N and 3/N",
                    partial(_draw_rows, memory),
                    "Rows of the widest kind that travels in an epoch: a rank's own, and the most "
                    "of other ranks that it held at once. The sequential schedule keeps to 2/N of "
                    "all when parts are equal, with prefetch to 3/N.",
                )
            )
    page.figures(figures)
    if epochs is None:
        page.text("No trace: seconds below are of the whole run, set-up included.")
    rows = list(_rank_rows(subject))
    if rows:
        page.table(("over ranks", "min", "median", "max", "imbalance %"), rows)


def _waiting(epochs: dict[str, Any]) -> str:
    return (
        f"{epochs['epochs']} epochs on {epochs['ranks']} ranks. In wait, a slower rank looks like "
        "communication."
        + (f" No trace of ranks {epochs['missing_ranks']}." if epochs["missing_ranks"] else "")
    )


def _rank_rows(subject: Subject) -> Iterable[list[str | Cell]]:
    """Yield a line for each figure that ranks differ in."""
    if subject.epochs is not None:
        for phase, entry in subject.epochs["phases"].items():
            yield _spread_row(f"{phase}, s an epoch", entry, "_s", 1.0, "{:.4f}")
    details = subject.run.summary.get("ranks_detail", [])
    if subject.epochs is None:
        for phase in PHASE_ORDER:
            seconds = [each["seconds_by_phase"].get(phase, 0.0) for each in details]
            if any(seconds):
                yield _spread_row(f"{phase}, s", spread(seconds), "", 1.0, "{:.3f}")
    for key, label, factor, form in (
        ("local_nodes", "nodes", 1.0, "{:.0f}"),
        ("local_edges", "edges", 1.0, "{:.0f}"),
        ("rows_sent", "rows sent", 1.0, "{:.0f}"),
        ("bytes_sent", "MB sent", 1e-6, "{:.2f}"),
        ("ghost_bytes_max", "rows of others at once, MiB", 1 / _MEBI, "{:.2f}"),
        ("peak_rss_bytes", "peak memory, MiB", 1 / _MEBI, "{:.0f}"),
    ):
        values = [each[key] for each in details if key in each]
        if values:
            yield _spread_row(label, spread(values), "", factor, form)


def _spread_row(
    label: str, entry: dict[str, float], suffix: str, factor: float, form: str
) -> list[str | Cell]:
    levels = [_number(entry[key + suffix], form, factor) for key in ("min", "median", "max")]
    return [label, *levels, _number(entry["imbalance"], "{:.1f}", 100)]


def _draw_epochs(epochs: dict[str, Any]) -> Figure:
    per_rank = epochs["per_rank"]
    factor, unit = scaled(max(sum(entry["phases_s"].values()) for entry in per_rank), "s")
    phases = [name for name in PHASE_ORDER if any(name in each["phases_s"] for each in per_rank)]
    parts = {
        phase: ([factor * entry["phases_s"].get(phase, 0.0) for entry in per_rank], *LOOKS[phase])
        for phase in phases
    }
    return _stacked(per_rank, parts, f"time per epoch ({unit})")


def _draw_communication(epochs: dict[str, Any]) -> Figure:
    per_rank = epochs["per_rank"]
    largest = max(entry["exposed_s"] + entry["hidden_s"] for entry in per_rank)
    factor, unit = scaled(largest, "s")
    parts = {
        label: ([factor * entry[key] for entry in per_rank], *look)
        for label, key, look in (
            ("exchange, wait, reduce", "exposed_s", ("#0b4f8a", "")),
            ("hidden behind computing", "hidden_s", ("#bfe0f3", "///")),
        )
    }
    return _stacked(per_rank, parts, f"per epoch ({unit})")


def _stacked(per_rank: Sequence[dict[str, Any]], parts: dict[str, Any], label: str) -> Figure:
    figure = new_figure(_WIDTH, _HEIGHT + 0.1 * -(-len(parts) // 4))
    axis = figure.subplots()
    stack_bars(axis, [entry["rank"] for entry in per_rank], parts, legend=False)
    axis.set(xlabel="rank", ylabel=label)
    figure.legend(loc="outside lower center", ncols=min(len(parts), 4), fontsize=8)
    return figure


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
    parts = {"measured": ([each.peak / _MEBI for each in memory.ranks], _PEAK, "")}
    figure, axis = _memory_bars(memory, parts)
    if memory.plan is not None:
        planned = memory.plan["peak_bytes"] / _MEBI
        axis.axhline(planned, color="#d55e00", linestyle="--", label="plan")
        hint(axis.lines[-1], f"plan, rank {memory.plan['rehearsed_rank']}: {planned:.0f} MiB")
    return _with_legend(figure)


def _draw_rows(memory: RunMemory) -> Figure:
    assert memory.whole is not None
    parts = {
        "own": ([(each.own or 0) / _MEBI for each in memory.ranks], _OWN, ""),
        "of other ranks": ([each.ghosts / _MEBI for each in memory.ranks], _GHOST, "///"),
    }
    figure, axis = _memory_bars(memory, parts)
    for share, style in ((2, "--"), (3, ":")):
        level = share * memory.whole / len(memory.ranks) / _MEBI
        axis.axhline(level, color="#d55e00", linestyle=style, label=f"{share}/N")
    if memory.plan is not None:
        own = next(e.own or 0 for e in memory.ranks if e.rank == memory.plan["rehearsed_rank"])
        level = (own + memory.plan["ghost_bytes"]) / _MEBI
        where = memory.plan["rehearsed_rank"]
        axis.plot([where], [level], "D", color="#009e73", markersize=5, label="plan")
    return _with_legend(figure)


def _memory_bars(memory: RunMemory, parts: dict[str, Any]) -> tuple[Figure, Any]:
    figure = new_figure(_WIDTH, _HEIGHT)
    axis = figure.subplots()
    stack_bars(axis, [each.rank for each in memory.ranks], parts, legend=False)
    axis.set(xlabel="rank", ylabel="MiB")
    return figure, axis


def _with_legend(figure: Figure) -> Figure:
    figure.legend(loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _environment(page: Page, subjects: Sequence[Subject]) -> None:
    rows: list[list[str | Cell]] = []
    for each in subjects:
        for number, session in enumerate(each.run.sessions(), start=1):
            hosts = ", ".join(
                f"{host['name']}: {host['ranks']} ranks, {host['cores']} cores, {host['processor']}"
                for host in session.get("hosts", ())
            )
            versions = ", ".join(
                f"{name} {value}" for name, value in session.get("versions", {}).items()
            )
            setup = session.get("setup_s", {})
            rows.append(
                [
                    f"{each.run.name}, start {number}",
                    session.get("started", "")[:19].replace("T", " "),
                    _number(session.get("wall_s"), "{:.1f}"),
                    _number(session.get("epochs"), "{:.0f}"),
                    _number(sum(setup.values()) if setup else None, "{:.2f}"),
                    Cell(
                        ", ".join(f"{key} {value:.2f}" for key, value in setup.items()), long=True
                    ),
                    session.get("launcher", ""),
                    _setting(session.get("threads")),
                    (session.get("commit") or "")[:12] + _dirty(session.get("commit")),
                    Cell(hosts, long=True),
                    Cell(versions, long=True),
                    Cell(" ".join(session.get("command", ())), long=True),
                ]
            )
    if not rows:
        return
    page.section(
        "Environment",
        "Every start of every run; times in UTC. Set-up is the seconds before the first epoch, of "
        "the rank that needed most in each phase.",
    )
    page.table(
        ("start", "date", "wall s", "epochs", "set-up s", "by phase, s", "launcher", "threads",
         "commit", "hosts", "versions", "command"),
        rows,
    )  # fmt: skip


def _dirty(commit: str | None) -> str:
    return " with changes" if commit and commit.endswith("-dirty") else ""


def _configuration(page: Page, subjects: Sequence[Subject]) -> None:
    differing = set(differing_keys([each.settings for each in subjects])) | {"run.dir"}
    shared = {key: value for key, value in subjects[0].settings.items() if key not in differing}
    single = len(subjects) == 1
    page.section("Configuration" if single else "What all configurations share")
    page.fold(f"{len(shared)} keys", opened=False)
    page.table(("key", "value"), [[key, _setting(value)] for key, value in shared.items()])
    page.unfold()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(f"analyse {NAME}", _PURPOSE)
    parser.add_argument("run", metavar="RUN", nargs="+", help="run directory of a training run")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.html",
        help="where the page goes (default: report.html in the directory of the first run)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


_PURPOSE = "Write one page of HTML about runs, which needs no network and no other file."


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    subjects = [read_subject(run) for run in open_runs(options.run)]
    page = make_page(subjects)
    output = options.output or subjects[0].run.path / "report.html"
    if not output.parent.is_dir():
        raise InputError(f"{output.parent}: is not a directory; make it or choose another -o")
    content = page.html().encode()
    write_whole(output, content, streams=True)
    if options.json:
        print_json({"path": str(output), "figures": page.num_figures, "bytes": len(content)})
    else:
        report(f"{page.num_figures} figures, {len(content) / 1e6:.2f} MB; open it in a browser:")
        print(output.resolve())


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
