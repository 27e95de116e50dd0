"""Accuracy and F1 from counts, so that they do not depend on the number of ranks."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import multi_label_loss, single_label_loss
from hpcgnn.storage import Split
from hpcgnn.typing import FloatArray

__all__ = ["SPLITS", "Evaluation", "evaluate_multi_label", "evaluate_single_label"]

SPLITS = {"train": Split.TRAIN, "valid": Split.VALID, "test": Split.TEST}
"""The splits by the prefix of their metrics."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one model on all splits.

    Parameters
    ----------
    values
        ``PREFIX_METRIC`` -> value, with prefixes train, valid, test and metrics loss, accuracy,
        micro_f1, macro_f1; a split without nodes is absent.
    metric
        The metric that models are chosen by: accuracy or micro_f1.
    """

    values: dict[str, float]
    metric: str

    def rank_value(self, select: str) -> float | None:
        """Return what ranks models on the validation nodes, larger is better; None without any."""
        if select == "best_loss":
            loss = self.values.get("valid_loss")
            return None if loss is None else -loss
        return self.chosen("valid")

    def chosen(self, prefix: str) -> float | None:
        """Return the choosing metric on a split, or None when it has no nodes."""
        return self.values.get(f"{prefix}_{self.metric}")


def evaluate_single_label(
    grid: ProcessGrid, logits_NC: Tensor, labels_N: Tensor, split_N: Tensor
) -> Evaluation:
    """Return loss and accuracy over all ranks; nodes without a label (-1) do not count.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    logits_NC
        Logits of the local nodes.
    labels_N, split_N
        Classes (int64) and splits (uint8) of the local nodes.
    """
    sums = np.zeros((len(SPLITS), 3))
    predicted_N = logits_NC.argmax(dim=1)
    for row, split in enumerate(SPLITS.values()):
        inside = (split_N == int(split)) & (labels_N >= 0)
        labels = labels_N[inside]
        loss = single_label_loss(logits_NC[inside].double(), labels, 1)
        correct = (predicted_N[inside] == labels).sum()
        sums[row] = [len(labels), float(loss), float(correct)]
    allreduce_sum(grid.layer, sums)
    values = {}
    for prefix, (count, loss_sum, correct_sum) in zip(SPLITS, sums, strict=True):
        if count:
            values[f"{prefix}_loss"] = loss_sum / count
            values[f"{prefix}_accuracy"] = correct_sum / count
    return Evaluation(values, "accuracy")


def evaluate_multi_label(
    grid: ProcessGrid, logits_NC: Tensor, labels_NC: Tensor, split_N: Tensor
) -> Evaluation:
    """Return loss, micro F1 and macro F1 over all ranks.

    Collective.

    A class is predicted where its probability exceeds one half. Macro F1 is the mean over classes,
    where a class without true, predicted or missed nodes has 0.

    Parameters
    ----------
    grid
        The ranks.
    logits_NC
        Logits of the local nodes.
    labels_NC, split_N
        Zeros and ones in the dtype of the logits, and splits (uint8).
    """
    num_classes = logits_NC.shape[1]
    counts = np.zeros((len(SPLITS), 3, num_classes))
    losses = np.zeros((len(SPLITS), 2))
    predicted_NC = logits_NC > 0
    for row, split in enumerate(SPLITS.values()):
        inside = split_N == int(split)
        truth = labels_NC[inside] > 0
        guess = predicted_NC[inside]
        counts[row] = (
            torch.stack([(guess & truth).sum(0), (guess & ~truth).sum(0), (~guess & truth).sum(0)])
            .cpu()
            .numpy()
        )
        loss = multi_label_loss(logits_NC[inside].double(), labels_NC[inside].double(), 1)
        losses[row] = [len(truth), float(loss)]
    allreduce_sum(grid.layer, counts)
    allreduce_sum(grid.layer, losses)
    values = {}
    for prefix, (nodes, loss_sum), split_counts in zip(SPLITS, losses, counts, strict=True):
        if nodes:
            values[f"{prefix}_loss"] = loss_sum / nodes
            values[f"{prefix}_micro_f1"] = float(_f1(split_counts.sum(axis=1)))
            values[f"{prefix}_macro_f1"] = float(_f1(split_counts).mean())
    return Evaluation(values, "micro_f1")


def _f1(counts: FloatArray) -> FloatArray:
    true_positive, false_positive, false_negative = counts
    twice = 2 * true_positive
    total = twice + false_positive + false_negative
    scores: FloatArray = np.divide(twice, total, out=np.zeros_like(total), where=total > 0)
    return scores
