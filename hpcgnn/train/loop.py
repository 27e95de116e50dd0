"""The training loop: seeds, epochs, checkpoints, and a clean stop on request."""

import shutil
from dataclasses import dataclass
from typing import Any

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.checkpoint import Checkpoint, checkpoint_paths, write_checkpoint
from hpcgnn.train.config import Config
from hpcgnn.train.display import EpochDisplay
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.signals import StopRequest
from hpcgnn.train.task import NodeTask

__all__ = ["Outcome", "TrainingLoop"]


@dataclass(frozen=True)
class Outcome:
    """What the loop has reached.

    Parameters
    ----------
    results
        A line for each finished seed, see `SeedRun.result`.
    stopped
        Whether a signal ended it before all seeds were done; a checkpoint is there.
    """

    results: list[dict[str, Any]]
    stopped: bool


class TrainingLoop:
    """Trains every seed of a configuration, from the newest checkpoint if there is one.

    Not collective.

    Parameters
    ----------
    grid, task, config, trace
        The ranks, the rank's share of the graph, the configuration, the recorder.
    directory
        Where results go, prepared by `open_run`; used on rank 0.
    checkpoint
        Where to go on; None starts with the first seed.
    stop
        Set by a signal.
    """

    def __init__(
        self,
        *,
        grid: ProcessGrid,
        task: NodeTask,
        config: Config,
        trace: TraceRecorder,
        directory: RunDirectory,
        checkpoint: Checkpoint | None,
        stop: StopRequest,
    ) -> None:
        self._grid, self._task, self._config, self._trace = grid, task, config, trace
        self._directory, self._stop = directory, stop
        self._checkpoint_found = checkpoint
        self._results: list[dict[str, Any]] = []

    def run(self) -> Outcome:
        """Train until all seeds are done or a rank is asked to stop.

        Collective.

        Raises
        ------
        CollectiveInputError
            When a file cannot be written, or the loss diverges.
        """
        checkpoint = self._checkpoint_found
        seeds = list(self._config.train.seeds)
        if checkpoint is not None:
            self._results = checkpoint.state["finished_seeds"]
            seeds = seeds[seeds.index(checkpoint.state["seed"]) :]
        for seed in seeds:
            run = SeedRun(self._task, self._config, seed, self._trace)
            if checkpoint is not None:
                run.restore(checkpoint)
                checkpoint = None
            if not self._run_seed(run):
                return Outcome(self._results, stopped=True)
            self._results.append(run.result())
        return Outcome(self._results, stopped=False)

    def _run_seed(self, run: SeedRun) -> bool:
        config = self._config
        title = f"{config.model.name} seed {run.seed}"
        every = config.run.checkpoint_every
        stop = False
        with EpochDisplay(title, config.train.epochs, active=self._grid.rank == 0) as display:
            while not (run.finished or stop):
                row, stop = run.run_epoch(self._stop.received is not None)
                with agree(self._grid.world):
                    self._trace.flush()
                    if self._grid.rank == 0:
                        self._directory.append_metrics(row)
                display.update(row)
                due = every > 0 and run.epoch % every == 0
                if due or stop or run.finished:
                    self._checkpoint(run)
        return run.finished

    def _checkpoint(self, run: SeedRun) -> None:
        with self._trace.span("checkpoint"), agree(self._grid.world):
            if self._grid.rank == 0:
                more = {
                    "finished_seeds": self._results,
                    "fingerprint": self._task.facts.fingerprint,
                    "num_nodes": self._task.facts.num_nodes,
                }
                write_checkpoint(self._directory.checkpoints, run.checkpoint(more))
                self._prune(run.seed)

    def _prune(self, seed: int) -> None:
        found = checkpoint_paths(self._directory.checkpoints)
        mine = [path for other, _, path in found if other == seed]
        for path in mine[: -self._config.run.keep_checkpoints]:
            shutil.rmtree(path, ignore_errors=True)
