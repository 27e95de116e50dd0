"""How well numbers of nodes are predicted, from sums over all ranks."""

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray


@collective
def target_metrics(
    grid: ProcessGrid,
    predicted_NT: Tensor,
    targets_NT: Tensor,
    split_N: Tensor,
    names: tuple[str, ...],
    scales: tuple[float, ...],
) -> dict[str, dict[str, float]]:
    """Return loss, RMSE, MAE and R² by set of the split; a set without known values is absent.

    RMSE and MAE are in the units of the targets. Of several targets each has its own, ``rmse_NAME``
    and so on, and the means of these over the targets stand under the plain names.

    Parameters
    ----------
    predicted_NT, targets_NT
        Of the local nodes, scaled; NaN where a target is missing.
    split_N
        (N,) uint8.
    names, scales
        Of the targets: names, and what one unit of the scaled numbers is.
    """
    parts = (Split.TRAIN, Split.VALID, Split.TEST)
    # Known values, their sum and their squares; squared and absolute errors.
    sums = np.zeros((len(parts), 5, len(names)))
    losses = np.zeros((len(parts), 2))
    truth_NT, errors_NT = targets_NT.double(), (predicted_NT - targets_NT).double()
    for index, part in enumerate(parts):
        inside = split_N == int(part)
        truth, errors = truth_NT[inside], errors_NT[inside]
        present = ~truth.isnan()
        columns = (present.double(), truth, truth.square(), errors.square(), errors.abs())
        sums[index] = torch.stack([column.nan_to_num(0).sum(0) for column in columns]).cpu().numpy()
        per_node = errors[present.any(1)].square().nanmean(1)
        losses[index] = len(per_node), float(per_node.sum())
    allreduce_sum(grid.layer, sums)
    allreduce_sum(grid.layer, losses)
    by_split: dict[str, dict[str, float]] = {}
    for part, values, (nodes, loss) in zip(parts, sums, losses, strict=True):
        if nodes:
            mine = _by_target(values, names, np.array(scales))
            by_split[part.name.lower()] = {"loss": float(loss / nodes), **mine}
    return by_split


@collective
def constant_targets(
    grid: ProcessGrid, predicted_NT: Tensor, targets_NT: Tensor, split_N: Tensor, facts: GraphFacts
) -> list[tuple[str, int, float]]:
    """Return the targets of which all test nodes are given one number, though theirs differ.

    Parameters
    ----------
    predicted_NT, targets_NT, split_N
        As of `target_metrics`.
    facts
        Names, means and scales of the targets.

    Returns
    -------
    alike
        Name, number of nodes that are tested, and what they are given in the target's units.
    """
    inside = split_N == int(Split.TEST)
    truth, predicted = targets_NT[inside].double(), predicted_NT[inside].double()
    present = ~truth.isnan()
    columns = [present.double(), predicted, predicted.square(), truth, truth.square()]
    sums = (
        torch.stack([(column * present).nan_to_num(0).sum(0) for column in columns]).cpu().numpy()
    )
    allreduce_sum(grid.layer, sums)
    count, total, squares, true_total, true_squares = sums
    size = np.maximum(count, 1)
    mean, spread = total / size, squares / size - (total / size) ** 2
    true_spread = true_squares / size - (true_total / size) ** 2
    # Scaled numbers: their deviation is about 1, and rounding of float32 is far below 1e-5.
    alike = (count > 1) & (spread <= 1e-10 * (1 + mean**2)) & (true_spread > 1e-8)
    numbers = mean * np.array(facts.target_scales) + np.array(facts.target_means)
    return [
        (facts.targets[index], int(count[index]), float(numbers[index]))
        for index in np.flatnonzero(alike).tolist()
    ]


def _by_target(sums: FloatArray, names: tuple[str, ...], scales: FloatArray) -> dict[str, float]:
    """Return the metrics of each target that has known values, and their means."""
    tested = sums[0] > 0
    count, total, squares, squared, absolute = sums[:, tested]
    scales = scales[tested]
    spread = squares - total**2 / count
    # Of values that are all equal nothing is explained, but by hitting them.
    explained = 1 - squared / np.where(spread > 0, spread, np.where(squared > 0, squared, 1))
    metrics = {
        "rmse": scales * np.sqrt(squared / count),
        "mae": scales * absolute / count,
        "r2": np.where((spread <= 0) & (squared == 0), 1.0, explained),
    }
    means = {key: float(values.mean()) for key, values in metrics.items()}
    if len(names) > 1:
        chosen = [name for name, known in zip(names, tested.tolist(), strict=True) if known]
        for key, values in metrics.items():
            for name, value in zip(chosen, values.tolist(), strict=True):
                means[f"{key}_{name}"] = value
    return means
