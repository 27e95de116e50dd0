"""The training loop: seeds, epochs and steps of a run, and a run for each of several splits."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from hpcgnn.comm import Communicator, ProcessGrid, agree, bcast
from hpcgnn.config.config import Config
from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.spmd import collective
from hpcgnn.train.open_run import RunStart, open_run
from hpcgnn.train.process import StopRequest, prepare_process
from hpcgnn.train.run.directory import RunDirectory, find_past, held_by_run
from hpcgnn.train.run.memory_checkpoints import MemoryCheckpoints
from hpcgnn.train.run.summary import averages
from hpcgnn.train.run.trackers import Tracking
from hpcgnn.train.tasks import check_run


@collective
def run_training(
    comm: Communicator, config: Config, stop: StopRequest
) -> tuple[dict[str, Any] | None, int]:
    """Train according to `config`, which is equal on all ranks, or resume a stopped run.

    Return the content of summary.json on rank 0 of a finished run, else None; and the exit status.
    The run ends after an epoch once `stop` is set on any rank. Several splits are trained on one
    after the other, see `train_over_splits`.

    Raises `CollectiveInputError` for any fault of the input, if a file cannot be written, or if the
    loss diverges.
    """
    first = bcast(comm, config)
    with agree(comm):
        if config != first:
            fault = f"rank {comm.rank} has a configuration unlike that of rank 0: give all the same"
            raise InputError(fault)
        # Check here: the configuration of a split's run no longer tells that it is one of several.
        pair = check_run(config)
    if config.train.splits:
        return train_over_splits(comm, config, stop)
    replication, groups = config.exchange.replication, config.exchange.groups
    with contextlib.ExitStack() as stack:
        grid = stack.enter_context(ProcessGrid(comm, replication, groups=groups))
        directory = RunDirectory(config.run.dir)
        threads = prepare_process(grid, config.run.threads)
        with agree(grid.world):
            tracking = Tracking(config, directory, active=grid.rank == 0)
        stack.enter_context(held_by_run(grid, directory))
        memory = None
        if config.run.partner_every:
            memory = MemoryCheckpoints(grid, config, directory).bring_back()
        past = find_past(grid, config, directory, pair.objective.store)
        if past.summary is not None:
            if grid.rank == 0:
                report(f"the run in {directory.path} is finished: nothing is left to do")
            return past.summary, 0
        start = RunStart(grid, pair, directory, memory, tracking, stop, past.config, threads)
        with open_run(start, config) as run:
            for seed in run.seeds:
                # Check between seeds too: the first epoch of the next one may take longer than the
                # time that is left.
                if run.stopping:
                    break
                with run.training(seed) as trained:
                    while not (trained.finished or run.stopping):
                        trained.begin_epoch()
                        for step in run.task.steps(seed, trained.epoch):
                            trained.step(step)
                        run.end_epoch(trained)
            return run.finish()


_OF_ONE = (
    *("ranks_detail", "epoch_s", "evaluate_s", "epoch_j", "epoch_rows", "epoch_bytes", "energy"),
    "sample_wait_share",
    *("session_epochs", "smoothed", "epochs"),
)


@collective
def train_over_splits(
    comm: Communicator, config: Config, stop: StopRequest
) -> tuple[dict[str, Any] | None, int]:
    """Train on each of ``train.splits`` with all seeds; for the result, see `run_training`.

    ``seeds`` of the summary lists the seeds of all splits, each with its ``split``; ``mean`` and
    ``std`` are over all of them, and ``splits`` has those of each split.
    """
    names = config.train.splits
    summaries: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        if comm.rank == 0:
            report(f"split {name} ({number + 1} of {len(names)})")
        summary, status = run_training(comm, of_split(config, name), stop)
        if status:
            return None, status
        summaries += [] if summary is None else [summary]
    joined = None
    with agree(comm):
        if comm.rank == 0:
            joined = join(names, summaries)
            RunDirectory(config.run.dir).write_summary(joined)
    return joined, 0


def of_split(config: Config, name: str) -> Config:
    """Return the configuration of the run on one split."""
    resume = config.run.resume
    if resume == "must" and name != config.train.splits[0]:
        # An interrupted run may not have begun its last splits.
        resume = "auto"
    folder = str(Path(config.run.dir) / f"split-{name}")
    return dataclasses.replace(
        config,
        graph=dataclasses.replace(config.graph, split=name),
        train=dataclasses.replace(config.train, splits=()),
        run=dataclasses.replace(config.run, dir=folder, resume=resume),
    )


def join(names: tuple[str, ...], summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the joint summary of all splits."""
    results = [
        {"split": name, **result}
        for name, summary in zip(names, summaries, strict=True)
        for result in summary["seeds"]
    ]
    # Times, rows and bytes only make sense for a single split.
    common = {key: value for key, value in summaries[0].items() if key not in _OF_ONE}
    return {
        **common,
        "seeds": results,
        **averages(results),
        "epochs": sum(result["epochs"] for result in results),
        "sessions": [session for summary in summaries for session in summary["sessions"]],
        "splits": [
            {"name": name, "mean": summary["mean"], "std": summary["std"]}
            for name, summary in zip(names, summaries, strict=True)
        ],
    }
