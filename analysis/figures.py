"""Shared code of the scripts: arguments, units, spreads over ranks, and writing figures."""

import argparse
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpcgnn.commands.arguments import CommandParser
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "0.88",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    # Names of runs may contain a dollar sign.
    "text.parse_math": False,
    # Makes files reproducible.
    "svg.hashsalt": "hpcgnn",
}

_PAGE_STYLE: dict[Any, Any] = _STYLE | {
    "svg.fonttype": "none",
    "text.color": "#010203",
    "axes.labelcolor": "#010203",
    "axes.edgecolor": "#010203",
    "xtick.color": "#010203",
    "ytick.color": "#010203",
    "grid.color": "#040506",
    "axes.facecolor": "none",
    "figure.facecolor": "none",
}
"""Style of figures inside a page; placeholders for colours are replaced by the page's own."""

IN_THE_DARK = {
    "#0072b2": "#5cb3ea",
    "#0b4f8a": "#4b93d6",
    "#0b72b5": "#5cb3ea",
    "#b5480c": "#e8783c",
    "#7a5195": "#b98fd3",
    "#4d4d4d": "#a6adb5",
    "#009e73": "#3cc79c",
    "#eeeeee": "#59636f",
    "#c9c9c9": "#8b949e",
}
"""Replacements for colours of figures in the dark colour scheme of a page."""

_PAGE_COLOURS = {
    "#010203": "var(--ink)",
    "#040506": "var(--rule)",
    "#ffffff": "var(--card)",
    **{colour: f"var(--c{colour[1:]})" for colour in IN_THE_DARK},
}

_HINT = "hint "
_DOTS_PER_INCH = 150
_MAX_TICKS = 16
_LONGEST_HORIZONTAL = 4
"""Characters: longer tick labels are rotated."""
_MOST_BARS = 32
_WORST = 8
_QUANTILES = (0.0, 0.25, 0.5, 0.75)


def argument_parser(
    name: str, description: str, *, runs: str | None = None
) -> argparse.ArgumentParser:
    """Return a parser with ``RUN``, ``--json`` and ``--out``; `runs` is the nargs of ``RUN``."""
    parser = CommandParser(f"analyse {name}", description)
    parser.add_argument("run", metavar="RUN", nargs=runs, help="run directory of a training run")
    parser.add_argument("--json", action="store_true", help="print one JSON object, no table")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where the figure goes (default: RUN/analysis)"
    )
    return parser


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; `width` and `height` in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def publish(
    options: argparse.Namespace,
    stem: str,
    draw: Callable[[], Figure],
    directory: Path,
    facts: Mapping[str, Any],
    show: Callable[[], None],
) -> None:
    """Write the figure to `directory` or ``--out``, and `show` the result, or print it as JSON.

    Raises `InputError` if the directory or the files cannot be written.
    """
    paths = save_figure(draw, options.out or directory, stem)
    if options.json:
        print_json({**facts, "figures": list(map(str, paths))})
    else:
        show()
        report("figure: " + "  ".join(map(str, paths)), sys.stdout)


def save_figure(
    draw: Callable[[], Figure], directory: Path, stem: str, kinds: Sequence[str] = ("svg", "png")
) -> list[Path]:
    """Draw in this project's style, write files of all `kinds` and return their paths."""
    paths = [directory / f"{stem}.{kind}" for kind in kinds]
    with mpl.rc_context(_STYLE):
        figure = _placed(draw)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for path in paths:
                if path.suffix == ".svg":
                    path.write_text(_svg(figure), encoding="utf-8")
                else:
                    figure.savefig(path, dpi=_DOTS_PER_INCH)
        except OSError as error:
            raise InputError(
                f"cannot write the figure {directory / stem}: {error.strerror or error}; "
                "name a writable directory with --out"
            ) from error
    return paths


def inline_svg(draw: Callable[[], Figure], number: int) -> str:
    """Return a drawn figure as an element of an HTML page: text as text, no fixed size.

    `number` must be unique within a page, so that the figures share no identifier.
    """
    with mpl.rc_context(_PAGE_STYLE | {"svg.hashsalt": f"figure {number}"}):
        text = _svg(_placed(draw))
    head, _, body = text[text.index("<svg") :].partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[A-Za-z0-9.]+_[0-9]+"', "", body)
    for fixed, own in _PAGE_COLOURS.items():
        body = body.replace(fixed, own)
    return re.sub(r"\s*\n\s*", " ", f'{head} role="img">{body}')


def hint(artist: Artist, text: str) -> None:
    """Show `text` as a tooltip of `artist` in an SVG."""
    artist.set_gid(_HINT + text)


def _placed(draw: Callable[[], Figure]) -> Figure:
    """Draw a figure and fix its layout once, which saving would repeat for every file."""
    figure = draw()
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine(None)
    return figure


def _svg(figure: Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})

    def title(match: re.Match[str]) -> str:
        return f"<g><title>{match[1]}</title>"

    return re.sub(f'<g id="{_HINT}([^"]*)">', title, file.getvalue())


def spread(values: Sequence[float], suffix: str = "") -> dict[str, float]:
    """Return minimum, median, maximum and imbalance (maximum over mean, less 1) over ranks.

    `suffix` is the unit in the keys, for instance ``_s``.
    """
    mean, largest = float(np.mean(values)), float(np.max(values))
    return {
        f"min{suffix}": float(np.min(values)),
        f"median{suffix}": float(np.median(values)),
        f"max{suffix}": largest,
        "imbalance": max(largest / mean - 1, 0.0) if mean > 0 else 0.0,
    }


def scaled(largest: float, unit: str) -> tuple[float, str]:
    """Return a factor and a prefixed unit that make `largest` readable.

    >>> scaled(0.02, "s"), scaled(5e6, "B")
    ((1000.0, 'ms'), (1e-06, 'MB'))
    """
    for factor, prefix in ((1e-12, "T"), (1e-9, "G"), (1e-6, "M"), (1e-3, "k")):
        if unit != "s" and largest * factor >= 1:
            return factor, prefix + unit
    if unit == "s" and 0 < largest < 1:
        return (1e3, "ms") if largest >= 1e-3 else (1e6, "µs")
    return 1.0, unit


@dataclass(frozen=True)
class Bars:
    """The ranks that get a bar: all, or if there are many, those at quantiles and the highest.

    `places` are the positions of these ranks among all, in the order of the bars; `labels` label
    the bars, `names` are their tooltips' names of ranks, and `axis` is the label of the axis.
    """

    places: list[int]
    labels: list[str]
    names: list[str]
    axis: str

    @classmethod
    def of(cls, ranks: Sequence[int], heights: Sequence[float]) -> "Bars":
        """Choose from `ranks`, by `heights` if there are many."""
        names = [f"rank {rank}" for rank in ranks]
        if len(ranks) <= _MOST_BARS:
            return cls(list(range(len(ranks))), list(map(str, ranks)), names, "rank")
        order = sorted(range(len(ranks)), key=lambda place: heights[place])
        worst = order[-_WORST:]
        quantiles = [order[round(share * (len(order) - 1))] for share in _QUANTILES]
        labels = ["min", *(f"{100 * share:.0f}%" for share in _QUANTILES[1:])]
        labels += [str(ranks[place]) for place in worst]
        places = quantiles + worst
        text = f"quantiles of {len(ranks)} ranks, then the {_WORST} highest by number"
        return cls(places, labels, [names[place] for place in places], text)

    def pick(self, values: Sequence[float]) -> list[float]:
        """Return the values of the ranks that have a bar."""
        return [values[place] for place in self.places]

    def label(self, axis: Axes) -> None:
        """Set the limits and the ticks of an axis with a bar at 0, 1, 2..."""
        count = len(self.labels)
        middle, half = (count - 1) / 2, max(count, 4) / 2
        ticks = rank_ticks(range(count))
        axis.set(xlim=(middle - half, middle + half), xlabel=self.axis)
        labels = [self.labels[tick] for tick in ticks]
        rotated = max(map(len, labels), default=0) > _LONGEST_HORIZONTAL
        axis.set_xticks(ticks, labels, rotation=90 if rotated else 0)


def rank_ticks(ranks: Sequence[int], most: int = _MAX_TICKS) -> list[int]:
    """Return the ranks to label on an axis, few enough not to overlap."""
    step = 1
    while len(ranks) > step * most:
        step *= 2
    return [rank for rank in ranks if rank % step == 0]
