"""Compare traced training runs: epoch times against bytes, and active sets against active edges.

    python -m benchmarks.compare_training BASE=DIR[,DIR...] NAME=DIR[,DIR...] [--json]

Every NAME stands for repeated runs of one configuration, whose epochs are pooled. Ratios are BASE's
value over NAME's. A link carries what a host sends and, on its other side, what it receives; the
busiest one bounds the time.
"""

import argparse
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from analysis.load import Run, open_run
from benchmarks.active_edges import active_edge_share
from benchmarks.columns import Columns, megabytes, print_columns, ratio, seconds, text
from benchmarks.pass_totals import pass_totals
from hpcgnn.console import print_json, run_command
from hpcgnn.errors import InputError

COLUMNS: Columns = {
    "run": ("name", text),
    "epoch s": ("epoch_s", seconds),
    "aggregation s": ("aggregation_s", seconds),
    "backward": ("backward_aggregation_s", seconds),
    "MB": ("bytes_total", megabytes),
    "backward MB": ("bytes_backward", megabytes),
    "busiest link MB": ("bytes_busiest_link", megabytes),
    "epoch ratio": ("epoch_ratio", ratio),
    "aggregation ratio": ("aggregation_ratio", ratio),
    "MB ratio": ("bytes_ratio", ratio),
    "link ratio": ("link_ratio", ratio),
    "backward MB ratio": ("backward_bytes_ratio", ratio),
    "backward s ratio": ("backward_ratio", ratio),
    "active edges": ("active_edges", ratio),
}


def main() -> None:
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks.compare_training", description=(__doc__ or "").split("\n")[0]
    )
    cli.add_argument("runs", nargs="+", metavar="NAME=DIR[,DIR...]")
    cli.add_argument("--json", action="store_true", help="print one JSON object a name")
    options = cli.parse_args()
    results = [describe(*named_runs(word)) for word in options.runs]
    for result in results:
        result |= ratios(results[0], result)
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
    # The first epoch builds transposes and buffers.
    epochs = [row["epoch_s"] for run in runs for row in run.metrics() if row["epoch"] > 0]
    if not epochs:
        raise InputError(f"{name}: needs runs of at least two epochs")
    passes = [pass_totals(run) for run in runs]
    sent = {side: np.array([rank.sent for rank in ranks]) for side, ranks in passes[0].items()}
    hosts = [trace.headers[-1]["host"] for trace in runs[0].traces()]
    slowest = [
        {side: max(rank.aggregation_s for rank in ranks) for side, ranks in each.items()}
        for each in passes
    ]
    return {
        "name": name,
        "epoch_s": median(epochs),
        "epoch_min_s": min(epochs),
        "epochs": len(epochs),
        "bytes_total": int(sent["forward"].sum() + sent["backward"].sum()),
        "bytes_backward": int(sent["backward"].sum()),
        "bytes_busiest_link": busiest_link(sent["forward"] + sent["backward"], hosts),
        "aggregation_s": median(sum(each.values()) for each in slowest),
        "backward_aggregation_s": median(each["backward"] for each in slowest),
        "active_edges": active_edges(runs[0]),
    }


def busiest_link(sent: Any, hosts: Sequence[str]) -> int:
    """Return the most bytes that a host sends to others, or receives from them.

    `sent` is (ranks, ranks) bytes from each rank to each; ranks of one name share a host.
    """
    names = sorted(set(hosts))
    on_host = np.array([[host == name for host in hosts] for name in names], np.int64)
    between = on_host @ sent @ on_host.T
    np.fill_diagonal(between, 0)
    return int(max(between.sum(axis=0).max(), between.sum(axis=1).max()))


def active_edges(run: Run) -> float:
    config = tomllib.loads((run.path / "config.toml").read_text())
    if not config["exchange"]["active_sets"]:
        return 1.0
    graph = config["graph"]
    layers = config["model"]["num_layers"]
    relations = graph["relations"]
    return active_edge_share(
        Path(graph["store"]), relations, layers, undirected=graph["undirected"]
    )


def ratios(base: dict[str, Any], result: dict[str, Any]) -> dict[str, float | None]:
    """Return how many times less than `base` a result needs; None where it needs nothing."""
    pairs = {
        "epoch_ratio": "epoch_s",
        "aggregation_ratio": "aggregation_s",
        "bytes_ratio": "bytes_total",
        "link_ratio": "bytes_busiest_link",
        "backward_bytes_ratio": "bytes_backward",
        "backward_ratio": "backward_aggregation_s",
    }
    return {name: base[key] / result[key] if result[key] else None for name, key in pairs.items()}


if __name__ == "__main__":
    run_command("compare_training", main)
