"""Set up a training run, write its files and checkpoints, and summarise it."""

import contextlib
import dataclasses
import platform
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcgnn.autograd import check_integers
from hpcgnn.comm import ProcessGrid, agree, bcast, clock_offset, sum_over_ranks
from hpcgnn.config.config import Config
from hpcgnn.config.run_features import unread
from hpcgnn.console import detail, report
from hpcgnn.errors import EXIT_REQUEUE, InputError
from hpcgnn.graph.choose_exchange import with_chosen_exchange, with_method
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.kernels import reused_memory
from hpcgnn.spmd import collective
from hpcgnn.spmm import AUTO
from hpcgnn.trace import TraceRecorder, open_meter, trace_file
from hpcgnn.train.process import HeapBound, StopRequest, describe_binding
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    CheckpointPace,
    prune_checkpoints,
    write_checkpoint,
    write_kept_model,
)
from hpcgnn.train.run.directory import RunDirectory, find_checkpoint
from hpcgnn.train.run.memory_checkpoints import MemoryCheckpoints
from hpcgnn.train.run.report import EpochDisplay, remark_on_constants, remark_on_growth
from hpcgnn.train.run.saved_model import best_seed
from hpcgnn.train.run.session import describe_session, ended
from hpcgnn.train.run.summary import gather_rank_details, summarise
from hpcgnn.train.run.trackers import Tracking
from hpcgnn.train.run.usage import Usage
from hpcgnn.train.seed_run import SeedRun
from hpcgnn.train.tasks import Pair, Task

_MOST_SHORT_SESSIONS = 3
"""Sessions in a row that may be stopped before they end an epoch; the last is an error."""


@dataclass(frozen=True, eq=False)
class RunStart:
    """The parts of a run that exist before its data are read.

    `before` is the configuration of the run so far; None for a new run.
    """

    grid: ProcessGrid
    pair: Pair
    directory: RunDirectory
    memory: MemoryCheckpoints | None
    tracking: Tracking
    stop: StopRequest
    before: Config | None
    threads: int


class OpenRun:
    """A run in progress: its data, its files, and its results so far.

    `config` is the configuration with the chosen exchange, `checkpoint` the one to resume from,
    None for a fresh start, and `began` the time of `time.perf_counter` when setting up began.
    `seeds` are those that are not finished; `stopping` tells whether any rank has received a signal
    to stop.
    """

    @collective
    def __init__(
        self,
        start: RunStart,
        config: Config,
        task: Task[Any],
        trace: TraceRecorder,
        session: dict[str, Any],
        checkpoint: Checkpoint | None,
        began: float,
    ) -> None:
        self.config, self.task, self._trace = config, task, trace
        self._grid, self._directory, self._tracking = start.grid, start.directory, start.tracking
        self._session, self._checkpoint, self._stop = session, checkpoint, start.stop
        self.seeds, self._epochs_run = list(config.train.seeds), 0
        self._results: list[dict[str, Any]] = []
        if checkpoint is not None:
            self._results = checkpoint.state["finished_seeds"]
            self.seeds = self.seeds[self.seeds.index(checkpoint.state["seed"]) :]
        # A signal may have come while the graph was read, and its sender may not wait an epoch.
        self.stopping = sum_over_ranks(self._grid.world, [self._stop.received is not None])[0] > 0
        self._display: EpochDisplay | None = None
        self._heap, self._pace = HeapBound(), CheckpointPace(config.run)
        self._memory = start.memory
        if self._memory is not None:
            self._memory.find_folder()
        self._setup_s = trace.seconds_by_phase()
        self._setup_s["other"] = time.perf_counter() - began - sum(self._setup_s.values())
        self._used = Usage.now()
        if self._grid.rank == 0:
            parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self._setup_s.items())
            detail(f"set up on rank 0: {parts}")

    @contextlib.contextmanager
    def training(self, seed: int) -> Iterator[SeedRun]:
        """Yield the training of a seed, resumed from its checkpoint; add its result at the end."""
        trained = SeedRun(self.task, self.config, seed, self._trace)
        if self._checkpoint is not None:
            with agree(self._grid.world):
                trained.restore(self._checkpoint)
            self._checkpoint = None
        self._tracking.begin(seed)
        title, epochs = f"{self.config.model_name} seed {seed}", self.config.train.epochs
        with reused_memory(), EpochDisplay(title, epochs, active=self._grid.rank == 0) as display:
            self._display = display
            yield trained
        self._tracking.end(finished=trained.finished)
        if trained.finished:
            self._results.append(trained.result())

    @collective
    def end_epoch(self, trained: SeedRun) -> None:
        """Evaluate, write the metrics of the epoch, and write a checkpoint if it is due."""
        # The clock of rank 0 decides for all.
        save = self._grid.rank == 0 and self._pace.is_due(trained.epoch + 1)
        row, self.stopping, save = trained.end_epoch(self._stop.received is not None, save)
        self._epochs_run += 1
        self._heap.end_epoch()
        with agree(self._grid.world):
            self._trace.flush()
            if self._grid.rank == 0:
                self._directory.append_metrics(row)
        assert self._display is not None
        self._display.update(row)
        self._tracking.add(row)
        in_memory = self.config.run.partner_every
        on_disk = self.stopping or trained.finished or save
        if on_disk or (in_memory > 0 and trained.epoch % in_memory == 0):
            with self._trace.span("checkpoint"), self._pace.saving(on_disk=on_disk):
                self._save(trained, on_disk=on_disk)

    @collective
    def _save(self, trained: SeedRun, *, on_disk: bool) -> None:
        objective = self.task.objective
        entries = {"graph": dataclasses.asdict(objective.facts), **objective.state()}
        checkpoint = trained.checkpoint({"finished_seeds": self._results, **entries})
        with agree(self._grid.world):
            if self._grid.rank == 0:
                self._directory.sync_metrics()
        if not on_disk:
            assert self._memory is not None
            self._memory.save(checkpoint)
            return
        with agree(self._grid.world):
            if self._grid.rank == 0:
                write_checkpoint(self._directory.checkpoints, checkpoint)
                seed, keep = checkpoint.state["seed"], self.config.run.keep_checkpoints
                prune_checkpoints(self._directory.checkpoints, seed, keep)

    @collective
    def finish(self) -> tuple[dict[str, Any] | None, int]:
        """Write the results, the summary last; return it on rank 0, and the exit status."""
        trace, stopped = self._trace, len(self._results) < len(self.config.train.seeds)
        ranks = gather_rank_details(self.task, trace, self._setup_s, self._used.until_now())
        if self.config.trace.enabled:
            trace.set_epoch(None)
            _record_clock(self._grid, trace)
        if not stopped:
            self._keep_best()
        if self._memory is not None:
            # The last checkpoint is on disk.
            self._memory.drop()
        summary = self._close(ranks, stopped=stopped)
        with agree(self._grid.world):
            if stopped and self._grid.rank == 0:
                self._check_progress()
        return summary, EXIT_REQUEUE if stopped else 0

    def _check_progress(self) -> None:
        """Raise `InputError` if the last sessions were all too short for an epoch.

        A batch system would start the job again without end.
        """
        latest = self._directory.read_sessions()[-_MOST_SHORT_SESSIONS:]
        short = [session for session in latest if session.get("stopped") and not session["epochs"]]
        if len(short) == _MOST_SHORT_SESSIONS:
            raise InputError(
                f"stopped {len(short)} times in a row before an epoch ended, this time after "
                f"{short[-1]['wall_s']:.0f} s: give the job more time, then start the same command "
                "again"
            )

    @collective
    def _keep_best(self) -> None:
        """Write the model of the best seed, and its predictions."""
        grid, config, trace, directory = self._grid, self.config, self._trace, self._directory
        trace.set_epoch(None)
        metric = config.train.metric or self.task.objective.metric
        seed = best_seed({result["seed"]: result["valid"] for result in self._results}, metric)
        with trace.span("checkpoint"), agree(grid.world):
            if grid.rank == 0:
                write_kept_model(directory.model, directory.checkpoints, config, seed)
        if config.run.save_predictions:
            grid.run_position.begin(seed, config.train.epochs)
            with trace.span("evaluate.predictions"), grid.run_position.unpacked():
                self.task.objective.save_predictions(directory, seed)

    @collective
    def _close(self, ranks: list[dict[str, Any]], *, stopped: bool) -> dict[str, Any] | None:
        """Close the files; write and return the summary of a finished run on rank 0."""
        grid, directory, summary = self._grid, self._directory, None
        with agree(grid.world):
            self._trace.close()
            if grid.rank == 0:
                session = ended(self._session, ranks, self._epochs_run, stopped=stopped)
                directory.end_session(session)
            if grid.rank == 0 and stopped:
                report(
                    f"stopped by a signal after {self._epochs_run} epochs, which are in "
                    f"{directory.checkpoints}: start the same command again to resume"
                )
            elif grid.rank == 0:
                metrics = directory.read_metrics()
                remark_on_growth(metrics)
                remark_on_constants(self._results)
                sessions = directory.read_sessions()
                summary = summarise(self.config, self.task, self._results, metrics, ranks, sessions)
                directory.write_summary(summary)
        return summary


@contextlib.contextmanager
def open_run(start: RunStart, config: Config) -> Iterator[OpenRun]:
    """Read the data, find the checkpoint to resume from, and yield the run; collective."""
    grid, directory, threads = start.grid, start.directory, start.threads
    session, began = describe_session(grid, threads), time.perf_counter()
    with contextlib.ExitStack() as stack:
        enabled = config.trace.enabled
        trace = TraceRecorder.unattached() if enabled else TraceRecorder.open(None, 0, {})
        stack.enter_context(trace)
        with agree(grid.world):
            if config.train.products == "int8":
                check_integers()
        config = _with_exchange(start, config, session)
        stack.enter_context(computing_as(grid, config, trace))
        # Read the graph first: the checkpoint must belong to it.
        context = dataclasses.replace(Context.open(grid, config, trace), takes_sparse=True)
        task = start.pair.load(context)
        checkpoint = find_checkpoint(grid, config, task.objective.facts, directory, start.before)
        with agree(grid.world):
            if grid.rank == 0:
                directory.begin_session(session)
        if grid.rank == 0:
            about = task.objective.about
            report(f"{about.describe(threads)}; rank 0 on {platform.node()}, {describe_binding()}")
            for remark in filter(None, (unread(config), *about.remarks())):
                report(remark)
            detail(f"started as {shlex.join(session['command'])} in {session['directory']}")
            if checkpoint is not None:
                report("resuming seed {seed} after {epoch} epochs".format(**checkpoint.state))
        if enabled:
            exchange, size = config.exchange, {"ranks": grid.size, "replication": grid.replication}
            header = {**size, "exchange": exchange.method, "schedule": exchange.schedule}
            with agree(grid.world):
                file, resumes = trace_file(directory.path, grid.rank), checkpoint is not None
                trace.attach(file, grid.rank, header, append=resumes)
            _record_clock(grid, trace)
        is_first, watts = grid.local_rank == 0, config.run.watts_per_core
        trace.meter = stack.enter_context(open_meter(grid.world.allgather, is_first, watts))
        yield OpenRun(start, config, task, trace, session, checkpoint, began)


@collective
def _with_exchange(start: RunStart, config: Config, session: dict[str, Any]) -> Config:
    """Return the configuration with a chosen exchange, and record the choice in the session."""
    if config.exchange.method != AUTO or config.train.task == "programs":
        return config
    if start.before is not None and start.before.exchange.method != AUTO:
        # A resumed run keeps its choice.
        return with_method(config, start.before.exchange.method)
    choice, chosen = with_chosen_exchange(start.grid, config)
    session["exchange_choice"] = dataclasses.asdict(choice)
    if start.grid.rank == 0:
        report(choice.describe())
    return chosen


@collective
def _record_clock(grid: ProcessGrid, trace: TraceRecorder) -> None:
    with trace.span("wait.pings"):
        offset = clock_offset(grid.world, grid.host_names)
        shift = offset.offset_ns + trace.origin_ns - bcast(grid.world, trace.origin_ns)
    with trace.span("wait.clock", offset_ns=shift, bound_ns=offset.bound_ns):
        pass
