"""The cost of bitwise reproducibility: epochs of reproducible runs and of default runs.

    python -m benchmarks.bench_reproducible [--models gcn,gat] [--json]       # CPU seconds
    mpi_run 4 python -m benchmarks.bench_reproducible                         # bytes, too

Both train in turn in one process, on a planted graph in 8 parts: 3 layers of width 64, dropout, 4
heads. CPU seconds are the median of an epoch over all rounds, of the slowest rank. They include
waiting, so only those of one rank measure the arithmetic. Bytes are traced by all ranks per epoch.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from mpi4py import MPI

from benchmarks.columns import Columns, megabytes, print_columns, ratio, seconds, text
from benchmarks.harness import surroundings
from hpcgnn.commands.launch import run_command
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.gallery import planted
from hpcgnn.partition import metis, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphStore
from hpcgnn.train.loop import run_training
from hpcgnn.train.open_run import OpenRun
from hpcgnn.train.process import StopRequest
from hpcgnn.train.seed_run import SeedRun

MODELS = ("gcn", "sage", "gin", "rgcn", "gat", "gatv2", "transformer", "rgat", "hgt")
HEADED = ("gat", "gatv2", "transformer", "rgat", "hgt")
PARTS, FEATURES, CLASSES, WARM_UP = 8, 32, 8, 2
SETTINGS = (
    "run.threads=1",
    "model.num_layers=3",
    "model.hidden=64",
    "model.dropout=0.3",
    "run.save_predictions=false",
    "train.evaluate_every=1000",
    "exchange.active_sets=false",
    "graph.weights=ignore",
)
COLUMNS: Columns = {
    "model": ("model", text),
    "default s": ("default_s", seconds),
    "reproducible s": ("reproducible_s", seconds),
    "time": ("time_ratio", ratio),
    "default MB": ("default_bytes", megabytes),
    "reproducible MB": ("reproducible_bytes", megabytes),
    "bytes": ("bytes_ratio", ratio),
}


@contextmanager
def epochs_timed() -> Iterator[list[float]]:
    """Yield a list to which the CPU seconds of this process are appended after each epoch."""
    times: list[float] = []
    end_epoch = OpenRun.end_epoch

    def end_and_look(run: OpenRun, trained: SeedRun) -> None:
        end_epoch(run, trained)
        times.append(time.process_time())

    OpenRun.end_epoch = end_and_look  # type: ignore[method-assign]
    try:
        yield times
    finally:
        OpenRun.end_epoch = end_epoch  # type: ignore[method-assign]


def train(folder: Path, model: str, options: argparse.Namespace, *, exact: bool) -> Any:
    """Return the CPU seconds of each epoch, and the bytes sent by all ranks in the last one."""
    words = [
        f"graph.store={folder / 'planted.h5'}",
        f"run.dir={folder / 'run'}",
        "run.resume=never",
        f"model.name={model}",
        f"train.epochs={options.epochs}",
        f"train.reproducible={str(exact).lower()}",
        f"exchange.method={options.exchange}",
        *SETTINGS,
        *(["model.heads=4"] if model in HEADED else []),
        *options.changed,
    ]
    with epochs_timed() as times:
        run_training(MPI.COMM_WORLD, load_config(None, words), StopRequest())
    MPI.COMM_WORLD.Barrier()
    row = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    between = [after - before for before, after in pairwise(times)]
    return between[WARM_UP:], row["bytes_sent"] - row["evaluate_bytes"]


def measure(folder: Path, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row of the table."""
    ways = {"default": False, "reproducible": True}
    spent: dict[str, list[float]] = {way: [] for way in ways}
    line: dict[str, Any] = {"model": model, "ranks": MPI.COMM_WORLD.size, "nodes": options.nodes}
    for _ in range(options.rounds):
        for way, exact in ways.items():
            took, line[f"{way}_bytes"] = train(folder, model, options, exact=exact)
            spent[way] += took
    for way, each in spent.items():
        line[f"{way}_s"] = MPI.COMM_WORLD.allreduce(statistics.median(each), MPI.MAX)
    line["time_ratio"] = line["reproducible_s"] / line["default_s"]
    if line["default_bytes"]:
        line["bytes_ratio"] = line["reproducible_bytes"] / line["default_bytes"]
    return line


def main() -> None:
    """Print the table."""
    options, comm, results = parse_arguments(), MPI.COMM_WORLD, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(comm.bcast(name))
        if comm.rank == 0:
            planted(options.nodes, CLASSES, FEATURES, 1).write(folder / "whole.h5")
            with GraphStore.open(folder / "whole.h5") as opened:
                partition = metis(1)(read_pattern(opened), PARTS)
                write_partitioned(opened, folder / "planted.h5", partition, method="metis", seed=1)
        comm.Barrier()
        for model in options.models.split(","):
            results.append(measure(folder, model, options))
            if options.json and comm.rank == 0:
                print_json(results[-1] | surroundings("torch"))
        comm.Barrier()
    if not options.json and comm.rank == 0:
        print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_reproducible", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="names, separated by commas")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=8, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind")
    parser.add_argument("--exchange", default="aware")
    parser.add_argument("--changed", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true", help="print one JSON object per model")
    return parser.parse_args()


if __name__ == "__main__":
    run_command("bench_reproducible", main)
