"""Training with one seed: epochs, steps, evaluation, the kept model, checkpoints."""

import math
import time
from itertools import pairwise
from typing import Any

from torch import Tensor

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import (
    CollectiveInputError,
    agree,
    raise_on_all,
    sum_over_ranks,
)
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError, MachineError
from hpcgnn.spmd import collective
from hpcgnn.trace import WAIT_FOR_SAMPLES, TraceRecorder
from hpcgnn.train.early_stopping import EarlyStopping, copy_weights
from hpcgnn.train.evaluation import evaluating
from hpcgnn.train.gradients import (
    check_equal_weights,
    clip_gradients,
    gradient_bytes,
    sum_gradients,
    unequal,
    weights_are_finite,
)
from hpcgnn.train.optimizer import evaluation_is_due, learning_rate, make_optimizer
from hpcgnn.train.process import resident_bytes
from hpcgnn.train.run.checkpoint import (
    Checkpoint,
    check_model_tensors,
    check_optimizer_tensors,
    optimizer_tensors,
    restore_optimizer,
)
from hpcgnn.train.run.row_parameters import gather_rows, take_rows
from hpcgnn.train.tasks import Step, Task


class SeedRun:
    """The state of training with one seed; equal on all ranks, except for rows of nodes.

    The seed determines the initial weights and the dropout masks.
    """

    @collective
    def __init__(self, task: Task[Any], config: Config, seed: int, trace: TraceRecorder) -> None:
        self.task, self._config, self._trace = task, config, trace
        self._objective, self._grid = task.objective, task.objective.grid
        self.seed = seed
        self.epoch = self._steps = 0
        with agree(self._grid.world):
            self.model = self._objective.make_model(seed)
            if not any(parameter.requires_grad for parameter in self.model.parameters()):
                raise InputError(
                    f"model.name = {config.model.name!r}: it has no parameter to train"
                )
        if ":" in config.model.name and (names := unequal(self._grid.world, self._copies())):
            raise CollectiveInputError(
                f"model.name = {config.model.name!r}: {names[0]} begins with other values on other "
                "ranks; in the constructor, draw numbers from torch's generator alone"
            )
        with agree(self._grid.world):
            self._optimizer = make_optimizer(self.model, config.train)
        named, own = list(self.model.named_parameters()), self.model.own_rows()
        self._shared = [parameter for name, parameter in named if name not in own]
        self._own = [parameter for name, parameter in named if name in own]
        self.gradient_bytes = gradient_bytes(self._grid, self._shared)
        self._row: dict[str, Any] = {}
        self._losses: list[float] = []
        self._began = 0.0
        self._moved_before = (0, 0)
        self._waited_before = self._joules_before = 0.0
        self._stopping = EarlyStopping(config.train, self.model)
        self._last_loss = math.nan

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or patience ran out."""
        return self._stopping.ran_out or self.epoch >= self._config.train.epochs

    def begin_epoch(self) -> None:
        """Start the clock and the counters of an epoch, and set its learning rate."""
        self._trace.set_epoch(self.epoch, seed=self.seed)
        self._grid.run_position.begin(self.seed, self.epoch)
        self._moved_before, self._waited_before = self._trace.sent(), self._waited()
        self._joules_before = self._trace.meter.joules()
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
            for parameter in (*self._shared, *self._own):
                parameter.grad = None
            loss = loss_of(self.model)
        with trace.span("dense.backward"), self._grid.run_position.backward():
            loss.backward()  # type: ignore[no-untyped-call]
        with trace.span("reduce.gradients", bytes=self.gradient_bytes):
            sum_gradients(self._grid, self._shared)
        # Once an epoch: asking the system takes as long as many spans.
        memory: dict[str, Any] = {}
        if not self._losses:
            memory["resident_bytes"] = resident_bytes()
        with trace.span("optimiser", **memory), arithmetic().on_weights():
            clip_gradients(self._grid, self._shared, self._own, config.clip_norm)
            self._optimizer.rate = rate
            holds = self._optimizer.step()
        # Broken weights would show in the next epoch's loss only, after their checkpoint.
        holds = holds and weights_are_finite((*self._shared, *self._own))
        self._losses.append(float(loss.detach()) if holds else math.nan)
        trace.set_epoch(self.epoch, len(self._losses), seed=self.seed)

    @collective
    def end_epoch(self, stop: bool, save: bool = False) -> tuple[dict[str, Any], bool, bool]:
        """Evaluate if it is due, and keep the model if it is the best.

        Return the metrics line of the epoch, and whether any rank was asked to `stop` or to `save`.
        Raises `CollectiveInputError` if the loss is no longer finite, and `MachineError` if the
        ranks' weights differ, which is checked before each evaluation.
        """
        row, losses, grid = self._row, self._losses, self._grid
        trained, moved_in_training = time.perf_counter(), self._trace.sent()
        used_j = self._trace.meter.joules() - self._joules_before
        self.epoch += 1
        evaluation = None
        if evaluation_is_due(self._config.train, self.epoch):
            self._compare_weights()
            span, model = self._trace.span("evaluate"), self.model
            with span, grid.run_position.unpacked(), evaluating(model):
                evaluation = self._objective.evaluate(model)
            if metric := self._config.train.metric:
                raise_on_all(grid.world, evaluation.lacks(metric))
        evaluated = time.perf_counter()
        # Rows and bytes until the evaluation, and in it.
        times = (self._moved_before, moved_in_training, self._trace.sent())
        moved = [
            now - before
            for earlier, later in pairwise(times)
            for before, now in zip(earlier, later, strict=True)
        ]
        waited_s = self._waited() - self._waited_before
        sums = sum_over_ranks(grid.world, [math.fsum(losses), stop, save, waited_s, used_j, *moved])
        # Every replica of a block row brings the same share of the loss.
        row["train_loss"] = self._last_loss = sums[0] / (grid.replication * len(losses))
        if evaluation is not None:
            row |= {key: v for key, v in evaluation.values.items() if key != "train_loss"}
        self._check_finite(row)
        if evaluation is not None:
            self._stopping.add(evaluation, self.epoch - 1, self.model)
        judged_s = 0.0 if evaluation is None else evaluated - trained
        row |= {"epoch_s": trained - self._began, "evaluate_s": judged_s}
        rows, size, evaluate_rows, evaluate_bytes = map(int, sums[5:])
        row |= {"rows_sent": rows + evaluate_rows, "bytes_sent": size + evaluate_bytes}
        row |= {"evaluate_rows": evaluate_rows, "evaluate_bytes": evaluate_bytes}
        if sums[3]:
            row["sample_wait_share"] = sums[3] / (grid.size * row["epoch_s"])
        if sums[4]:
            row["epoch_j"] = float(sums[4])
        return row, sums[1] > 0, sums[2] > 0

    @collective
    def checkpoint(self, more: dict[str, Any]) -> Checkpoint:
        """Return a checkpoint to resume from, with `more` in its state; complete on rank 0.

        Raises `MachineError` if the ranks' weights differ.
        """
        self._compare_weights()
        weights, moments = copy_weights(self.model), optimizer_tensors(self.model, self._optimizer)
        model, optimizer, best = (
            gather_rows(self._grid.layer, self.model, tensors)
            for tensors in (weights, moments, self._stopping.weights)
        )
        state = {
            "seed": self.seed,
            "epoch": self.epoch,
            "steps": self._steps,
            "kept": self._stopping.kept,
            "evaluations_without_gain": self._stopping.without_gain,
            "train_loss": self._last_loss,
            **more,
        }
        return Checkpoint(state, model, optimizer, best, dict(self._objective.tensors()))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of this seed.

        Raises `StorageFormatError` if its tensors do not fit this model and optimiser.
        """
        check_model_tensors(checkpoint, self.model)
        check_optimizer_tensors(checkpoint, self.model, self._optimizer)
        state = checkpoint.state
        self.epoch = state["epoch"]
        # Runs without it are older than train.decay_steps, so that none counts steps.
        self._steps = state.get("steps", 0)
        model, optimizer, best = (
            take_rows(self.model, tensors, checkpoint.model)
            for tensors in (checkpoint.model, checkpoint.optimizer, checkpoint.best)
        )
        stopping = self._stopping
        stopping.kept, stopping.weights = state["kept"], best
        stopping.without_gain = state["evaluations_without_gain"]
        self._last_loss = state["train_loss"]
        self.model.load_state_dict(model)
        restore_optimizer(self.model, self._optimizer, optimizer)

    @collective
    def result(self) -> dict[str, Any]:
        """Return the entry of this seed in the summary."""
        kept, metric = self._stopping.kept, self._config.train.metric or self._objective.metric
        model, metrics = self._objective.make_model(self.seed), kept["metrics"]
        model.load_state_dict(self._stopping.weights)
        # Equal whether the epochs before it ran in this process or not.
        self._grid.run_position.begin(self.seed, self.epoch)
        with self._grid.run_position.unpacked(), evaluating(model):
            results = self._objective.evaluate_kept(model)
        return {
            "seed": self.seed,
            "epochs": self.epoch,
            "best_epoch": kept["epoch"],
            "valid": metrics.get(f"valid_{metric}"),
            "test": metrics.get(f"test_{metric}"),
            "final_train_loss": self._last_loss,
            "metrics": metrics,
            "constant": kept.get("constant", ""),
            **results,
        }

    def _check_finite(self, row: dict[str, Any]) -> None:
        """Raise on all ranks, which have equal rows, if a loss is no longer finite."""
        if all(math.isfinite(value) for name, value in row.items() if name.endswith("_loss")):
            return
        raise CollectiveInputError(
            f"training diverges in epoch {row['epoch']} of seed {self.seed}: losses or weights are "
            "not finite; lower train.learning_rate or set train.clip_norm, and start over with "
            "run.resume=never or another run.dir"
        )

    def _compare_weights(self) -> None:
        if self._grid.size == 1:
            return
        world, copies, buffers = self._grid.world, self._copies(), dict(self.model.named_buffers())
        try:
            check_equal_weights(world, copies, f"epoch {self.epoch - 1}")
        except MachineError as error:
            names = unequal(world, copies)
            if not names or not buffers.keys() >= set(names):
                raise
            raise CollectiveInputError(
                f"model.name = {self._config.model.name!r}: the buffer {names[0]} has other values "
                "on other ranks; torch.nn.BatchNorm1d sees the rows of one rank, but norms of "
                "model.norm and hpcgnn.nn.make_norm those of all"
            ) from error

    def _copies(self) -> dict[str, Tensor]:
        """Return the tensors of the model that are equal on all ranks."""
        own = self.model.own_rows()
        return {k: v for k, v in self.model.state_dict().items() if k not in own}

    def _waited(self) -> float:
        return self._trace.total_of(WAIT_FOR_SAMPLES)["seconds"]
