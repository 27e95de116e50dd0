"""Shared by the five scripts: exhibits beside the papers', commands that build them, the page.

A function builds an exhibit. Its name is the paper's label and the first line of its docstring the
title; the other lines explain the stand-ins and why shapes differ.
"""

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.harness import commit
from hpcgnn.analysis.figures import new_figure, save_figure
from hpcgnn.analysis.load import Run, open_run
from hpcgnn.comm import Network, ProcessGrid
from hpcgnn.commands.launch import run_command
from hpcgnn.config.file import load_config
from hpcgnn.console import print_table, report
from hpcgnn.errors import InputError
from hpcgnn.plan.estimates import Candidate, Machine, choices, predict
from hpcgnn.plan.whole_graph import WholeGraph
from hpcgnn.storage import GraphStore

__all__ = ["Build", "Exhibit", "Workshop", "main", "over_powers", "row_of_panels"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = "papers.md"


@dataclass(frozen=True)
class Exhibit:
    """A figure or table of a paper, beside ours.

    Parameters
    ----------
    columns
        Heads; the second column has the paper's printed values, the others ours.
    rows
        Cells.
    draw
        Draws our figure; None: there is only the table.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    draw: Callable[[], Figure] | None = None


class Workshop:
    """The commands of this project as a user starts them, and a folder for their files.

    Parameters
    ----------
    folder
        For stores and runs; existing ones are not made again.
    quick
        Whether to use the small sizes of a test.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder, self.quick = folder, quick

    def size(self, whole: Any, quick: Any) -> Any:
        """Return the size to use."""
        return quick if self.quick else whole

    def python(self, *words: object, ranks: int = 0, threads: int = 1) -> str:
        """Return the output of ``python -m WORDS``, started by the launcher if there are `ranks`.

        Raises
        ------
        InputError
            If the command fails.
        """
        command = [sys.executable, "-m", *map(str, words)]
        if ranks:
            script = '. jobs/env.sh && mpi_exec "$@"'
            command = ["bash", "-c", script, "bash", str(ranks), *command]
        variables = {"HPCGNN_VENV": sys.prefix, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise InputError(f"{' '.join(command)} failed: {done.stderr[-1500:].strip()}")
        return done.stdout

    def lines(self, *words: object, ranks: int = 0) -> list[dict[str, Any]]:
        """Return the JSON objects that ``python -m WORDS --json`` prints, as lines or as a list."""
        text = self.python(*words, "--json", ranks=ranks)
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def store(self, name: str, *words: object) -> Path:
        """Return a store, made by ``hpcgnn WORDS -o STORE`` unless it exists."""
        path = self.folder / f"{name}.h5"
        if not path.exists():
            self.python("hpcgnn", *words, "-o", path)
        return path

    def parts(self, store: Path, method: str, number: int, *words: object) -> Path:
        """Return `store` cut into `number` parts."""
        name = "-".join([store.stem, method, *map(str, words), str(number)])
        options = ("--parts", number, "--method", method, *words)
        return self.store(name, "partition", store, *options)

    def plan(
        self,
        words: Sequence[str],
        ranks: Sequence[int],
        exchange: str,
        *,
        network: Network,
        schedules: Sequence[str] = ("resident",),
        prefetch: int = 0,
    ) -> list[Candidate]:
        """Return the predictions of ``hpcgnn plan WORDS`` for these ranks and schedules."""
        config = load_config(None, [*words, "run.dir=none", "run.threads=1"])
        wanted = list(choices(ranks, ((1, 1),), (exchange,), schedules, prefetch))
        with (
            ProcessGrid.of_this_process() as grid,
            GraphStore.open(config.graph.store) as store,
        ):
            whole = WholeGraph(grid, config, store)
            return list(predict(whole, config, wanted, Machine(network), epochs=3))

    def train(self, name: str, ranks: int, *words: object, threads: int = 1) -> Run:
        """Return a finished run of ``hpcgnn train WORDS``."""
        path = self.folder / "runs" / name
        if not (path / "summary.json").exists():
            words += (f"run.dir={path}", f"run.threads={threads}")
            self.python("hpcgnn", "train", *words, ranks=ranks, threads=threads)
        return open_run(path)


def row_of_panels(items: Mapping[str, Any]) -> tuple[Figure, list[tuple[Axes, str, Any]]]:
    """Return a figure with a panel for each item, and (panel, key, value) of each."""
    figure = new_figure(3.1 * len(items), 2.6)
    panels = np.ravel(figure.subplots(1, len(items)))
    return figure, [(panel, *item) for panel, item in zip(panels, items.items(), strict=True)]


def over_powers(panel: Axes, across: Sequence[int], label: str) -> None:
    """Give a panel an axis of powers of two, labelled as plain numbers, and a grid."""
    panel.set_xscale("log", base=2)
    # The default formatter writes powers as formulas, which figures do not use.
    panel.set_xticks(across, [str(power) for power in across])
    panel.minorticks_off()
    panel.set_xlabel(label)
    panel.grid(visible=True)


Build = Callable[[Workshop], Exhibit]


def main(paper: str, *builds: Build) -> None:
    """Build the exhibits of `paper` that the command line names."""
    name = Path(inspect.stack()[1].filename).stem
    run_command(f"benchmarks.papers.{name}", lambda: _main(name, paper, builds))


def _main(name: str, paper: str, builds: Sequence[Build]) -> None:
    cli = argparse.ArgumentParser(prog=f"python -m benchmarks.papers.{name}", description=paper)
    known = {build.__name__.replace("_", "-"): build for build in builds}
    cli.add_argument("exhibits", nargs="*", metavar="EXHIBIT", help=f"of {', '.join(known)}")
    cli.add_argument("--quick", action="store_true", help="small sizes, to check that all works")
    cli.add_argument("--docs", type=Path, metavar="DIR", help="write DIR/papers.md and its figures")
    cli.add_argument("--work", type=Path, metavar="DIR", help="keep stores and runs here")
    options = cli.parse_args()
    for unknown in set(options.exhibits) - set(known):
        raise InputError(f"{unknown}: choose of {', '.join(known)}")
    if options.quick and options.docs:
        raise InputError("--quick: its figures are not for the page; omit --docs")
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        shop = Workshop(folder, quick=options.quick)
        for key in options.exhibits or known:
            began = time.perf_counter()
            exhibit = known[key](shop)
            title, remark = _title_and_remark(known[key])
            print_table(title, exhibit.columns, [list(map(str, row)) for row in exhibit.rows])
            report(f"{key}: {time.perf_counter() - began:.0f} s")
            stem = f"{name}-{key}"
            if exhibit.draw is not None:
                figures = options.docs / "papers" if options.docs else folder
                save_figure(exhibit.draw, figures, stem, kinds=("png",))
            if options.docs:
                command = f"python -m benchmarks.papers.{name} {key}"
                text = section(title, remark, exhibit, command, stem)
                write_section(options.docs / PAGE, stem, text)


def _title_and_remark(build: Build) -> tuple[str, str]:
    """Return the title of an exhibit and its remark, a paragraph."""
    title, _, remark = (inspect.getdoc(build) or "").partition("\n")
    label = build.__name__.replace("_", " ").capitalize()
    return f"{label}: {title.rstrip('.')}", " ".join(remark.split())


def section(title: str, remark: str, exhibit: Exhibit, command: str, stem: str) -> str:
    """Return an exhibit as Markdown."""
    lines = [f"### {title}", "", *_wrapped(remark), ""]
    rule = "|---" * len(exhibit.columns) + "|"
    lines += [_line(exhibit.columns), rule, *map(_line, exhibit.rows), ""]
    if exhibit.draw is not None:
        lines += [f"![{title}](papers/{stem}.png)", ""]
    today = time.strftime("%Y-%m-%d")
    return "\n".join([*lines, f"`{command}`, {today}, commit {commit()}.", ""])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 140, break_long_words=False, break_on_hyphens=False)


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def write_section(page: Path, key: str, text: str) -> None:
    """Replace the section of a page that begins with the mark of `key`.

    Raises
    ------
    InputError
        If the page has no such mark.
    """
    mark = f"<!-- {key} -->\n"
    head, separator, rest = page.read_text("utf-8").partition(mark)
    if not separator:
        raise InputError(f"{page}: has no line {mark.strip()}; add it where the section belongs")
    next_mark = re.search(r"^<!-- ", rest, re.MULTILINE)
    tail = rest[next_mark.start() :] if next_mark else ""
    page.write_text(f"{head}{mark}{text}\n{tail}".rstrip() + "\n", "utf-8")
