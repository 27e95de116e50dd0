"""The training loop: seeds, epochs, checkpoints, and a clean stop on request."""

import dataclasses
import shutil
from typing import Any

from hpcgnn.comm import ProcessGrid, agree, sum_over_ranks
from hpcgnn.kernels import reused_memory
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.checkpoint import Checkpoint, checkpoint_paths, write_checkpoint
from hpcgnn.train.config import Config
from hpcgnn.train.display import EpochDisplay
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.signals import StopRequest
from hpcgnn.train.task import Task

__all__ = ["Outcome", "TrainingLoop"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the loop has reached.

    Parameters
    ----------
    results
        A line for each finished seed, see `SeedRun.result`.
    stopped
        Whether a signal ended it before all seeds were done; a checkpoint holds every epoch.
    epochs_run
        Epochs since the start of this process.
    """

    results: list[dict[str, Any]]
    stopped: bool
    epochs_run: int


class TrainingLoop:
    """Trains every seed of a configuration, from the newest checkpoint if there is one.

    Not collective.

    Parameters
    ----------
    grid, task, config, trace
        The ranks, what is trained, the configuration, the recorder.
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
        task: Task,
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
        self._epochs_run = 0

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
        # A signal that came while the graph was read: its sender may not wait for an epoch.
        if sum_over_ranks(self._grid.world, [self._stop.received is not None])[0] > 0:
            return Outcome(self._results, stopped=True, epochs_run=0)
        for position, seed in enumerate(seeds, start=1):
            run = SeedRun(self._task, self._config, seed, self._trace)
            if checkpoint is not None:
                run.restore(checkpoint)
                checkpoint = None
            stop = self._run_seed(run)
            if run.finished:
                self._results.append(run.result())
            # The next seed's first epoch may be longer than the time that is left.
            if stop and not (run.finished and position == len(seeds)):
                return Outcome(self._results, stopped=True, epochs_run=self._epochs_run)
        return Outcome(self._results, stopped=False, epochs_run=self._epochs_run)

    def _run_seed(self, run: SeedRun) -> bool:
        """Train a seed to its end or until a rank is asked to stop; return whether one was."""
        config = self._config
        title = f"{config.model_name} seed {run.seed}"
        every = config.run.checkpoint_every
        stop = False
        with (
            reused_memory(),
            EpochDisplay(title, config.train.epochs, active=self._grid.rank == 0) as display,
        ):
            while not (run.finished or stop):
                row, stop = run.run_epoch(self._stop.received is not None)
                self._epochs_run += 1
                with agree(self._grid.world):
                    self._trace.flush()
                    if self._grid.rank == 0:
                        self._directory.append_metrics(row)
                display.update(row)
                due = every > 0 and run.epoch % every == 0
                if due or stop or run.finished:
                    self._checkpoint(run)
        return stop

    def _checkpoint(self, run: SeedRun) -> None:
        more = {
            "finished_seeds": self._results,
            "graph": dataclasses.asdict(self._task.facts),
        }
        with self._trace.span("checkpoint"):
            checkpoint = run.checkpoint(more)
            with agree(self._grid.world):
                if self._grid.rank == 0:
                    write_checkpoint(self._directory.checkpoints, checkpoint)
                    self._prune(run.seed)

    def _prune(self, seed: int) -> None:
        found = checkpoint_paths(self._directory.checkpoints)
        mine = [path for other, _, path in found if other == seed]
        for path in mine[: -self._config.run.keep_checkpoints]:
            shutil.rmtree(path, ignore_errors=True)
