"""How good a model is: accuracy and F1 from counts, so that the number of ranks does not matter."""

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import MeanLoss
from hpcgnn.spmd import collective
from hpcgnn.train.metrics import SPLITS, Evaluation
from hpcgnn.typing import Array


@collective
def evaluate_single_label(
    grid: ProcessGrid,
    logits_NC: Tensor,
    labels_N: Tensor,
    split_N: Tensor,
    names: Sequence[str] = (),
) -> Evaluation:
    """Return loss and accuracy over all ranks; nodes without a label (-1) do not count.

    Parameters
    ----------
    labels_N, split_N
        Classes (int64) and splits (uint8) of the local nodes.
    names
        Of the classes; empty: their numbers.
    """
    sums = np.zeros((len(SPLITS), 3 + logits_NC.shape[1]))
    predicted_N = logits_NC.argmax(dim=1)
    for row, split in enumerate(SPLITS.values()):
        inside = (split_N == int(split)) & (labels_N >= 0)
        labels = labels_N[inside]
        loss = MeanLoss(1).single_label(logits_NC[inside].double(), labels)
        correct = (predicted_N[inside] == labels).sum()
        sums[row, :3] = [len(labels), float(loss), float(correct)]
        given = predicted_N[inside].bincount(minlength=logits_NC.shape[1])
        sums[row, 3:] = given.cpu().numpy()
    allreduce_sum(grid.layer, sums)
    return Evaluation(means_by_split(SPLITS, sums[:, :3]), "accuracy", _one_class(sums[-1], names))


def _one_class(sums: Array, names: Sequence[str]) -> str:
    """Return that all nodes are given one class which not all have, from a row of the sums."""
    # The loss between them is not finite where training diverges.
    count, correct = int(sums[0]), int(sums[2])
    given = np.flatnonzero(sums[3:])
    if len(given) != 1 or correct == count:
        return ""
    name = names[given[0]] if names else str(given[0])
    return f"all {count} that are tested are given class {name}, which {correct} of them have"


def means_by_split(splits: Iterable[str], sums: Array) -> dict[str, float]:
    """Return loss and accuracy of splits that are not empty, from (splits, 3) counts and sums."""
    values = {}
    for prefix, (count, loss_sum, correct_sum) in zip(splits, sums, strict=True):
        if count:
            values[f"{prefix}_loss"] = loss_sum / count
            values[f"{prefix}_accuracy"] = correct_sum / count
    return values
