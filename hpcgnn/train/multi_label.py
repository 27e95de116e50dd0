"""Multi-label metrics: F1, average precision, area under the ROC curve."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import MeanLoss
from hpcgnn.spmd import collective
from hpcgnn.train.curves import Counts, Piece, areas, curves_by_split
from hpcgnn.train.evaluation import SPLITS, Evaluation
from hpcgnn.typing import FloatArray

_PIECE_ROWS = 1 << 15


@dataclass(frozen=True)
class LabelRule:
    """The rule by which labels are predicted: a number of them, or those above a probability.

    If `top` is not 0, it is the number of most probable labels to predict, the first ones on ties.
    Otherwise, labels with a probability above `threshold` are predicted.
    """

    threshold: float = 0.5
    top: int = 0

    @classmethod
    def of_metrics(cls, metrics: Mapping[str, Any]) -> "LabelRule":
        """Return the rule that an evaluation has found; a threshold of 0.5 if it has none."""
        return cls(metrics.get("valid_threshold", 0.5), int(metrics.get("valid_top", 0)))

    def predicted(self, logits_NC: Tensor) -> Tensor:
        """Return the mask (N, C) of predicted labels."""
        if not self.top:
            return logits_NC.double() > float(np.log(self.threshold) - np.log1p(-self.threshold))
        first = ranked(logits_NC)[:, : self.top]
        return torch.zeros_like(logits_NC, dtype=torch.bool).scatter(1, first, True)


HALF = LabelRule()
"""Predicts labels with a probability above 0.5."""


def ranked(logits_NC: Tensor) -> Tensor:
    """Return the labels (N, C) of each node, most probable first, and by number on ties."""
    return logits_NC.argsort(dim=1, descending=True, stable=True)


@collective
def evaluate_multi_label(
    grid: ProcessGrid,
    logits_NC: Tensor,
    labels_NC: Tensor,
    split_N: Tensor,
    *,
    tuned: str = "half",
) -> Evaluation:
    """Return loss, micro_f1, macro_f1, average_precision and auc over all ranks.

    A label is predicted if its probability exceeds 0.5. With `tuned` "valid", the common threshold
    `valid_threshold` of all labels maximises micro F1 on the validation nodes; with "top", the
    number `valid_top` of labels to predict for each node does. For both, `half_f1` is micro F1 at
    0.5. Macro F1 is the mean over classes, and 0 for a class without true, predicted or missed
    nodes. Average precision and the area under the ROC curve are over all pairs of node and label,
    where there are pairs with and without it.

    `labels_NC` are zeros and ones in the dtype of the logits, `split_N` uint8.
    """

    def pieces() -> Iterator[Piece]:
        for row, split in enumerate(SPLITS.values()):
            inside = torch.nonzero(split_N == int(split))[:, 0]
            # Exact losses are collective, and ranks have different numbers of rows.
            step = max(len(inside), 1) if arithmetic().sums_are_whole else _PIECE_ROWS
            for rows in torch.split(inside, step):
                yield row, logits_NC[rows], labels_NC[rows]

    losses = np.zeros((len(SPLITS), 2))
    for row, logits, truth in pieces():
        losses[row] += len(logits), float(MeanLoss(1).multi_label(logits.double(), truth.double()))
    allreduce_sum(grid.layer, losses)
    bins, curves = curves_by_split(grid, len(SPLITS), pieces)
    values: dict[str, float] = {}
    rules, valid = {"": HALF}, list(SPLITS).index("valid")
    num_valid = int(losses[valid, 0])
    if tuned != "half" and num_valid:
        if tuned == "top":
            inside = split_N == int(SPLITS["valid"])
            values["valid_top"] = best_top(
                _hits(grid, logits_NC[inside], labels_NC[inside]), num_valid
            )
        else:
            values["valid_threshold"] = bins.best_threshold(curves[valid])
        rules = {"": LabelRule.of_metrics(values), "half": HALF}
    for kind, rule in rules.items():
        counts_by_split = _count(grid, logits_NC, labels_NC, split_N, rule)
        for prefix, (nodes, loss_sum), counts, curve in zip(
            SPLITS, losses, counts_by_split, curves, strict=True
        ):
            if not nodes:
                continue
            micro = float(f1_of(counts.sum(axis=1)))
            if kind:
                values[f"{prefix}_half_f1"] = micro
                continue
            values[f"{prefix}_loss"] = loss_sum / nodes
            values[f"{prefix}_micro_f1"] = micro
            values[f"{prefix}_macro_f1"] = float(f1_of(counts).mean())
            values |= {f"{prefix}_{name}": value for name, value in areas(curve).items()}
    return Evaluation(values, "micro_f1")


@collective
def _count(
    grid: ProcessGrid, logits_NC: Tensor, labels_NC: Tensor, split_N: Tensor, rule: LabelRule
) -> Counts:
    """Return true positives, false positives and false negatives of each class by split."""
    counts = np.zeros((len(SPLITS), 3, logits_NC.shape[1]))
    guess_NC = rule.predicted(logits_NC)
    for row, split in enumerate(SPLITS.values()):
        inside = split_N == int(split)
        truth, guess = labels_NC[inside] > 0, guess_NC[inside]
        parts = (guess & truth, guess & ~truth, ~guess & truth)
        counts[row] = torch.stack([hits.sum(0) for hits in parts]).cpu().numpy()
    allreduce_sum(grid.layer, counts)
    return counts


@collective
def _hits(grid: ProcessGrid, logits_NC: Tensor, labels_NC: Tensor) -> Counts:
    """Return how many nodes (C,) of all ranks have their most, second most, ... probable label."""
    hits = torch.zeros(logits_NC.shape[1], dtype=torch.float64)
    for logits, labels in zip(
        torch.split(logits_NC, _PIECE_ROWS), torch.split(labels_NC, _PIECE_ROWS), strict=True
    ):
        hits += (labels.gather(1, ranked(logits)) > 0).sum(0).cpu()
    hit_counts: Counts = hits.numpy()
    allreduce_sum(grid.layer, hit_counts)
    return hit_counts


def best_top(hits: Counts, num_nodes: int) -> int:
    """Return the number of labels per node that maximises micro F1, the smallest on ties.

    `hits` (C,) are the result of `_hits` over `num_nodes` nodes.
    """
    predicted = num_nodes * np.arange(1, len(hits) + 1)
    return 1 + int((2 * hits.cumsum() / (predicted + hits.sum())).argmax())


def f1_of(counts: FloatArray) -> FloatArray:
    """Return the F1 of counts (3, ...) of true positives, false positives and false negatives."""
    true_positive, false_positive, false_negative = counts
    twice = 2 * true_positive
    total = twice + false_positive + false_negative
    return np.divide(twice, total, out=np.zeros_like(total), where=total > 0)
