"""Accuracy by seconds of training, for several configurations.

    python -m benchmarks.bench_learning 'full quickstart.toml' 'walk sampled.toml sampling.steps=8'
        --overrides graph.store=debian.h5 --json

Each positional argument is a run: a name, then the arguments of ``hpcgnn train``. Runs take turns,
epoch by epoch, so that load affects them alike; under ``mpiexec`` all ranks work on each. One JSON
object per evaluation: run, seed, ranks, epoch, cpu_s (sum over ranks) and wall_s of the training so
far without evaluations, train_loss, and the chosen metric on the validation and test nodes.
``prepare_s`` is the CPU time before the first step: reading, and counting subgraphs.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from benchmarks.columns import Columns, print_columns, ratio, seconds, text
from benchmarks.harness import surroundings
from hpcgnn.comm import ProcessGrid, sum_over_ranks
from hpcgnn.commands.launch import run_command
from hpcgnn.config.config import Config
from hpcgnn.config.file import load_config
from hpcgnn.console import print_json
from hpcgnn.graph.context import Context
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.evaluation import Evaluation
from hpcgnn.train.process import prepare_process
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.tasks import load_task

COLUMNS: Columns = {
    "run": ("run", text),
    "seed": ("seed", text),
    "epoch": ("epoch", text),
    "CPU s": ("cpu_s", seconds),
    "wall s": ("wall_s", seconds),
    "valid": ("valid", ratio),
    "test": ("test", ratio),
}


def main() -> None:
    options = parse_arguments()
    comm, results = MPI.COMM_WORLD, []
    with ProcessGrid(comm, 1) as grid:
        found = [each for run in options.runs for each in open_runs(grid, run, options.overrides)]
        for line in in_turn(found):
            results.append(line)
            if options.json and grid.rank == 0:
                print_json(line | surroundings("torch"))
        if not options.json and grid.rank == 0:
            print_columns(COLUMNS, results)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.bench_learning", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="'NAME CONFIG.toml [section.key=value ...]'")
    parser.add_argument("--overrides", nargs="*", default=[], help="section.key=value for all runs")
    parser.add_argument("--json", action="store_true", help="print one JSON object per evaluation")
    return parser.parse_args()


class Measured:
    """A run of one seed and the seconds that its training took."""

    def __init__(self, name: str, grid: ProcessGrid, config: Config, seed: int) -> None:
        began = time.process_time()
        trace = TraceRecorder.off()
        self.grid, self.name, self.config = grid, name, config
        self.task = load_task(Context.open(grid, config, trace))
        self.prepare_s = time.process_time() - began
        self.run = SeedRun(replace(self.task, objective=self), config, seed, trace)
        self.cpu_s = self.wall_s = self.judging_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task.objective, name)

    def evaluate(self, model: Any) -> Evaluation:
        """Evaluate as the task does, outside the training time."""
        began = time.process_time()
        evaluation = self.task.objective.evaluate(model)
        self.judging_s = time.process_time() - began
        return evaluation

    def train(self) -> dict[str, Any] | None:
        """Train an epoch; return a result if its model was evaluated."""
        began, self.judging_s = time.process_time(), 0.0
        self.run.begin_epoch()
        for step in self.run.task.steps(self.run.seed, self.run.epoch):
            self.run.step(step)
        row, *_ = self.run.end_epoch(stop=False)
        spent = time.process_time() - began - self.judging_s
        self.cpu_s += sum_over_ranks(self.grid.world, [spent])[0]
        self.wall_s += row["epoch_s"]
        metric = self.task.objective.facts.metric
        if f"valid_{metric}" not in row:
            return None
        return {
            "run": self.name,
            "seed": self.run.seed,
            "ranks": self.grid.size,
            "epoch": self.run.epoch,
            "cpu_s": round(self.cpu_s, 2),
            "wall_s": round(self.wall_s, 2),
            "prepare_s": round(self.prepare_s, 2),
            "train_loss": row["train_loss"],
            "valid": row[f"valid_{metric}"],
            "test": row[f"test_{metric}"],
        }


def open_runs(grid: ProcessGrid, run: str, overrides: list[str]) -> list[Measured]:
    name, path, *words = run.split()
    config = load_config(path, ["run.dir=unused", *words, *overrides])
    prepare_process(grid, config.run.threads)
    return [Measured(name, grid, config, seed) for seed in config.train.seeds]


def in_turn(runs: list[Measured]) -> Iterator[dict[str, Any]]:
    while any(not each.run.finished for each in runs):
        for each in runs:
            line = None if each.run.finished else each.train()
            if line is not None:
                yield line


if __name__ == "__main__":
    run_command("bench_learning", main)
