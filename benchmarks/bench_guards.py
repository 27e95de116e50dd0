"""The cost of a run's safeguards: checksums of the graph, comparison of weights, watchdog, trace.

    mpiexec -n P python -m benchmarks.bench_guards STORE.h5 [--rounds 9] [--epochs 10]

Loads a graph as training does, alternately with and without checksums; then trains a GraphSAGE of
3 layers and width 64, evaluating after each epoch, with and without the watchdog and the comparison
of weights; then with and without a trace that is written after each epoch. Figures are medians of
processor seconds of the slowest rank, and `spread`, the interquartile distance of the ratios, since
other work may use the machine. A run's start also imports modules and makes the model, so checksums
are a smaller share of it than of loading.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np

from benchmarks.report import circumstances
from hpcgnn import watchdog
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.graph import load
from hpcgnn.graph.context import Context
from hpcgnn.storage import datasets
from hpcgnn.trace import TraceRecorder, trace_file
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.tasks import Task, load_task

LIMIT_S = 1800.0


@dataclass(frozen=True)
class Pair:
    """Processor seconds of each round with and without a safeguard."""

    guarded: list[float]
    bare: list[float]

    def told(self, name: str) -> dict[str, float]:
        """Return medians, and the median of the rounds' ratios."""
        ratios = [a / b for a, b in zip(self.guarded, self.bare, strict=True)]
        return {
            f"{name}_s": statistics.median(self.guarded),
            f"{name}_bare_s": statistics.median(self.bare),
            f"{name}_ratio": statistics.median(ratios),
            f"{name}_spread": float(np.subtract(*np.percentile(ratios, (75, 25)))),
        }


def main() -> None:
    """Measure and print one JSON object."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("store")
    cli.add_argument("--only", choices=("load", "epochs", "trace"), help="only this pair")
    cli.add_argument(
        "--rounds", type=int, default=9, help="rounds of epochs; five times as many of loading"
    )
    cli.add_argument("--epochs", type=int, default=10, help="of a round")
    options = cli.parse_args()
    words = ("model.name=sage", "model.num_layers=3", "model.hidden=64", "run.threads=1")
    config = load_config(None, [f"graph.store={options.store}", "run.dir=none", *words])
    world = MPI.COMM_WORLD
    watchdog.start("bench_guards", str(world.rank))
    told: dict[str, float] = {}
    with ProcessGrid(world) as grid, tempfile.TemporaryDirectory() as folder:
        if options.only in (None, "load"):

            def load_unchecked() -> None:
                with unchecked():
                    read(grid, config)

            pair = in_turn(world, lambda: read(grid, config), load_unchecked, 5 * options.rounds)
            told |= pair.told("load")
        run = SeedRun(read(grid, config), config, 1, TraceRecorder.off())
        if options.only in (None, "epochs"):

            def train_unwatched() -> None:
                with unwatched():
                    train(run, options.epochs)

            pair = in_turn(
                world, lambda: train(run, options.epochs), train_unwatched, options.rounds
            )
            told |= pair.told("epochs")
        if options.only in (None, "trace"):
            about = {"ranks": world.size}
            trace = TraceRecorder.open(trace_file(Path(folder), world.rank), world.rank, about)
            traced = SeedRun(read(grid, config, trace), config, 1, trace)
            pair = in_turn(
                world,
                lambda: train(traced, options.epochs, trace),
                lambda: train(run, options.epochs),
                options.rounds,
            )
            told |= pair.told("trace")
    if world.rank == 0:
        print_json({"ranks": world.size, "rounds": options.rounds, **told, **circumstances()})


def in_turn(
    world: MPI.Intracomm, guarded: Callable[[], Any], bare: Callable[[], Any], rounds: int
) -> Pair:
    """Run some work alternately with and without guards; collective."""
    guarded()
    bare()
    pair = Pair([], [])
    for number in range(rounds):
        both = [(pair.guarded, guarded), (pair.bare, bare)]
        # The order alternates, so that both find the caches warmed by the other equally often.
        for seconds, work in both if number % 2 else reversed(both):
            seconds.append(timed(world, work))
    return pair


def timed(world: MPI.Intracomm, work: Callable[[], Any]) -> float:
    """Return the largest processor seconds over ranks."""
    world.Barrier()
    began = time.process_time()
    work()
    return float(world.allreduce(time.process_time() - began, op=MPI.MAX))


def read(grid: ProcessGrid, config: Config, trace: TraceRecorder | None = None) -> Task[Any]:
    """Return the task with its graph."""
    return load_task(Context.open(grid, config, trace or TraceRecorder.off()))


def train(run: SeedRun, epochs: int, trace: TraceRecorder | None = None) -> None:
    """Train, and evaluate after each epoch."""
    for _ in range(epochs):
        run.begin_epoch()
        for step in run.task.steps(run.seed, run.epoch):
            run.step(step)
        run.end_epoch(stop=False)
        if trace is not None:
            trace.flush()


@contextmanager
def unchecked() -> Iterator[None]:
    """Read without checksums."""
    crc, check = datasets.array_crc, load.check_rows_read
    datasets.array_crc, load.check_rows_read = (lambda *_: 0), (lambda *_: None)  # type: ignore
    try:
        yield
    finally:
        datasets.array_crc, load.check_rows_read = crc, check


@contextmanager
def unwatched() -> Iterator[None]:
    """Train without the watchdog, and without comparing weights."""
    compare = SeedRun._compare_weights
    SeedRun._compare_weights = lambda _: None  # type: ignore
    watchdog.set_limit(0)
    try:
        yield
    finally:
        SeedRun._compare_weights = compare  # type: ignore
        watchdog.set_limit(LIMIT_S)


if __name__ == "__main__":
    main()
