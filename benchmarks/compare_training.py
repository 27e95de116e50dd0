"""Compare traced training runs: epoch times and bytes, and active sets with active edges.

    python -m benchmarks.compare_training BASE=DIR[,DIR...] NAME=DIR[,DIR...] [--json]

Every NAME stands for repeated runs of one configuration, whose epochs are pooled. Ratios are BASE's
value over NAME's. Bytes are those of an epoch's forward and backward pass. "link MB" sums the bytes
of the busiest link of each product: they bound the time of communication from below.
"""

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.active_edges import active_edge_share
from benchmarks.columns import Columns, megabytes, print_columns, ratio, seconds, text
from benchmarks.pass_totals import PASSES, pass_totals
from hpcgnn.analysis.load import Run, open_run
from hpcgnn.commands.launch import run_command
from hpcgnn.console import print_json
from hpcgnn.errors import InputError

COLUMNS: Columns = {
    "run": ("name", text),
    "epoch s": ("epoch_s", seconds),
    "aggregation s": ("aggregation_s", seconds),
    "exchange+wait": ("communication_s", seconds),
    "backward s": ("backward_s", seconds),
    "MB": ("bytes_total", megabytes),
    "backward MB": ("bytes_backward", megabytes),
    "link MB": ("link_bytes", megabytes),
    "epoch ratio": ("epoch_ratio", ratio),
    "exchange+wait ratio": ("communication_ratio", ratio),
    "MB ratio": ("bytes_ratio", ratio),
    "link ratio": ("link_ratio", ratio),
    "backward MB ratio": ("backward_bytes_ratio", ratio),
    "backward s ratio": ("backward_ratio", ratio),
    "active edges": ("active_edges", ratio),
    "by width": ("active_values", ratio),
}


def main() -> None:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_training", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("runs", nargs="+", metavar="NAME=DIR[,DIR...]")
    cli.add_argument("--json", action="store_true", help="print one JSON object per name")
    options = cli.parse_args()
    named = [named_runs(word) for word in options.runs]
    widths = backward_widths(named[0][1][0])
    results = []
    for name, runs in named:
        result = describe(name, runs)
        first = results[0] if results else result
        results.append(result | active_edges(runs[0], widths) | ratios(first, result))
    if options.json:
        for result in results:
            print_json(result)
    else:
        print_columns(COLUMNS, results)


def named_runs(word: str) -> tuple[str, list[Run]]:
    name, found, directories = word.partition("=")
    if not found:
        raise InputError(f"{word}: give NAME=DIRECTORY")
    return name, [open_run(each) for each in directories.split(",")]


def describe(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of repeated runs; bytes are equal in all of them."""
    # Skip the first epoch, which builds transposes and buffers.
    epochs = [row["epoch_s"] for run in runs for row in run.metrics() if row["epoch"] > 0]
    if not epochs:
        raise InputError(f"{name}: needs runs of at least two epochs")
    passes = [pass_totals(run) for run in runs]
    forward, backward = (passes[0][name] for name in PASSES)
    hosts = [trace.headers[-1]["host"] for trace in runs[0].traces()]

    def typical(key: str, *names: str) -> float:
        return median(sum(getattr(each[name], key) for name in names) for each in passes)

    return {
        "name": name,
        "epoch_s": median(epochs),
        "epoch_min_s": min(epochs),
        "epochs": len(epochs),
        "bytes_total": int(forward.sent.sum() + backward.sent.sum()),
        "bytes_backward": int(backward.sent.sum()),
        "link_bytes": forward.link_bytes(hosts) + backward.link_bytes(hosts),
        "aggregation_s": typical("aggregation_s", *PASSES),
        "communication_s": typical("communication_s", *PASSES),
        "backward_s": typical("aggregation_s", "backward"),
    }


def backward_widths(run: Run) -> list[int]:
    """Return the bytes of a row in each layer's backward aggregation, the last layer first."""
    layers = config_of(run)["model"]["num_layers"]
    # Features need no gradient; the products of a layer have one width, and are consecutive.
    row_bytes = pass_totals(run)["backward"].row_bytes.reshape(layers - 1, -1)
    return [int(each) for each in row_bytes.max(axis=1)]


def active_edges(run: Run, widths: Sequence[int]) -> dict[str, float]:
    """Return the share of edges that the backward pass of a run aggregates over.

    `active_edges` counts edges; `active_values` weights those of a layer by the bytes of a row in
    BASE, like the costs of its exchange and products.
    """
    config = config_of(run)
    if not config["exchange"]["active_sets"]:
        return {"active_edges": 1.0, "active_values": 1.0}
    graph = config["graph"]

    def share(weights: Sequence[int]) -> float:
        path, relations = Path(graph["store"]), graph["relations"]
        return active_edge_share(path, relations, weights, undirected=graph["undirected"])

    return {"active_edges": share([1] * len(widths)), "active_values": share(widths)}


def config_of(run: Run) -> dict[str, Any]:
    return tomllib.loads((run.path / "config.toml").read_text())


def ratios(base: dict[str, Any], result: dict[str, Any]) -> dict[str, float | None]:
    """Return the ratios of `base` to a result; None where the result is 0."""
    pairs = {
        "epoch_ratio": "epoch_s",
        "communication_ratio": "communication_s",
        "bytes_ratio": "bytes_total",
        "link_ratio": "link_bytes",
        "backward_bytes_ratio": "bytes_backward",
        "backward_ratio": "backward_s",
    }
    return {name: base[key] / result[key] if result[key] else None for name, key in pairs.items()}


if __name__ == "__main__":
    run_command("compare_training", main)
