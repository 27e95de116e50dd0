"""The training command, on every rank."""

import argparse
import contextlib
from pathlib import Path
from typing import Any

from hpcgnn.comm import (
    Communicator,
    ProcessGrid,
    RankArgumentParser,
    agree,
    bcast,
    raise_on_all,
)
from hpcgnn.console import print_json, print_table, report
from hpcgnn.errors import InputError
from hpcgnn.trace import TraceRecorder, trace_file
from hpcgnn.train.config import Config
from hpcgnn.train.config_file import describe_keys, load_config
from hpcgnn.train.device import require_device
from hpcgnn.train.loop import Outcome, TrainingLoop
from hpcgnn.train.report import print_results
from hpcgnn.train.resume import find_finished, open_run
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.sample import sample_overrides
from hpcgnn.train.saved_model import best_seed
from hpcgnn.train.signals import EXIT_REQUEUE, StopRequest, stop_on_signals
from hpcgnn.train.summary import gather_rank_details, summarise
from hpcgnn.train.task import Task
from hpcgnn.train.tasks import TASKS
from hpcgnn.train.threads import set_threads

__all__ = ["main", "run_training"]

_DESCRIPTION = """Train a node model on a partitioned store. Start it on every rank:
  srun python -m hpcgnn.train CONFIG.toml graph.store=G.h5 run.dir=DIR
The number of ranks is at most the number of parts of the store."""

_EPILOG = """exit status: 0 trained; 2 a fault of the input, one line tells which; 75 stopped by
SIGTERM or SIGUSR1 after an epoch, with a checkpoint: start the same command again to go on.
srun hands both signals to the ranks; Open MPI's mpiexec hands on SIGUSR1, and kills the ranks at
SIGTERM: a killed run goes on from its last checkpoint."""


def main(comm: Communicator) -> int:
    """Run the command with the arguments of the process; return its exit status.

    Collective.
    """
    arguments = _parse()
    if arguments.keys:
        if comm.rank == 0:
            print_table("Keys of the configuration", ("key", "default", "meaning"), describe_keys())
        return 0
    with stop_on_signals() as stop:
        with agree(comm):
            drawn = _drawn(arguments)
            # What the command line says counts most.
            config = load_config(arguments.config, [*drawn, *arguments.overrides])
            require_device(config)
        summary, status = run_training(comm, config, stop)
    if comm.rank == 0 and summary is not None:
        if arguments.json:
            print_json(summary)
        else:
            print_results(summary, Path(config.run.dir))
    return status


def _parse() -> argparse.Namespace:
    parser = RankArgumentParser(
        prog="hpcgnn train",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="CONFIG.toml | section.key=value",
        help="a configuration file, and overrides of it (TOML values)",
    )
    parser.add_argument("--keys", action="store_true", help="list all keys with their defaults")
    parser.add_argument(
        "--sample-config",
        type=int,
        dest="seed",
        metavar="SEED",
        help="draw the optimiser's settings of program graphs, for a search by an array of jobs",
    )
    parser.add_argument(
        "--large-batch",
        action="store_true",
        help="with --sample-config: the ranges for many supergraphs a step",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_intermixed_args()
    files = [word for word in arguments.words if "=" not in word]
    if len(files) > 1:
        parser.error(f"more than one configuration file: {' '.join(files)}")
    arguments.config = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


def _drawn(arguments: argparse.Namespace) -> list[str]:
    if arguments.seed is not None:
        return sample_overrides(arguments.seed, large_batch=arguments.large_batch)
    if arguments.large_batch:
        raise InputError("--large-batch says what --sample-config SEED draws from: give both")
    return []


def _check_agreement(comm: Communicator, config: Config) -> None:
    differs = bcast(comm, config) != config
    raise_on_all(
        comm,
        InputError(f"rank {comm.rank} reads another configuration than rank 0: give all the same")
        if differs
        else None,
    )


def run_training(
    comm: Communicator, config: Config, stop: StopRequest
) -> tuple[dict[str, Any] | None, int]:
    """Train as `config` says, or go on where an earlier start of the same run was stopped.

    Collective.

    Parameters
    ----------
    comm
        The ranks.
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
        On any fault of the input.
    """
    _check_agreement(comm, config)
    directory = RunDirectory(config.run.dir)
    with ProcessGrid(comm, config.exchange.replication) as grid, contextlib.ExitStack() as stack:
        threads = set_threads(grid, config.run.threads)
        with agree(grid.world):
            if grid.rank == 0:
                stack.enter_context(directory.reserve())
        summary = find_finished(grid, config, directory)
        if summary is not None:
            if grid.rank == 0:
                report(f"the run in {directory.path} has ended: nothing is left to do")
            return summary, 0
        return _train(grid, config, directory, stop, threads)


def _train(
    grid: ProcessGrid, config: Config, directory: RunDirectory, stop: StopRequest, threads: int
) -> tuple[dict[str, Any] | None, int]:
    wants_file = config.trace.enabled
    trace = TraceRecorder.unattached() if wants_file else TraceRecorder.open(None, 0, {})
    try:
        task = TASKS[config.train.task].load(grid, config, trace)
        checkpoint = open_run(grid, config, task.facts, directory)
        if grid.rank == 0:
            report(task.describe(threads))
            if checkpoint is not None:
                report("going on with seed {seed} after epoch {epoch}".format(**checkpoint.state))
        if wants_file:
            _attach_trace(grid, config, directory, trace, resumes=checkpoint is not None)
        loop = TrainingLoop(
            grid=grid,
            task=task,
            config=config,
            trace=trace,
            directory=directory,
            checkpoint=checkpoint,
            stop=stop,
        )
        outcome = loop.run()
        summary = _finish(task, config, trace, directory, outcome)
    except BaseException:
        # One fault at a time: a disk that took no checkpoint will not take the trace either.
        with contextlib.suppress(InputError):
            trace.close()
        raise
    return summary, EXIT_REQUEUE if outcome.stopped else 0


def _attach_trace(
    grid: ProcessGrid,
    config: Config,
    directory: RunDirectory,
    trace: TraceRecorder,
    *,
    resumes: bool,
) -> None:
    header = {
        "ranks": grid.size,
        "replication": grid.replication,
        "exchange": config.exchange.method,
        "schedule": config.exchange.schedule,
    }
    with agree(grid.world):
        trace.attach(trace_file(directory.path, grid.rank), grid.rank, header, append=resumes)


def _finish(
    task: Task,
    config: Config,
    trace: TraceRecorder,
    directory: RunDirectory,
    outcome: Outcome,
) -> dict[str, Any] | None:
    """Write what an ended run leaves, the summary last; return it on rank 0."""
    grid, summary = task.grid, None
    ranks = gather_rank_details(task, trace)
    if config.run.save_predictions and not outcome.stopped:
        trace.set_epoch(None)
        with trace.span("evaluate.predictions"):
            seed = best_seed({each["seed"]: each["valid"] for each in outcome.results})
            task.save_predictions(directory, seed)
    with agree(grid.world):
        trace.close()
        if grid.rank == 0 and outcome.stopped:
            report(
                f"stopped by a signal after {outcome.epochs_run} epochs, which are in "
                f"{directory.checkpoints}: start the same command again to go on"
            )
        elif grid.rank == 0:
            summary = summarise(config, task, outcome, directory.read_metrics(), ranks)
            directory.write_summary(summary)
    return summary
