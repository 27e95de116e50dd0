"""Write one self-contained HTML page about a run or several.

``hpcgnn analyse report RUN [RUN...] [-o report.html]``. Figures are SVG inside the page, drawn by
matplotlib with their text as text: they print well, follow the reader's light or dark colours, and
need no script.
"""

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hpcgnn.analysis import charts
from hpcgnn.analysis.answers import answer
from hpcgnn.analysis.breakdown import PHASE_ORDER
from hpcgnn.analysis.causes import seconds_text
from hpcgnn.analysis.curves import RunCurves, figure_text
from hpcgnn.analysis.figures import spread
from hpcgnn.analysis.load import open_runs
from hpcgnn.analysis.page import Cell, Page
from hpcgnn.analysis.rollout_figures import error_figures
from hpcgnn.analysis.settings import differing_keys
from hpcgnn.analysis.subject import Subject, read_subject
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_command
from hpcgnn.console import is_error, metric_factor, print_json, report
from hpcgnn.errors import InputError
from hpcgnn.storage import write_whole

NAME = "report"

_MOST_BYTES = 4_500_000
_MEBI = 2**20
_FEW = 4
"""Up to this many runs are shown expanded; more are collapsed."""


def make_page(subjects: Sequence[Subject]) -> Page:
    """Return the page about runs, the best by validation first."""
    subjects = sorted(subjects, key=_rank)
    names = ", ".join(each.run.name for each in subjects[:3])
    title = names + (f" and {len(subjects) - 3} more" if len(subjects) > 3 else "")
    first = subjects[0]
    graph = ", ".join(dict.fromkeys(str(each.run.summary.get("name", "")) for each in subjects))
    started = first.session.get("started", "")[:16].replace("T", " ")
    date = f"; started {started} UTC" if started else ""
    count = f"{len(subjects)} runs" if len(subjects) > 1 else "One run"
    page = Page(f"hpcgnn: {title}", f"{count} on {graph or 'a graph'}{_shared(subjects)}{date}")
    if len(subjects) == 1:
        page.section("Answers")
        page.answers(list(answer(first).sentences), answer(first).command)
    _results(page, subjects)
    if len(subjects) > 1:
        _differences(page, subjects)
        page.section("Runs side by side")
        page.figures(list(charts.side_by_side(subjects)))
    _learning(page, subjects)
    page.section(
        "Each run" if len(subjects) > 1 else "The run, by rank",
        "Seconds of a phase are its share of the time of all epochs, times the median epoch. "
        "Imbalance is the maximum over ranks divided by the mean, less 1.",
    )
    _each_run(page, subjects)
    _environment(page, subjects)
    _configuration(page, subjects)
    return page


def _shared(subjects: Sequence[Subject]) -> str:
    """Return a phrase with the properties that several runs share."""
    rows = [_result(each, subjects[0]) for each in subjects]
    values = {name: rows[0][name] for name in ("model", "exchange", "ranks")}
    shared = [
        f"{value.text} rank{'s' * (value.text != '1')}" if isinstance(value, Cell) else value
        for name, value in values.items()
        if value and all(row[name] == value for row in rows)
    ]
    return f": {', '.join(shared)}" if len(subjects) > 1 and shared else ""


def _each_run(page: Page, subjects: Sequence[Subject]) -> None:
    left_out = []
    for subject in subjects:
        if page.size > _MOST_BYTES:
            left_out.append(subject.run.name)
            continue
        if len(subjects) > 1:
            page.fold(subject.run.name, opened=len(subjects) <= _FEW)
            found = answer(subject)
            page.answers(list(found.sentences), found.command)
        _by_rank(page, subject)
        if len(subjects) > 1:
            page.unfold()
    if left_out:
        page.text(f"Left out to keep the page below 5 MB: {', '.join(left_out)}.")


def _rank(subject: Subject) -> float:
    value = _merit(subject)
    if value is None or subject.curves is None:
        return math.inf
    return value if is_error(subject.curves.metric) else -value


def _merit(subject: Subject) -> float | None:
    """Return the mean over seeds of the kept models' figure of merit by validation."""
    value: float | None = subject.curves.summary()["valid"]["mean"] if subject.curves else None
    return value


def _peak(subject: Subject) -> int | None:
    ranks = subject.memory.ranks if subject.memory else []
    return max((rank.peak for rank in ranks), default=None)


def _results(page: Page, subjects: Sequence[Subject]) -> None:
    several = len(subjects) > 1
    order = " The best by validation is first; the others are compared with it." if several else ""
    page.section(
        "Results",
        "Figures of merit are those of the kept model, mean ± deviation over seeds. Seconds of an "
        "epoch are the median training time; MB and J are sent and used by all ranks in an epoch."
        + order,
    )
    first = subjects[0]
    if several:
        page.text(_ranking(subjects))
    rows = [_result(each, first) for each in subjects]
    # Columns that are equal in all runs say nothing about their differences.
    same = {name for name in _FACTS if len({str(row[name]) for row in rows}) == 1}
    left_out = same if several else set(_COMPARISONS)
    left_out |= {_JOULES} if all(each.epoch["epoch_j"] is None for each in subjects) else set()
    shown = [name for name in rows[0] if name not in left_out]
    page.table(shown, [[row[name] for name in shown] for row in rows])


_FACTS = ("graph", "model", "exchange", "ranks", "epochs", "state")
_JOULES = "J an epoch"
_COMPARISONS = ("valid \u0394", "epoch ratio")


def _result(subject: Subject, first: Subject) -> dict[str, str | Cell]:
    """Return the cells of a run's row by column, compared with the first run."""
    summary, curves = subject.run.summary, subject.curves.summary() if subject.curves else {}
    metric = curves.get("metric") or ""
    epoch, usual = (each.epoch["epoch_s"]["median"] for each in (subject, first))
    valid, best = _merit(subject), _merit(first)
    gap = None if valid is None or best is None else valid - best
    factor = metric_factor(metric)
    return {
        "run": subject.run.name,
        "graph": str(summary.get("name", "")),
        "model": str(summary.get("model") or subject.settings.get("model.name", "")),
        "exchange": str(summary.get("exchange", "")),
        "ranks": _number(subject.ranks, "{:,.0f}"),
        "epochs": _epochs(curves.get("seeds", [])),
        "valid": _merit_cell(curves.get("valid"), metric),
        "valid \u0394": _number(gap, "{:+.2f}" if factor == 100 else "{:+.3g}", factor),
        "test": _merit_cell(curves.get("test"), metric),
        "epoch s": _number(epoch, "{:.3f}"),
        "epoch ratio": _number(epoch / usual if epoch and usual else None, "{:.2f}"),
        "MB an epoch": _number(subject.epoch["epoch_bytes"], "{:,.2f}", 1e-6),
        _JOULES: _number(subject.epoch["epoch_j"], "{:,.3g}"),
        "peak MiB": _number(_peak(subject), "{:,.0f}", 1 / _MEBI),
        "wall s": _number(subject.session.get("wall_s"), "{:,.0f}"),
        "state": "ended" if summary else "not ended",
    }


def _epochs(seeds: Sequence[dict[str, Any]]) -> Cell:
    lengths = [seed["epochs"] for seed in seeds]
    equal = len(lengths) > 1 and len(set(lengths)) == 1
    text = f"{len(lengths)} seeds of {lengths[0]}" if equal else str(sum(lengths))
    return Cell(text, sum(lengths))


def _ranking(subjects: Sequence[Subject]) -> str:
    """Return sentences that name the best run, which is the first, and the fastest."""
    first, second = subjects[:2]
    best, next_ = _merit(first), _merit(second)
    texts = []
    if best is not None and first.curves is not None:
        metric = first.curves.metric
        lead = ""
        if next_ is not None:
            gap, factor = abs(best - next_), metric_factor(metric)
            ahead = f"{factor * gap:.2f} points" if factor == 100 else f"{gap:.3g}"
            lead = f", {ahead} ahead of {second.run.name}"
        shown = figure_text(metric)(best)
        texts.append(f"Best by validation: {first.run.name} with {shown}{lead}.")
    timed = [each for each in subjects if each.epoch["epoch_s"]["median"]]
    if timed:
        fastest = min(timed, key=lambda each: each.epoch["epoch_s"]["median"])
        seconds = seconds_text(fastest.epoch["epoch_s"]["median"])
        texts.append(f"Fastest epochs: {fastest.run.name} with {seconds}.")
    return " ".join(texts)


def _number(value: float | None, form: str, factor: float = 1.0) -> Cell:
    return Cell("") if value is None else Cell(form.format(value * factor), value)


def _merit_cell(entry: dict[str, Any] | None, metric: str) -> Cell:
    if not entry or entry["mean"] is None:
        return Cell("")
    factor, std = metric_factor(metric), entry["std"] or 0.0
    spread_text = f"{factor * std:.2f}" if factor == 100 else f"{std:.3g}"
    deviation = f" ± {spread_text}" if std else ""
    return Cell(f"{figure_text(metric)(entry['mean'])}{deviation}", entry["mean"])


def _differences(page: Page, subjects: Sequence[Subject]) -> None:
    page.section("How the runs differ")
    keys = differing_keys([each.settings for each in subjects])
    ranks = {each.run.summary.get("ranks") for each in subjects}
    if not keys:
        more = ", except for the number of ranks" if len(ranks) > 1 else ""
        page.text(f"Their configurations are equal{more}.")
        return
    page.table(
        ("run", *keys),
        [[each.run.name, *(_setting(each.settings.get(key)) for key in keys)] for each in subjects],
    )


def _setting(value: object) -> Cell:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    return Cell("" if value is None else text, number)


def _learning(page: Page, subjects: Sequence[Subject]) -> None:
    learned = [each for each in subjects if each.curves is not None]
    curves = [each.curves for each in learned if each.curves is not None]
    if not curves:
        return
    seeds = max(len(each.seeds) for each in curves)
    band = "Lines are means over seeds, bands one standard deviation. " if seeds > 1 else ""
    page.section("Learning", f"{band}Epochs count from 0; a ring marks the kept epoch.")
    page.figures(list(charts.learning(curves)))
    page.figures([figure for each in learned for figure in error_figures(_rollouts(each))])
    _errors(page, curves)
    rows: list[list[str | Cell]] = []
    for each in curves:
        metric = each.metric
        for seed in each.final():
            merits = [seed[part] for part in ("valid", "test")]
            row: list[str | Cell] = [
                each.label,
                *map(_setting, (seed["seed"], seed["epochs"], seed["best_epoch"])),
                *(Cell("" if m is None else figure_text(metric)(m), m) for m in merits),
                _number(seed["final_train_loss"], "{:.4f}"),
            ]
            rows.append(row)
    page.table(("run", "seed", "epochs", "kept epoch", "valid", "test", "last train loss"), rows)


def _errors(page: Page, curves: Sequence[RunCurves]) -> None:
    """Add the errors of predicted numbers and fields, if there are any."""
    rows: list[list[str | Cell]] = [
        [each.label, name, *(_number(value, "{:.4g}") for value in pair)]
        for each in curves
        for name, pair in each.errors().items()
    ]
    if rows:
        page.text(
            "Errors of the kept model in the units of the prediction (rel_l2: relative), as means "
            "over seeds. Less is better."
        )
        page.table(("run", "error", "valid", "test"), rows)


def _rollouts(subject: Subject) -> dict[str, dict[str, Any]]:
    """Return the errors of rollouts of the first seed, by part of the data."""
    first: dict[str, Any] = next(iter(subject.run.summary.get("seeds", [])), {})
    parts = first.get("rollout", {})
    return {f"{subject.run.name}, {part}": errors for part, errors in parts.items()}


def _by_rank(page: Page, subject: Subject) -> None:
    """Add the figures and the table of a run's ranks."""
    page.figures(list(charts.by_rank(subject)))
    if subject.epochs is None:
        page.text("No trace: seconds below are for the whole run, including set-up.")
    rows = list(_rank_rows(subject))
    if rows:
        page.table(("over ranks", "min", "median", "max", "imbalance %"), rows)


def _rank_rows(subject: Subject) -> Iterable[list[str | Cell]]:
    """Yield a row for each figure that is recorded by rank."""
    if subject.epochs is not None:
        for phase, entry in subject.epochs["phases"].items():
            yield _spread_row(f"{phase}, s an epoch", entry, "_s", 1.0, "{:.4f}")
    details = subject.details
    if subject.epochs is None:
        for phase in PHASE_ORDER:
            seconds = [each.get("seconds_by_phase", {}).get(phase, 0.0) for each in details]
            if any(seconds):
                yield _spread_row(f"{phase}, s", spread(seconds), "", 1.0, "{:.3f}")
    if subject.traffic is not None and subject.traffic["bytes"]["total"]:
        for key, unit, factor in (("rows", "rows", 1.0), ("bytes", "MB", 1e-6)):
            sent = spread(subject.traffic[key]["sent"])
            form = "{:,.2f}" if key == "bytes" else "{:,.0f}"
            yield _spread_row(f"{unit} sent in exchanges of an epoch", sent, "", factor, form)
    for key, label, factor, form in (
        ("local_nodes", "nodes", 1.0, "{:,.0f}"),
        ("local_edges", "edges", 1.0, "{:,.0f}"),
        ("ghost_bytes_max", "peak ghost rows, MiB", 1 / _MEBI, "{:,.2f}"),
        ("peak_rss_bytes", "peak memory, MiB", 1 / _MEBI, "{:,.0f}"),
    ):
        values = [each[key] for each in details if key in each]
        if values:
            yield _spread_row(label, spread(values), "", factor, form)
    for key, label, form in (
        ("cpu_s", "seconds on a core", "{:,.1f}"),
        ("queued_s", "seconds waiting for a core", "{:,.1f}"),
        ("major_faults", "pages read from disk", "{:,.0f}"),
    ):
        counted = list(subject.usage(key).values())
        if counted:
            yield _spread_row(label, spread(counted), "", 1.0, form)


def _spread_row(
    label: str, entry: dict[str, float], suffix: str, factor: float, form: str
) -> list[str | Cell]:
    levels = [_number(entry[key + suffix], form, factor) for key in ("min", "median", "max")]
    return [label, *levels, _number(entry["imbalance"], "{:.1f}", 100)]


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
            setup, commit = session.get("setup_s", {}), session.get("commit") or ""
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
                    commit[:12] + " with changes" * commit.endswith("-dirty"),
                    Cell(hosts, long=True),
                    Cell(versions, long=True),
                    Cell(" ".join(session.get("command", ())), long=True),
                ]
            )
    if not rows:
        return
    page.section(
        "Environment",
        "Every start of every run; times in UTC. Set-up is the time before the first epoch, the "
        "maximum over ranks for each phase.",
    )
    page.table(
        ("start", "date", "wall s", "epochs", "set-up s", "by phase, s", "launcher", "threads",
         "commit", "hosts", "versions", "command"),
        rows,
        stacked=True,
    )  # fmt: skip


def _configuration(page: Page, subjects: Sequence[Subject]) -> None:
    differing = set(differing_keys([each.settings for each in subjects])) | {"run.dir"}
    shared = {key: value for key, value in subjects[0].settings.items() if key not in differing}
    single = len(subjects) == 1
    page.section("Configuration" if single else "What all configurations share")
    page.fold(f"{len(shared)} keys", opened=False)
    page.table(("key", "value"), [[key, _setting(value)] for key, value in shared.items()])
    page.unfold()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = CommandParser(f"analyse {NAME}", "Write one self-contained HTML page about runs.")
    parser.add_argument("run", metavar="RUN", nargs="+", help="run directory of a training run")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.html",
        help="file of the page (default: report.html in the directory of the first run)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    subjects = [read_subject(run) for run in open_runs(options.run)]
    output = options.output or subjects[0].run.path / "report.html"
    if not output.parent.is_dir():
        raise InputError(f"{output.parent}: is not a directory; make it or choose another -o")
    page = make_page(subjects)
    content = page.html().encode()
    write_whole(output, content, streams=True)
    answers = {subject.run.name: answer(subject) for subject in subjects}
    if options.json:
        texts = {name: each.as_json() for name, each in answers.items()}
        facts = {"figures": page.num_figures, "bytes": len(content), "answers": texts}
        print_json({"path": str(output), **facts})
    else:
        if len(subjects) == 1:
            (only,) = answers.values()
            for _, sentence in only.sentences:
                report(sentence)
            report(f"\n{only.command}\n")
        report(f"{page.num_figures} figures, {len(content) / 1e6:.2f} MB; open it in a browser:")
        report(str(output.resolve()), sys.stdout)


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
