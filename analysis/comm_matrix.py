"""Communication matrix: rows and bytes from rank to rank in the exchanges of an epoch.

``hpcgnn analyse comm_matrix RUN``. The figures come from the ``peers`` of exchange spans, in
which every rank records what it sends; nothing is estimated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hpcgnn.analysis.breakdown import training
from hpcgnn.analysis.figures import (
    Bars,
    argument_parser,
    hint,
    new_figure,
    publish,
    rank_ticks,
    scaled,
    spread,
)
from hpcgnn.analysis.load import SpanRecord, open_run
from hpcgnn.analysis.sessions import Trace
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_table
from hpcgnn.errors import InputError

NAME = "comm_matrix"

_MAX_PRINTED = 12
_MAX_ANNOTATED = 8
_SEND, _RECEIVE = "#0b4f8a", "#e69f00"

Matrix = NDArray[np.int64]


@dataclass
class Traffic:
    """Sums over the counted epochs; matrices are indexed by sender, then receiver.

    `unassigned_rows` were sent in spans that record no receiver; `summed_bytes` are the bytes of
    each rank in sums over ranks.
    """

    rows: Matrix
    bytes: Matrix
    summed_bytes: Matrix
    epochs: int = 1
    exchanges: int = 0
    unassigned_rows: int = 0

    def include(self, rank: int, spans: Iterable[SpanRecord]) -> None:
        """Add the exchanges of one sender."""
        for span in spans:
            self.exchanges += 1
            if span.peers is None:
                self.unassigned_rows += span.rows
                continue
            for peer, rows, size in span.peers:
                self.rows[rank, peer] += rows
                self.bytes[rank, peer] += size


def collect(trace: Trace, name: str | None) -> tuple[Traffic, list[str]]:
    """Sum up the exchanges named `name`, or all exchanges, in the training of counted epochs.

    Returns the sums, and the names of all exchanges.

    Raises `InputError` if no exchange is named `name`, or if a receiver does not exist.
    """
    count = trace.num_ranks
    rows, size = (np.zeros((count, count), np.int64) for _ in ("rows", "bytes"))
    traffic = Traffic(rows, size, np.zeros(count, np.int64))
    names: set[str] = set()
    for rank in trace.ranks:
        epochs = training(trace.spans(rank), trace.epoch_s)
        trained = list(chain.from_iterable(epochs.values()))
        traffic.epochs = max(traffic.epochs, len(epochs))
        traffic.summed_bytes[rank] = sum(each.bytes for each in trained if each.phase == "reduce")
        exchanges = [span for span in trained if span.phase == "exchange"]
        names.update(span.name for span in exchanges)
        peers = [entry[0] for span in exchanges for entry in span.peers or ()]
        if max(peers, default=0) >= trace.num_ranks:
            raise InputError(
                f"rank {rank} sends to rank {max(peers)}, but the run has {trace.num_ranks} ranks; "
                "the trace files belong to different runs"
            )
        traffic.include(rank, (span for span in exchanges if name in (None, span.name)))
    if name is not None and name not in names:
        raise InputError(f"no exchange is called {name!r}; found: {', '.join(sorted(names))}")
    return traffic, sorted(names)


def summarise(trace: Trace, name: str | None = None) -> dict[str, Any]:
    """Return an epoch's matrices, totals by rank and their spread (`hpcgnn.trace.epochs`)."""
    traffic, names = collect(trace, name)
    summary: dict[str, Any] = {
        "ranks": trace.num_ranks,
        "missing_ranks": trace.missing,
        "names": names,
        "selected": name,
        "epochs": traffic.epochs,
        "exchanges": round(traffic.exchanges / traffic.epochs),
        "unassigned_rows": round(traffic.unassigned_rows / traffic.epochs),
        "summed_bytes": _mean(traffic.summed_bytes, traffic.epochs).tolist(),
    }
    for unit, sums in (("rows", traffic.rows), ("bytes", traffic.bytes)):
        matrix = _mean(sums, traffic.epochs)
        sent, received = matrix.sum(axis=1), matrix.sum(axis=0)
        summary[unit] = {
            "matrix": matrix.tolist(),
            "total": int(matrix.sum()),
            "largest_pair": int(matrix.max()),
            "sent": sent.tolist(),
            "received": received.tolist(),
            "send": spread(sent),
            "receive": spread(received),
        }
    return summary


def _mean(sums: Matrix, epochs: int) -> Matrix:
    return np.rint(sums / epochs).astype(np.int64)


def show(name: str, summary: dict[str, Any]) -> None:
    if summary["missing_ranks"]:
        print(f"note: no trace of ranks {summary['missing_ranks']}; what they sent is left out")
    if summary["unassigned_rows"]:
        print(f"note: {summary['unassigned_rows']} rows have no recorded receiver; left out")
    rows, size = summary["rows"], summary["bytes"]
    count = summary["ranks"]
    if count <= _MAX_PRINTED:
        columns = ["rows from \\ to", *map(str, range(count))]
        cells = [[str(rank), *entries] for rank, entries in enumerate(rows["matrix"])]
        print_table(f"{name}: rows of an epoch (exchanges: {summary['exchanges']})", columns, cells)
    factor, unit = scaled(max(size["sent"] + size["received"]), "B")
    columns = ["", "total", "min", "median", "max", "imbalance"]
    cells = [
        [
            f"{direction} {label}",
            f"{scale * table['total']:{form}}",
            *(f"{scale * table[key][level]:{form}}" for level in ("min", "median", "max")),
            f"{100 * table[key]['imbalance']:.1f} %",
        ]
        for table, label, scale, form in ((rows, "rows", 1, ".15g"), (size, unit, factor, ".3f"))
        for direction, key in (("sent", "send"), ("received", "receive"))
    ]
    print_table(f"{name}: totals of an epoch over ranks (ranks: {count})", columns, cells)


def draw(name: str, summary: dict[str, Any]) -> Figure:
    """Draw the byte matrix as a heat map, next to each rank's totals."""
    matrix = np.array(summary["bytes"]["matrix"], dtype=float)
    figure = new_figure(10.0, 4.6)
    # The narrow column in the middle keeps the colour bar's label away from the right axis.
    left, gap, right = figure.subplots(1, 3, width_ratios=[1.1, 0.01, 1])
    gap.set_axis_off()
    heat_map(figure, left, matrix)
    left.set(title=f"{name}: bytes of an epoch", xlabel="receiving rank", ylabel="sending rank")
    show_totals(right, summary["bytes"]["sent"], summary["bytes"]["received"])
    return figure


def show_totals(axis: Axes, sent: Sequence[int], received: Sequence[int]) -> None:
    """Draw the bytes that each rank sends and receives."""
    factor, unit = scaled(max(*sent, *received), "B")
    bars = Bars.of(range(len(sent)), [sum(pair) for pair in zip(sent, received, strict=True)])
    positions = np.arange(len(bars.places))
    for values, label, colour, shift in (
        (sent, "sent", _SEND, -0.2),
        (received, "received", _RECEIVE, 0.2),
    ):
        heights = factor * np.array(bars.pick(values))
        for name, bar, height in zip(
            bars.names,
            axis.bar(positions + shift, heights, 0.4, color=colour, label=label),
            heights,
            strict=True,
        ):
            hint(bar, f"{name}, {label}: {height:.4g} {unit}")
    bars.label(axis)
    axis.set_ylim(0, None if any(sent) else 1)
    axis.set(title="Totals by rank", ylabel=f"volume ({unit})")
    axis.grid(axis="y")
    axis.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.2)


def heat_map(figure: Figure, axis: Axes, matrix: NDArray[np.float64]) -> None:
    """Draw bytes from rank (row) to rank (column)."""
    factor, unit = scaled(matrix.max(), "B")
    # No rank sends to itself.
    blank = np.eye(len(matrix), dtype=bool) & (matrix == 0)
    values = np.ma.masked_where(blank, factor * matrix)
    image = axis.imshow(values, cmap="cividis", vmin=0, vmax=factor * matrix.max() or 1)
    figure.colorbar(image, ax=axis, label=f"volume ({unit})")
    ticks = rank_ticks(range(len(matrix)), _MAX_ANNOTATED)
    axis.set(xticks=ticks, yticks=ticks)
    axis.spines[:].set_visible(False)
    if len(matrix) > _MAX_ANNOTATED:
        return
    for (sender, receiver), value in np.ndenumerate(factor * matrix):
        if blank[sender, receiver]:
            continue
        # Not quite white: inside a page, pure white is replaced by the background colour.
        colour = "black" if value > 0.55 * factor * matrix.max() else "#fefefe"
        axis.text(receiver, sender, f"{value:.3g}", ha="center", va="center", color=colour)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(NAME, "Show rows and bytes sent from rank to rank.")
    parser.add_argument(
        "--name", metavar="SPAN", help="only this exchange, for instance exchange.forward"
    )
    options = parser.parse_args(arguments)
    run = open_run(options.run)
    summary = summarise(Trace(run), options.name)
    facts = {"run": str(run.path), **summary}
    told = run.name, summary
    publish(options, NAME, partial(draw, *told), run.path / "analysis", facts, partial(show, *told))


if __name__ == "__main__":
    run_command(f"analyse {NAME}", main)
