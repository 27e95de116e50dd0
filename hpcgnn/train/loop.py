"""A training run: its seeds, their epochs, and the steps of these."""

import contextlib
from functools import partial
from typing import Any

from hpcgnn.comm import (
    Communicator,
    ProcessGrid,
    agree,
    bcast,
    raise_on_all,
)
from hpcgnn.config.config import Config
from hpcgnn.console import logged_to, report
from hpcgnn.errors import InputError
from hpcgnn.graph.targets import fingerprint_of
from hpcgnn.spmd import collective
from hpcgnn.train.features import check_run
from hpcgnn.train.open_run import open_run
from hpcgnn.train.process import (
    StopRequest,
    prepare_process,
)
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.resume import find_finished
from hpcgnn.train.run.track import check_trackers
from hpcgnn.train.tasks import find_pair


@collective
def run_training(
    comm: Communicator, config: Config, stop: StopRequest
) -> tuple[dict[str, Any] | None, int]:
    """Train as `config` says, or go on where an earlier start of the same run was stopped.

    Parameters
    ----------
    config
        The configuration; all ranks must give the same.
    stop
        Ends the run after an epoch once it is set on any rank.

    Returns
    -------
    summary, status
        What summary.json holds, on rank 0 of a finished run, else None; and the exit status.

    Raises
    ------
    CollectiveInputError
        On any fault of the input, when a file cannot be written, or the loss diverges.
    """
    _check_agreement(comm, config)
    with agree(comm):
        check_run(config)
    directory = RunDirectory(config.run.dir)
    with ProcessGrid(comm, config.exchange.replication) as grid, contextlib.ExitStack() as stack:
        threads = prepare_process(grid, config.run.threads)
        with agree(grid.world):
            if grid.rank == 0:
                check_trackers(config.run.track)
                stack.enter_context(directory.reserve())
                stack.enter_context(logged_to(directory.log))
        summary = find_finished(grid, config, directory, partial(_fingerprint, config))
        if summary is not None:
            if grid.rank == 0:
                report(f"the run in {directory.path} has ended: nothing is left to do")
            return summary, 0
        with open_run(grid, config, directory, stop, threads) as run:
            for seed in run.seeds:
                # Asked between two seeds too: the next one's first epoch may be longer than the
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


def _check_agreement(comm: Communicator, config: Config) -> None:
    differs = bcast(comm, config) != config
    raise_on_all(
        comm,
        InputError(f"rank {comm.rank} reads another configuration than rank 0: give all the same")
        if differs
        else None,
    )


def _fingerprint(config: Config) -> str:
    with find_pair(config.train.task).objective.store.open(config.graph.store) as store:
        return fingerprint_of(config, store)
