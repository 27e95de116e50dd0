"""The training command, on every rank."""

import argparse

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
from hpcgnn.train.load import load_task
from hpcgnn.train.loop import Outcome, TrainingLoop
from hpcgnn.train.report import describe_run, print_results
from hpcgnn.train.resume import open_run
from hpcgnn.train.run_directory import RunDirectory
from hpcgnn.train.signals import EXIT_REQUEUE, StopRequest, stop_on_signals
from hpcgnn.train.summary import gather_rank_details, summarise
from hpcgnn.train.task import NodeTask
from hpcgnn.train.threads import set_threads

__all__ = ["main"]

_DESCRIPTION = """Train a node model on a partitioned store. Start it on every rank:
  srun python -m hpcgnn.train CONFIG.toml graph.store=G.h5 run.dir=DIR
The number of ranks is at most the number of parts of the store."""

_EPILOG = """exit status: 0 trained; 2 a fault of the input, one line tells which; 75 stopped by
SIGTERM or SIGUSR1 after an epoch, with a checkpoint: start the same command again to go on."""


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
            config = load_config(arguments.config, arguments.overrides)
        _check_agreement(comm, config)
        with ProcessGrid(comm, config.exchange.replication) as grid:
            return _train(grid, config, stop, as_json=arguments.json)


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
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    files = [word for word in arguments.words if "=" not in word]
    if len(files) > 1:
        parser.error(f"more than one configuration file: {' '.join(files)}")
    arguments.config = files[0] if files else None
    arguments.overrides = [word for word in arguments.words if "=" in word]
    return arguments


def _check_agreement(comm: Communicator, config: Config) -> None:
    differs = bcast(comm, config) != config
    raise_on_all(
        comm,
        InputError(f"rank {comm.rank} reads another configuration than rank 0: give all the same")
        if differs
        else None,
    )


def _train(grid: ProcessGrid, config: Config, stop: StopRequest, *, as_json: bool) -> int:
    threads = set_threads(grid, config.run.threads)
    directory = RunDirectory(config.run.dir)
    with agree(grid.world):
        if grid.rank == 0:
            directory.create()
    wants_file = config.trace.enabled
    with TraceRecorder.unattached() if wants_file else TraceRecorder.open(None, 0, {}) as trace:
        task = load_task(grid, config, trace)
        if grid.rank == 0:
            report(describe_run(grid, task, config, threads))
        checkpoint = open_run(grid, config, task.facts, directory)
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
        _finish(grid, config, task, trace, directory, outcome, as_json=as_json)
    return EXIT_REQUEUE if outcome.stopped else 0


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
    }
    with agree(grid.world):
        trace.attach(trace_file(directory.path, grid.rank), grid.rank, header, append=resumes)


def _finish(
    grid: ProcessGrid,
    config: Config,
    task: NodeTask,
    trace: TraceRecorder,
    directory: RunDirectory,
    outcome: Outcome,
    *,
    as_json: bool,
) -> None:
    ranks = gather_rank_details(grid, task, trace)
    with agree(grid.world):
        if grid.rank == 0 and outcome.stopped:
            report(f"stopped by a signal, with a checkpoint in {directory.checkpoints}")
        elif grid.rank == 0:
            summary = summarise(config, task, outcome.results, directory.read_metrics(), ranks)
            directory.write_summary(summary)
            if as_json:
                print_json(summary)
            else:
                print_results(summary, directory.path)
