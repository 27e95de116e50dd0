"""Plot a rollout of fields: truth, prediction, difference, and errors after each step.

``hpcgnn analyse rollout RUN|FILE.h5 [--field u] [--steps 1,10,50] [-o rollout.html]``, and
``--gif FILE`` for an animation. The truth is read from the store that the file names.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.analysis.page import FigureOf, Page
from hpcgnn.analysis.rollout_figures import Picture, Plane, animate, draw_steps, error_figures
from hpcgnn.commands.arguments import CommandParser
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json, report
from hpcgnn.errors import InputError, instead_of
from hpcgnn.storage import GraphStore, Rollout, write_whole
from hpcgnn.typing import Array, FloatArray

NAME = "rollout"

_SHOWN = (1, 10, 50, 100)


class Truth:
    """The true values from a store at the steps of a rollout, in the rollout's order of rows."""

    def __init__(self, store: GraphStore, rollout: Rollout) -> None:
        ids = store.read_original_id(0, store.num_nodes)
        self._store, self._order, self._edges = store, np.argsort(ids), np.empty(0, np.int64)
        if rollout.edge_names:
            block = store.read_adjacency(0, store.num_nodes)
            self._edges = np.lexsort((np.repeat(ids, np.diff(block.indptr)), ids[block.indices]))
        self._start = start = int(rollout.attributes["start"])
        self._means = json.loads(rollout.attributes.get("means", "{}"))
        trajectory_end = np.searchsorted(store.trajectory_starts, start, side="right")
        self._stop = int(store.trajectory_starts[trajectory_end])
        # A rollout begins with the start step itself or with the one after; its time decides.
        times = store.times[start : self._stop]
        self._first = start + int(np.searchsorted(times, rollout.times[0]))
        sizes = len(self._order), len(self._edges)
        if sizes != (len(rollout.node_id), len(rollout.edge_id)):
            raise InputError(f"{store.path}: is not the graph of {rollout.path}")

    def read(self, name: str, step: int) -> FloatArray | None:
        """Return the values (rows, F) float64 of a step of the rollout; None after the last."""
        return None if self._first + step >= self._stop else self._read(name, self._first + step)

    def before(self, name: str) -> FloatArray:
        """Return the values of the last input step as they were read, means where missing.

        They are NaN if that step is itself predicted.
        """
        values = self._read(name, self._start)
        values = np.where(np.isnan(values), self._means.get(name, np.nan), values)
        return values if self._first > self._start else np.full_like(values, np.nan)

    def weights(self, name: str) -> FloatArray:
        """Return the weights (rows, 1) float64 of the rows in errors."""
        order, weights = self._order_of(name), None
        if name not in self._store.edge_fields:
            weights = self._store.read_node_weights(0, len(order))
        return (np.ones(len(order)) if weights is None else weights[order])[:, None]

    def _read(self, name: str, step: int) -> FloatArray:
        order = self._order_of(name)
        return self._store.read_field(name, step, 0, len(order))[order].astype(np.float64)

    def _order_of(self, name: str) -> Array:
        return self._edges if name in self._store.edge_fields else self._order


@dataclass(frozen=True, eq=False)
class Shown:
    """The content of pictures: nodes, a column of a field, and steps counted from 1."""

    plane: Plane
    column: tuple[str, int]
    steps: Sequence[int]

    @classmethod
    def of(cls, rollout: Rollout, options: argparse.Namespace) -> "Shown | None":
        """Return the content that the options select; None without node fields and positions.

        Raises `InputError` for a picture option that would have no effect.
        """
        if not rollout.names or rollout.positions is None:
            for flag in ("field", "steps", "axis", "at", "gif"):
                if getattr(options, flag) is not None:
                    raise InputError(
                        f"--{flag}: pictures need fields of nodes with positions, and "
                        f"{rollout.path} has none; leave it out"
                    )
            return None
        name = options.field or rollout.names[0]
        if name not in rollout.names:
            raise InputError(f"--field {name}: {instead_of(name, rollout.names)}")
        if not 0 <= options.component < len(rollout.columns(name)):
            raise InputError(
                f"--component: {name} has {len(rollout.columns(name))} columns, from 0"
            )
        plane = Plane.of(rollout.positions, options.axis, options.at)
        return cls(plane, (name, options.component), _steps(options.steps, len(rollout.times)))


def pictures(rollout: Rollout, truth: Truth | None, shown: Shown) -> Iterator[Picture]:
    """Yield a picture of each step in `shown`."""
    (name, number), nodes = shown.column, shown.plane.nodes
    for step in shown.steps:
        known = None if truth is None else truth.read(name, step - 1)
        predicted = rollout.read(name, step - 1)[nodes, number].astype(np.float64)
        unknown = np.full_like(predicted, np.nan)
        yield Picture(f"step {step}", predicted, unknown if known is None else known[nodes, number])


def errors_of(rollout: Rollout, truth: Truth) -> dict[str, dict[str, list[float | None]]]:
    """Return the RMSE of each field after each step, over edges or weighted nodes."""
    errors: dict[str, dict[str, list[float | None]]] = {"rmse": {}, "unchanged_rmse": {}}
    for name in (*rollout.names, *rollout.edge_names):
        predicted, unchanged = list[float | None](), list[float | None]()
        before, weights = truth.before(name), truth.weights(name)
        for step in range(len(rollout.times)):
            known = truth.read(name, step)
            if known is None:
                break
            predicted.append(_rmse(rollout.read(name, step) - known, weights))
            unchanged.append(_rmse(before - known, weights))
        errors["rmse"][name], errors["unchanged_rmse"][name] = predicted, unchanged
    return errors


def _rmse(errors: FloatArray, weights: FloatArray) -> float | None:
    """Return the weighted root mean square of the known errors; None if none is known."""
    known = (weights * ~np.isnan(errors)).sum()
    return float(np.sqrt(np.nansum(weights * np.square(errors)) / known)) if known > 0 else None


def make_page(
    rollout: Rollout, truth: Truth | None, shown: Shown | None
) -> tuple[Page, Mapping[str, Any]]:
    """Return the page and its errors; raise `InputError` if there is nothing to show."""
    errors = {} if truth is None else errors_of(rollout, truth)
    if not errors and shown is None:
        raise InputError(
            f"{rollout.path}: nothing to show: no node with fields has a position, and its store "
            f"{rollout.attributes['store']} is missing"
        )
    run = Path(str(rollout.attributes["run"])).name
    page = Page(f"hpcgnn: rollout of {run}", f"{len(rollout.times)} steps")
    if errors:
        page.section("Errors", "RMSE over edges or weighted nodes, including given ones.")
        page.figures(list(error_figures({run: errors})))
    if shown is not None:
        (name, number), plane = shown.column, shown.plane
        label = " ".join(each for each in (name, rollout.columns(name)[number]) if each)
        where = f", {plane.title}" if plane.title else ""
        page.section(f"{label}{where}")
        rows = list(pictures(rollout, truth, shown))
        note = "" if truth is not None else "No truth: the store named by the rollout is missing."
        page.figures([FigureOf(label, partial(draw_steps, plane, rows, label), note)])
    return page, errors


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    purpose = "Show a rollout of fields: truth, prediction and difference at selected steps."
    parser = CommandParser(f"analyse {NAME}", purpose)
    parser.add_argument("run", metavar="RUN|FILE.h5", type=Path, help="run directory, or a rollout")
    parser.add_argument("--field", help="field to show (default: the first)")
    parser.add_argument("--component", type=int, default=0, help="column of the field, from 0")
    parser.add_argument(
        "--steps", metavar="S,S", help="steps to show (default: 1,10,50,100 and the last)"
    )
    parser.add_argument(
        "--axis", choices=("x", "y", "z"), help="normal of a 3-D slice (default: z)"
    )
    parser.add_argument("--at", type=float, help="position of the slice (default: the middle)")
    parser.add_argument("--gif", type=Path, metavar="FILE.gif", help="also write an animation")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.html")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def _steps(text: str | None, most: int) -> list[int]:
    if text is None:
        return sorted({*(step for step in _SHOWN if step <= most), most})
    try:
        steps = [int(each) for each in text.split(",")]
    except ValueError:
        raise InputError(f"--steps {text}: give numbers such as 1,10") from None
    if not all(1 <= step <= most for step in steps):
        raise InputError(f"--steps {text}: the rollout has steps 1 to {most}")
    return steps


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    path = options.run / "rollout.h5" if options.run.is_dir() else options.run
    if options.run.is_dir() and not path.exists():
        raise InputError(
            f"{path} does not exist: train.task=fields writes it at the end; or name a file "
            "written by hpcgnn predict --rollout"
        )
    output = options.output or path.with_suffix(".html")
    with Rollout(path) as rollout:
        shown, store = Shown.of(rollout, options), Path(str(rollout.attributes["store"]))
        truth = Truth(GraphStore.open(store), rollout) if store.is_file() else None
        page, errors = make_page(rollout, truth, shown)
        content = page.html().encode()
        write_whole(output, content, streams=True)
        if options.gif is not None and shown is not None:
            every = replace(shown, steps=range(1, len(rollout.times) + 1))
            frames = list(pictures(rollout, truth, every))
            animate(shown.plane, frames, str(options.gif), shown.column[0])
    if options.json:
        print_json({"path": str(output), "figures": page.num_figures, "errors": errors})
    else:
        report(f"{page.num_figures} figures, {len(content) / 1e6:.2f} MB; open it in a browser:")
        report(str(output.resolve()), sys.stdout)


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
