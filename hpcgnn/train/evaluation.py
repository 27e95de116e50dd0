"""Metrics of models, from sums over all ranks, independent of the number of ranks."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import ProcessGrid
from hpcgnn.console import is_error
from hpcgnn.errors import InputError, instead_of
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import Array, FloatArray

SPLITS = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}
"""The splits by the prefix of their metrics."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one model on all splits.

    `values` are keyed by ``PREFIX_METRIC``, with prefixes train, valid and test, and the metrics of
    `evaluate_single_label`, `evaluate_multi_label` or `target_metrics`; a split without nodes is
    absent. Models are chosen by `metric`: accuracy, micro_f1 or r2. `constant` describes the single
    prediction that all test nodes or graphs get although their labels differ; empty if they do not,
    or if that is not checked. With several tasks, METRIC begins with TASK_.
    """

    values: dict[str, float]
    metric: str
    constant: str = ""

    def rank_value(self, select: str, metric: str = "") -> float | None:
        """Return the value that ranks models, larger is better; None without validation nodes.

        See ``train.select`` and ``train.metric``.
        """
        name = "loss" if select == "best_loss" else metric or self.metric
        value = self.values.get(f"valid_{name}")
        return -value if value is not None and is_error(name) else value

    def lacks(self, metric: str) -> InputError | None:
        """Return the fault of choosing models by a metric that is not in `values`, else None."""
        names = [key.removeprefix("valid_") for key in self.values if key.startswith("valid_")]
        if not metric or not names or metric in names:
            return None
        return InputError(f"train.metric = {metric!r}: {instead_of(metric, names)}")


@contextlib.contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Put the modules of a model into torch's evaluation mode inside the block."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    trained = [module for module in modules if module.training]
    for module in trained:
        module.training = False
    try:
        yield
    finally:
        for module in trained:
            module.training = True


def means_by_split(splits: Iterable[str], sums: Array) -> dict[str, float]:
    """Return loss and accuracy of non-empty splits, from (splits, 3) counts and sums."""
    values = {}
    for prefix, (count, loss_sum, correct_sum) in zip(splits, sums, strict=True):
        if count:
            values[f"{prefix}_loss"] = loss_sum / count
            values[f"{prefix}_accuracy"] = correct_sum / count
    return values


@collective
def target_metrics(
    grid: ProcessGrid,
    predicted_NT: Tensor,
    targets_NT: Tensor,
    split_N: Tensor,
    facts: GraphFacts,
) -> dict[str, dict[str, float]]:
    """Return loss, RMSE, MAE and R² by split; a split without known values is absent.

    RMSE and MAE are in the units of the targets. With several targets, each also has its own
    values, ``rmse_NAME`` and so on, and the plain names are means over the targets.

    `predicted_NT` and `targets_NT` are scaled values of the local nodes, NaN where a target is
    missing; `split_N` is uint8. `facts` tell the names and scales of the targets.
    """
    # Columns: known values, their sum and their squares; squared and absolute errors.
    by_split: dict[str, dict[str, float]] = {}
    truth_NT, errors_NT = targets_NT.double(), (predicted_NT - targets_NT).double()
    for name, part in SPLITS.items():
        present = ~truth_NT.isnan()
        inside = (split_N == int(part)) & present.any(1)
        truth, errors = truth_NT[inside], errors_NT[inside]
        columns = (present[inside].double(), truth, truth.square(), errors.square(), errors.abs())
        rows = torch.cat([*columns, errors.square().nanmean(1, keepdim=True)], dim=1)
        *sums, loss, nodes = arithmetic().sums_and_count(rows.nan_to_num(0), grid.sum_over_blocks)
        if nodes:
            by_target = _by_target(np.array(sums).reshape(5, -1), facts)
            by_split[name] = {"loss": float(loss / nodes), **by_target}
    return by_split


@collective
def constant_targets(
    grid: ProcessGrid, predicted_NT: Tensor, targets_NT: Tensor, split_N: Tensor, facts: GraphFacts
) -> list[tuple[str, int, float]]:
    """Return the targets that are predicted as one constant for all test nodes, unlike the truth.

    Each has its name, the number of test nodes, and the constant in the target's units; for the
    arguments, see `target_metrics`.
    """
    inside = split_N == int(Split.TEST)
    truth, predicted = targets_NT[inside].double(), predicted_NT[inside].double()
    present = ~truth.isnan()
    columns = [present.double(), predicted, predicted.square(), truth, truth.square()]
    rows = torch.cat([(column * present).nan_to_num(0) for column in columns], dim=1)
    sums = arithmetic().sums_and_count(rows, grid.sum_over_blocks)[:-1]
    count, total, squares, true_total, true_squares = sums.reshape(len(columns), -1)
    size = np.maximum(count, 1)
    mean, spread = total / size, squares / size - (total / size) ** 2
    true_spread = true_squares / size - (true_total / size) ** 2
    # Scaled numbers have a deviation of about 1; float32 rounding is far below 1e-5.
    is_constant = (count > 1) & (spread <= 1e-10 * (1 + mean**2)) & (true_spread > 1e-8)
    numbers = mean * np.array(facts.target_scales) + np.array(facts.target_means)
    return [
        (facts.targets[index], int(count[index]), float(numbers[index]))
        for index in np.flatnonzero(is_constant).tolist()
    ]


def _by_target(sums: FloatArray, facts: GraphFacts) -> dict[str, float]:
    """Return the metrics of each target that has known values, and their means."""
    tested = sums[0] > 0
    count, total, squares, squared, absolute = sums[:, tested]
    scales, names = np.array(facts.target_scales)[tested], facts.targets
    spread = squares - total**2 / count
    # Only rounding errors are left of a constant target: its R² is 1 if predicted exactly, else 0.
    spread = np.where(spread > 1e-12 * squares, spread, squared)
    metrics = {
        "rmse": scales * np.sqrt(squared / count),
        "mae": scales * absolute / count,
        "r2": 1 - squared / np.where(spread > 0, spread, 1),
    }
    means = {key: float(values.mean()) for key, values in metrics.items()}
    if len(names) > 1:
        chosen = [name for name, known in zip(names, tested.tolist(), strict=True) if known]
        for key, values in metrics.items():
            for name, value in zip(chosen, values.tolist(), strict=True):
                means[f"{key}_{name}"] = value
    return means
