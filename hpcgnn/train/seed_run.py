"""One seed: a model, its optimiser, and its epochs."""

import math
import time
from typing import Any

import torch

from hpcgnn.comm import CollectiveInputError, sum_over_ranks
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.checkpoint import Checkpoint, optimizer_tensors, restore_optimizer
from hpcgnn.train.config import Config
from hpcgnn.train.metrics import Evaluation
from hpcgnn.train.optimise import (
    clip_gradients,
    evaluation_is_due,
    learning_rate,
    make_optimizer,
    sum_gradients,
)
from hpcgnn.train.own_rows import gather_rows, take_rows
from hpcgnn.train.task import Step, Task

__all__ = ["SeedRun"]


class SeedRun:
    """The state of training with one seed; equal on all ranks, but for rows of nodes.

    Not collective.

    Parameters
    ----------
    task
        What is trained.
    config
        The configuration.
    seed
        Of the initial weights and the dropout masks.
    trace
        Where times are recorded.
    """

    def __init__(self, task: Task, config: Config, seed: int, trace: TraceRecorder) -> None:
        self._task, self._config, self._trace = task, config, trace
        self.seed = seed
        self.epoch = self._steps = 0
        self.model = task.make_model(seed)
        self._optimizer = make_optimizer(self.model, config.train)
        named, own = list(self.model.named_parameters()), self.model.own_rows()
        self._shared = [parameter for name, parameter in named if name not in own]
        self._own = [parameter for name, parameter in named if name in own]
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

    def run_epoch(self, stop: bool) -> tuple[dict[str, Any], bool]:
        """Train one epoch, and evaluate when it is due.

        Collective.

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
        """
        epoch, config = self.epoch, self._config.train
        self._trace.set_epoch(epoch, seed=self.seed)
        moved_before = self._moved()
        began = time.perf_counter()
        rate = learning_rate(config, epoch, self._steps)
        losses = [self._step(step) for step in self._task.steps(self.seed, epoch)]
        trained = time.perf_counter()
        row: dict[str, Any] = {"seed": self.seed, "epoch": epoch, "learning_rate": rate}
        self.epoch += 1
        evaluation = None
        if evaluation_is_due(config, self.epoch):
            with self._trace.span("evaluate"):
                evaluation = self._task.evaluate(self.model)
        evaluated = time.perf_counter()
        moved = [now - before for now, before in zip(self._moved(), moved_before, strict=True)]
        grid = self._task.grid
        sums = sum_over_ranks(grid.world, [math.fsum(losses), float(stop), *moved])
        # Every replica of a block row brings the same share of the loss.
        row["train_loss"] = self._last_loss = sums[0] / (grid.replication * len(losses))
        if evaluation is not None:
            row |= {key: v for key, v in evaluation.values.items() if key != "train_loss"}
        self._check_finite(row)
        if evaluation is not None:
            self._judge(evaluation)
        row |= {"epoch_s": trained - began, "evaluate_s": evaluated - trained}
        row |= {"rows_sent": int(sums[2]), "bytes_sent": int(sums[3])}
        return row, sums[1] > 0

    def checkpoint(self, more: dict[str, Any]) -> Checkpoint:
        """Return all that is needed to go on, with `more` in its state; whole on rank 0.

        Collective.
        """
        layer = self._task.grid.layer
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
            features=dict(self._task.tensors()),
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of this seed.

        Not collective.
        """
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

    def result(self) -> dict[str, Any]:
        """Return the line of this seed in the summary.

        Collective.
        """
        metrics = self._kept["metrics"]
        metric = self._task.facts.metric
        model = self._task.make_model(self.seed)
        model.load_state_dict(self._kept_model)
        return {
            "seed": self.seed,
            "epochs": self.epoch,
            "best_epoch": self._kept["epoch"],
            "valid": metrics.get(f"valid_{metric}"),
            "test": metrics.get(f"test_{metric}"),
            "final_train_loss": self._last_loss,
            "metrics": metrics,
            **self._task.evaluate_kept(model),
        }

    def _step(self, step: Step) -> float:
        config, trace = self._config.train, self._trace
        rate = learning_rate(config, self.epoch, self._steps)
        self._steps += 1
        with trace.span("dense.forward"):
            self._optimizer.zero_grad(set_to_none=True)
            loss = step(self.model)
        with trace.span("dense.backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with trace.span("reduce.gradients"):
            sum_gradients(self._task.grid, self._shared)
        with trace.span("optimiser"):
            clip_gradients(self._task.grid, self._shared, self._own, config.clip_norm)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        # Broken weights would show in the next epoch's loss only, after their checkpoint.
        weights = torch.cat([each.detach().reshape(-1) for each in self.model.parameters()])
        return float(loss.detach()) if weights.isfinite().all() else math.nan

    def _check_finite(self, row: dict[str, Any]) -> None:
        """Raise on all ranks, which hold equal rows, where a loss is no longer finite."""
        if all(math.isfinite(value) for name, value in row.items() if name.endswith("_loss")):
            return
        raise CollectiveInputError(
            f"training diverges in epoch {row['epoch']} of seed {self.seed}: losses or weights are "
            "not finite; lower train.learning_rate or set train.clip_norm, and start over with "
            "run.resume=never or another run.dir"
        )

    def _judge(self, evaluation: Evaluation) -> None:
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
            self._kept_model = self._weights()

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _moved(self) -> tuple[float, float]:
        exchanges = [
            total for name, total in self._trace.totals().items() if name.startswith("exchange")
        ]
        return sum(each["rows"] for each in exchanges), sum(each["bytes"] for each in exchanges)
