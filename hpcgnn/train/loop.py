"""A training run from its first line to its last: seeds, epochs, steps, evaluation, checkpoints."""

import contextlib
import dataclasses
import math
import platform
import shlex
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import (
    CollectiveInputError,
    Communicator,
    ProcessGrid,
    agree,
    bcast,
    clock_offset,
    raise_on_all,
    sum_over_ranks,
)
from hpcgnn.config.config import Config
from hpcgnn.console import report
from hpcgnn.errors import InputError
from hpcgnn.graph.choice import choose_exchange
from hpcgnn.graph.context import Context, computing_as
from hpcgnn.graph.targets import fingerprint_of
from hpcgnn.kernels import reused_memory
from hpcgnn.log import detail, logged_to
from hpcgnn.spmd import collective
from hpcgnn.spmm import AUTO
from hpcgnn.trace import TraceRecorder, trace_file
from hpcgnn.train.equal_weights import check_equal_weights
from hpcgnn.train.features import check_run
from hpcgnn.train.gradients import clip_gradients, gradient_bytes, sum_gradients
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.objectives.objective import Objective
from hpcgnn.train.optimizer import evaluation_is_due, learning_rate, make_optimizer, take_step
from hpcgnn.train.process import (
    EXIT_REQUEUE,
    StopRequest,
    describe_binding,
    prepare_process,
    resident_bytes,
)
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    check_model_tensors,
    check_optimizer_tensors,
    optimizer_tensors,
    prune_checkpoints,
    restore_optimizer,
    write_checkpoint,
)
from hpcgnn.train.run.directory import RunDirectory
from hpcgnn.train.run.kept_model import write_kept_model
from hpcgnn.train.run.report import EpochDisplay, remark_on_constants, remark_on_growth
from hpcgnn.train.run.resume import find_finished, open_run
from hpcgnn.train.run.row_parameters import gather_rows, take_rows
from hpcgnn.train.run.saved_model import best_seed
from hpcgnn.train.run.session import describe_session, ended
from hpcgnn.train.run.summary import Outcome, gather_rank_details, summarise
from hpcgnn.train.run.track import Tracking, check_trackers
from hpcgnn.train.task import Step, Task
from hpcgnn.train.tasks import find_pair, load_task


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

        session, began = describe_session(grid, threads), time.perf_counter()
        # Read the graph; then the checkpoint, which must be of this graph.
        trace = stack.enter_context(_recording(config))
        stack.enter_context(computing_as(grid, config, trace))
        config = _with_exchange(grid, config, directory, session)
        task = load_task(Context.open(grid, config, trace))
        objective = task.objective
        checkpoint = open_run(grid, config, objective.facts, directory)
        with agree(grid.world):
            if grid.rank == 0:
                directory.begin_session(session)
        if grid.rank == 0:
            about = objective.about
            report(f"{about.describe(threads)}; rank 0 on {platform.node()}, {describe_binding()}")
            for remark in about.remarks():
                report(remark)
            detail(f"started as {shlex.join(session['command'])} in {session['directory']}")
            if checkpoint is not None:
                report("going on with seed {seed} after {epoch} epochs".format(**checkpoint.state))
        if config.trace.enabled:
            _attach_trace(grid, config, directory, trace, resumes=checkpoint is not None)
            _record_clock(grid, trace)

        seeds, results, epochs_run = list(config.train.seeds), [], 0
        if checkpoint is not None:
            results = checkpoint.state["finished_seeds"]
            seeds = seeds[seeds.index(checkpoint.state["seed"]) :]
        # A signal that came while the graph was read: its sender may not wait for an epoch.
        stopping = sum_over_ranks(grid.world, [stop.received is not None])[0] > 0
        setup_s = trace.seconds_by_phase()
        setup_s["other"] = time.perf_counter() - began - sum(setup_s.values())
        tracking = Tracking(config, directory, active=grid.rank == 0)
        if grid.rank == 0:
            parts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in setup_s.items())
            detail(f"set up on rank 0: {parts}")
        for seed in seeds:
            # Asked between two seeds too: the next one's first epoch may be longer than the time
            # that is left.
            if stopping:
                break
            run = SeedRun(task, config, seed, trace)
            if checkpoint is not None:
                with agree(grid.world):
                    run.restore(checkpoint)
                checkpoint = None
            tracking.begin(seed)
            title = f"{config.model_name} seed {seed}"
            display = EpochDisplay(title, config.train.epochs, active=grid.rank == 0)
            with reused_memory(), display:
                while not (run.finished or stopping):
                    run.begin_epoch()
                    for step in task.steps(seed, run.epoch):
                        run.step(step)
                    row, stopping = run.end_epoch(stop.received is not None)
                    epochs_run += 1
                    with agree(grid.world):
                        trace.flush()
                        if grid.rank == 0:
                            directory.append_metrics(row)
                    display.update(row)
                    tracking.add(row)
                    every = config.run.checkpoint_every
                    due = every > 0 and run.epoch % every == 0
                    if due or stopping or run.finished:
                        with trace.span("checkpoint"):
                            _save(
                                run.checkpoint(_progress(objective, results)),
                                grid,
                                config,
                                directory,
                            )
            tracking.end(finished=run.finished)
            if run.finished:
                results.append(run.result())

        outcome = Outcome(results, len(results) < len(config.train.seeds), epochs_run)
        ranks = gather_rank_details(task, trace, setup_s)
        if config.trace.enabled:
            trace.set_epoch(None)
            _record_clock(grid, trace)
        summary = _finish(task, config, trace, directory, outcome, ranks, session)
    return summary, EXIT_REQUEUE if outcome.stopped else 0


@collective
def _with_exchange(
    grid: ProcessGrid, config: Config, directory: RunDirectory, session: dict[str, Any]
) -> Config:
    """Return a configuration whose exchange is chosen, and say of it in the session."""
    if config.exchange.method != AUTO or config.train.task == "programs":
        return config
    method = ""
    with agree(grid.world):
        if grid.rank == 0 and config.run.resume != "never":
            method = directory.exchange_so_far(config) or ""
    method = bcast(grid.world, method)
    if not method:
        choice = choose_exchange(grid, config)
        method = choice.method
        session["exchange_choice"] = choice.as_json()
        if grid.rank == 0:
            report(choice.describe())
    return dataclasses.replace(config, exchange=dataclasses.replace(config.exchange, method=method))


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


@contextlib.contextmanager
def _recording(config: Config) -> Iterator[TraceRecorder]:
    """Give the recorder; close it after a fault, else leave that to `_finish`."""
    enabled = config.trace.enabled
    trace = TraceRecorder.unattached() if enabled else TraceRecorder.open(None, 0, {})
    try:
        yield trace
    except BaseException:
        # One fault at a time: a disk that took no checkpoint will not take the trace either.
        with contextlib.suppress(InputError):
            trace.close()
        raise


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


@collective
def _record_clock(grid: ProcessGrid, trace: TraceRecorder) -> None:
    """Record what to add to times of this rank's trace to have those of rank 0's."""
    with trace.span("wait.pings"):
        found = clock_offset(grid.world)
        shift = found.offset_ns + trace.origin_ns - bcast(grid.world, trace.origin_ns)
    with trace.span("wait.clock", offset_ns=shift, bound_ns=found.bound_ns):
        pass


def _progress(objective: Objective, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a checkpoint says of the run beside its seed."""
    return {"finished_seeds": results, "graph": dataclasses.asdict(objective.facts)}


def _save(
    checkpoint: Checkpoint, grid: ProcessGrid, config: Config, directory: RunDirectory
) -> None:
    with agree(grid.world):
        if grid.rank == 0:
            directory.sync_metrics()
            write_checkpoint(directory.checkpoints, checkpoint)
            seed, keep = checkpoint.state["seed"], config.run.keep_checkpoints
            prune_checkpoints(directory.checkpoints, seed, keep)


def _finish(
    task: Task[Any],
    config: Config,
    trace: TraceRecorder,
    directory: RunDirectory,
    outcome: Outcome,
    ranks: list[dict[str, Any]],
    session: dict[str, Any],
) -> dict[str, Any] | None:
    """Write what an ended run leaves, the summary last; return it on rank 0."""
    grid, summary = task.objective.grid, None
    if not outcome.stopped:
        trace.set_epoch(None)
        seed = best_seed({each["seed"]: each["valid"] for each in outcome.results})
        with trace.span("checkpoint"), agree(grid.world):
            if grid.rank == 0:
                write_kept_model(directory, config, seed)
        if config.run.save_predictions:
            grid.moment.begin(seed, config.train.epochs)
            with trace.span("evaluate.predictions"):
                task.objective.save_predictions(directory, seed)
    with agree(grid.world):
        trace.close()
        if grid.rank == 0:
            epochs, stopped = outcome.epochs_run, outcome.stopped
            directory.end_session(ended(session, ranks, epochs, stopped=stopped))
        if grid.rank == 0 and outcome.stopped:
            report(
                f"stopped by a signal after {outcome.epochs_run} epochs, which are in "
                f"{directory.checkpoints}: start the same command again to go on"
            )
        elif grid.rank == 0:
            metrics = directory.read_metrics()
            remark_on_growth(metrics)
            remark_on_constants(outcome.results)
            summary = summarise(config, task, outcome, metrics, ranks, directory.read_sessions())
            directory.write_summary(summary)
    return summary


class SeedRun:
    """The state of training with one seed; equal on all ranks, but for rows of nodes.

    Parameters
    ----------
    seed
        Of the initial weights and the dropout masks.
    """

    @collective
    def __init__(self, task: Task[Any], config: Config, seed: int, trace: TraceRecorder) -> None:
        self.task, self._config, self._trace = task, config, trace
        self._objective, self._grid = task.objective, task.objective.grid
        self.seed = seed
        self.epoch = self._steps = 0
        with agree(self._grid.world):
            self.model = self._objective.make_model(seed)
        self._optimizer = make_optimizer(self.model, config.train)
        named, own = list(self.model.named_parameters()), self.model.own_rows()
        self._shared = [parameter for name, parameter in named if name not in own]
        self._own = [parameter for name, parameter in named if name in own]
        self.gradient_bytes = gradient_bytes(self._grid, self._shared)
        self._row: dict[str, Any] = {}
        self._losses: list[float] = []
        self._began = 0.0
        self._moved_before = (0.0, 0.0)
        self._kept: dict[str, Any] = {"epoch": None, "value": None, "metrics": {}}
        self._kept_model = self._weights()
        self._evaluations_without_gain = 0
        self._last_loss = math.nan

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience ran out."""
        patience = self._config.train.patience
        impatient = patience > 0 and self._evaluations_without_gain >= patience
        return impatient or self.epoch >= self._config.train.epochs

    def begin_epoch(self) -> None:
        """Take the time and the rate of the epoch whose steps follow."""
        self._trace.set_epoch(self.epoch, seed=self.seed)
        self._grid.moment.begin(self.seed, self.epoch)
        self._moved_before = self._moved()
        self._began = time.perf_counter()
        rate = learning_rate(self._config.train, self.epoch, self._steps)
        self._row = {"seed": self.seed, "epoch": self.epoch, "learning_rate": rate}
        self._losses = []

    @collective
    def step(self, loss_of: Step) -> None:
        """Update the model by the gradient of the loss of one step."""
        config, trace = self._config.train, self._trace
        rate = learning_rate(config, self.epoch, self._steps)
        self._steps += 1
        with trace.span("dense.forward"):
            self._optimizer.zero_grad(set_to_none=True)
            loss = loss_of(self.model)
        with trace.span("dense.backward"), self._grid.moment.backward():
            loss.backward()  # type: ignore[no-untyped-call]
        with trace.span("reduce.gradients", bytes=self.gradient_bytes):
            sum_gradients(self._grid, self._shared)
        # Once an epoch: asking the system takes as long as many spans.
        memory: dict[str, Any] = {}
        if not self._losses:
            memory["resident_bytes"] = resident_bytes()
        with trace.span("optimiser", **memory), arithmetic().on_weights():
            clip_gradients(self._grid, self._shared, self._own, config.clip_norm)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            holds = take_step(self._optimizer)
        # Broken weights would show in the next epoch's loss only, after their checkpoint.
        weights = torch.cat([each.detach().reshape(-1) for each in self.model.parameters()])
        holds = holds and bool(weights.isfinite().all())
        self._losses.append(float(loss.detach()) if holds else math.nan)
        trace.set_epoch(self.epoch, len(self._losses), seed=self.seed)

    @collective
    def end_epoch(self, stop: bool) -> tuple[dict[str, Any], bool]:
        """Evaluate when it is due, and keep the model when it is the best.

        Parameters
        ----------
        stop
            Whether this rank was asked to stop.

        Returns
        -------
        row, stop
            The metrics line of the epoch, and whether any rank was asked to stop.

        Raises
        ------
        CollectiveInputError
            When the loss is no longer finite.
        MachineError
            When a rank holds other weights than the others; seen where an evaluation is due.
        """
        row, losses, grid = self._row, self._losses, self._grid
        trained = time.perf_counter()
        self.epoch += 1
        evaluation = None
        if evaluation_is_due(self._config.train, self.epoch):
            self._compare_weights()
            with self._trace.span("evaluate"):
                evaluation = self._objective.evaluate(self.model)
        evaluated = time.perf_counter()
        moved = [
            now - before for now, before in zip(self._moved(), self._moved_before, strict=True)
        ]
        sums = sum_over_ranks(grid.world, [math.fsum(losses), float(stop), *moved])
        # Every replica of a block row brings the same share of the loss.
        row["train_loss"] = self._last_loss = sums[0] / (grid.replication * len(losses))
        if evaluation is not None:
            row |= {key: v for key, v in evaluation.values.items() if key != "train_loss"}
        self._check_finite(row)
        if evaluation is not None:
            self._keep_best(evaluation)
        row |= {"epoch_s": trained - self._began, "evaluate_s": evaluated - trained}
        row |= {"rows_sent": int(sums[2]), "bytes_sent": int(sums[3])}
        return row, sums[1] > 0

    @collective
    def checkpoint(self, more: dict[str, Any]) -> Checkpoint:
        """Return all that is needed to go on, with `more` in its state; whole on rank 0.

        Raises
        ------
        MachineError
            When a rank holds other weights than the others.
        """
        self._compare_weights()
        layer = self._grid.layer
        model, optimizer, best = (
            gather_rows(layer, self.model, tensors)
            for tensors in (
                self._weights(),
                optimizer_tensors(self.model, self._optimizer),
                self._kept_model,
            )
        )
        state = {
            "seed": self.seed,
            "epoch": self.epoch,
            "steps": self._steps,
            "kept": self._kept,
            "evaluations_without_gain": self._evaluations_without_gain,
            "train_loss": self._last_loss,
            **more,
        }
        return Checkpoint(
            state,
            model=model,
            optimizer=optimizer,
            best=best,
            features=dict(self._objective.tensors()),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this seed.

        Raises
        ------
        StorageFormatError
            When its tensors are not those of this model and optimiser.
        """
        check_model_tensors(checkpoint, self.model)
        check_optimizer_tensors(checkpoint, self.model, self._optimizer)
        state = checkpoint.state
        self.epoch = state["epoch"]
        # Runs without it are older than train.decay_steps, so that none counts steps.
        self._steps = state.get("steps", 0)
        self._kept = state["kept"]
        model, optimizer, best = (
            take_rows(self.model, tensors, checkpoint.model)
            for tensors in (checkpoint.model, checkpoint.optimizer, checkpoint.best)
        )
        self._kept_model = best
        self._evaluations_without_gain = state["evaluations_without_gain"]
        self._last_loss = state["train_loss"]
        self.model.load_state_dict(model)
        restore_optimizer(self.model, self._optimizer, optimizer)

    @collective
    def result(self) -> dict[str, Any]:
        """Return the line of this seed in the summary."""
        metrics = self._kept["metrics"]
        metric = self._objective.facts.metric
        model = self._objective.make_model(self.seed)
        model.load_state_dict(self._kept_model)
        # Equal whether the epochs before it ran in this process or not.
        self._grid.moment.begin(self.seed, self.epoch)
        return {
            "seed": self.seed,
            "epochs": self.epoch,
            "best_epoch": self._kept["epoch"],
            "valid": metrics.get(f"valid_{metric}"),
            "test": metrics.get(f"test_{metric}"),
            "final_train_loss": self._last_loss,
            "metrics": metrics,
            "constant": self._kept.get("constant", ""),
            **self._objective.evaluate_kept(model),
        }

    def _check_finite(self, row: dict[str, Any]) -> None:
        """Raise on all ranks, which hold equal rows, where a loss is no longer finite."""
        if all(math.isfinite(value) for name, value in row.items() if name.endswith("_loss")):
            return
        raise CollectiveInputError(
            f"training diverges in epoch {row['epoch']} of seed {self.seed}: losses or weights are "
            "not finite; lower train.learning_rate or set train.clip_norm, and start over with "
            "run.resume=never or another run.dir"
        )

    def _compare_weights(self) -> None:
        own = self.model.own_rows()
        shared = {k: v for k, v in self.model.state_dict().items() if k not in own}
        check_equal_weights(self._grid.world, shared, f"epoch {self.epoch - 1}")

    def _keep_best(self, evaluation: Evaluation) -> None:
        value = evaluation.rank_value(self._config.train.select)
        best = self._kept["value"]
        # Without validation nodes there is nothing to choose by: the last model is kept.
        keeps_last = self._config.train.select == "last" or value is None
        better = value is not None and (best is None or value > best)
        self._evaluations_without_gain = 0 if better else self._evaluations_without_gain + 1
        if better or keeps_last:
            top = value if better else best
            metrics = dict(evaluation.values)
            self._kept = {"epoch": self.epoch - 1, "value": top, "metrics": metrics}
            self._kept["constant"] = evaluation.constant
            self._kept_model = self._weights()

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _moved(self) -> tuple[float, float]:
        moved = self._trace.traffic().values()
        return sum(each["rows"] for each in moved), sum(each["bytes"] for each in moved)
