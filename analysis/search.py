"""Runs of a search, the best by validation first, with the settings in which they differ.

``hpcgnn analyse search DIR/draw-*``. Runs that have not ended are ranked by their best epoch so
far; those without an evaluated epoch, for instance because they diverged, come last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hpcgnn.analysis.curves import RunCurves, mean_of
from hpcgnn.analysis.figures import argument_parser, new_figure, publish
from hpcgnn.analysis.load import Run, distinct_names, open_run
from hpcgnn.analysis.settings import differing_keys, read_settings
from hpcgnn.commands.launch import run_command
from hpcgnn.console import is_error, metric_factor, metric_text, print_table
from hpcgnn.errors import InputError

NAME = "search"

_COLUMNS = 4
_SPLITS = ("valid", "test", "unseen")


@dataclass(frozen=True)
class Draw:
    """A run: its settings by ``section.key``, and its metric by split as means over seeds."""

    name: str
    settings: dict[str, Any]
    figures: dict[str, float]
    finished: bool
    metric: str = ""


def read_draws(paths: Sequence[str]) -> list[Draw]:
    """Read run directories.

    Raises `InputError` if one holds no readable ``config.toml``, or is damaged.
    """
    directories = [Path(path).resolve() for path in paths]
    return list(map(_read_draw, directories, distinct_names(directories)))


def _read_draw(directory: Path, name: str) -> Draw:
    settings = read_settings(directory)
    try:
        run = open_run(directory)
    except InputError:
        # A run that fails before its first epoch leaves only its configuration.
        return Draw(name, settings, {}, finished=False)
    metric, figures = _figures(run)
    return Draw(name, settings, figures, finished=bool(run.summary), metric=metric)


def _figures(run: Run) -> tuple[str, dict[str, float]]:
    """Return the metric, and its value by split, on all graphs if epochs were judged on a sample.

    Before a run has ended, they are those of its best epoch so far.
    """
    metric, seeds = run.summary.get("metric"), run.summary.get("seeds", [])
    if metric and seeds:
        scores = [seed.get("all_graphs") or seed.get("metrics", {}) for seed in seeds]
        means = {split: mean_of(scores, f"{split}_{metric}") for split in _SPLITS}
    else:
        try:
            summary = RunCurves(run).summary()
        except InputError:
            return "", {}
        metric, means = summary["metric"] or "", {s: summary[s]["mean"] for s in ("valid", "test")}
    return metric, {split: mean for split, mean in means.items() if mean is not None}


def rank(draws: Sequence[Draw]) -> tuple[list[Draw], list[str]]:
    """Return the draws, best first, and the keys in which they differ."""
    return sorted(draws, key=_order), differing_keys([draw.settings for draw in draws])


def _order(draw: Draw) -> float:
    value = draw.figures.get("valid", np.inf)
    return value if is_error(draw.metric) or value == np.inf else -value


def draw_figure(draws: Sequence[Draw], keys: Sequence[str]) -> Figure:
    """Draw validation scores by the value of each key, one panel per key; bars are means."""
    rows = -(-max(len(keys), 1) // _COLUMNS)
    figure = new_figure(3.2 * _COLUMNS, 2.6 * rows)
    panels = figure.subplots(rows, _COLUMNS, squeeze=False, sharey=True).ravel()
    scored = [draw for draw in draws if "valid" in draw.figures]
    factor = min((metric_factor(draw.metric) for draw in scored), default=100)
    for axis, key in zip(panels, keys, strict=False):
        # By their text, since values may be lists.
        by_text = {str(value): value for value in (draw.settings.get(key) for draw in draws)}
        values = sorted(by_text, key=lambda text: _by_size(by_text[text]))
        for x, value in enumerate(values):
            chosen = [draw for draw in scored if str(draw.settings.get(key)) == value]
            scores = [factor * draw.figures["valid"] for draw in chosen]
            axis.plot([x] * len(scores), scores, "o", color="#0072b2", alpha=0.6, markersize=4)
            if scores:
                axis.hlines(float(np.mean(scores)), x - 0.3, x + 0.3, color="#d55e00")
        axis.set_xticks(range(len(values)), values)
        axis.set_title(key)
        axis.grid(axis="y")
    for axis in panels[len(keys) :]:
        axis.set_visible(False)
    names = ", ".join(sorted({draw.metric for draw in scored})).replace("r2", "R²")
    figure.supylabel("validation (%)" if factor == 100 else f"validation {names}")
    return figure


def _by_size(value: object) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return number, float(value) if isinstance(value, int | float) else 0.0, str(value)


def show(draws: Sequence[Draw], keys: Sequence[str]) -> None:
    rows = [
        [
            draw.name,
            *(metric_text(draw.metric, draw.figures.get(s)) for s in _SPLITS),
            "" if draw.finished else "no",
            *(str(draw.settings.get(key, "")) for key in keys),
        ]
        for draw in draws
    ]
    names = [key.partition(".")[2] for key in keys]
    columns = ["run", *_SPLITS, "ended", *names]
    print_table("Runs, best by validation first", columns, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(NAME, "Rank the runs of a search by validation.", runs="+")
    options = parser.parse_args(arguments)
    draws, keys = rank(read_draws(options.run))
    entries = [
        {
            "run": draw.name,
            "finished": draw.finished,
            **draw.figures,
            "settings": {key: draw.settings.get(key) for key in keys},
        }
        for draw in draws
    ]
    directory, told = Path(options.run[0]).resolve().parent / "analysis", (draws, keys)
    facts = {"runs": entries}
    publish(options, NAME, partial(draw_figure, *told), directory, facts, partial(show, *told))


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
