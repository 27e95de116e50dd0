"""Multi-label metrics: F1, average precision, area under the ROC curve.

Curves over thresholds come from counts of logits in bins, so that they are equal for any number of
ranks, and messages have a fixed size. On both sides of 0, a factor of two is divided into 512 bins
between 2^-11 and 2^5, and into 64 from there to 2^37, since features that are not scaled make large
logits; logits in the same bin count as equal.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import MeanLoss
from hpcgnn.spmd import collective
from hpcgnn.train.evaluation import SPLITS, Evaluation
from hpcgnn.typing import FloatArray

_FINE_BITS, _COARSE_BITS = 14, 17
_LOW_BITS, _MIDDLE_BITS = (int(np.array(2.0**k, np.float32).view(np.int32)) for k in (-11, 5))
_HIGH = float(np.nextafter(np.float32(2.0**37), np.float32(0)))
_FINE = 16 << (23 - _FINE_BITS)
_CENTRE = _FINE + (32 << (23 - _COARSE_BITS))
_BINS = 2 * _CENTRE + 1
_PIECE_ROWS = 1 << 15

Counts = NDArray[np.float64]
NO_CURVE: Counts = np.zeros((2, _BINS))
"""The curve of no logits."""


def bins_of(logits: Tensor) -> Tensor:
    """Return the bin of each logit, from 0 to `_BINS` - 1, in ascending order of logits."""
    sizes = logits.abs().clamp(max=_HIGH).float().view(torch.int32)
    fine = (sizes - _LOW_BITS).clamp(max=_MIDDLE_BITS - _LOW_BITS - 1) >> _FINE_BITS
    coarse = (sizes - _MIDDLE_BITS) >> _COARSE_BITS
    steps = (fine + (coarse + 1).clamp(min=0)).add(1).clamp(min=0).to(torch.int64)
    return _CENTRE + torch.where(logits < 0, -steps, steps)


def lower_edge(index: int) -> float:
    """Return the lower edge of a bin, a logit."""
    steps = index - _CENTRE
    edge = max(steps - 1, -steps)
    bits = _LOW_BITS + (min(edge, _FINE) << _FINE_BITS) + (max(edge - _FINE, 0) << _COARSE_BITS)
    size = float(np.array(bits, np.int32).view(np.float32))
    return size if steps > 0 else -size


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
    curves = np.zeros((len(SPLITS), 2, _BINS))
    losses = np.zeros((len(SPLITS), 2))
    for row, split in enumerate(SPLITS.values()):
        inside = torch.nonzero(split_N == int(split))[:, 0]
        losses[row, 0] = len(inside)
        for rows in torch.split(inside, _PIECE_ROWS):
            logits, truth = logits_NC[rows], labels_NC[rows]
            losses[row, 1] += float(MeanLoss(1).multi_label(logits.double(), truth.double()))
            curves[row] += curve_of(logits, truth)
    allreduce_sum(grid.layer, curves)
    allreduce_sum(grid.layer, losses)
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
            values["valid_threshold"] = best_threshold(curves[valid])
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
            values |= {f"{prefix}_{name}": value for name, value in of_curve(curve).items()}
    return Evaluation(values, "micro_f1")


def curve_of(logits: Tensor, truth: Tensor) -> Counts:
    """Return the counts (2, bins) of logits, of any shape, without and with the label."""
    keys = bins_of(logits) + _BINS * (truth > 0)
    counts = torch.bincount(keys.reshape(-1), minlength=2 * _BINS)
    curve: Counts = counts.cpu().numpy().reshape(2, _BINS)
    return curve


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


def best_threshold(curve: Counts) -> float:
    """Return the probability threshold that maximises micro F1; 0.5 if no node has a label.

    `curve` (2, bins) counts pairs without and with the label by the bin of their logit.
    """
    # Larger logits have a probability of 1, which nothing exceeds.
    lowest, largest = _CENTRE - _FINE, _CENTRE + _FINE
    within = curve[:, lowest : largest + 1].copy()
    within[:, 0] += curve[:, :lowest].sum(axis=1)
    within[:, -1] += curve[:, largest + 1 :].sum(axis=1)
    negative, positive = within[:, ::-1].cumsum(axis=1)
    if positive[-1] == 0:
        return 0.5
    scores = 2 * positive / (positive + negative + positive[-1])
    # Bins have their end nearer to 0, so that logits on it are above the threshold.
    logit = (1 - 2.0**-22) * lower_edge(largest - int(scores.argmax()))
    return float(1 / (1 + np.exp(-logit)))


def middle_of(numbers: Counts) -> float:
    """Return a logit next to the median one, from the numbers of logits (bins,); 0 without any."""
    places = np.flatnonzero(2 * numbers.cumsum() >= max(numbers.sum(), 1))
    return lower_edge(int(places[0])) if len(places) else 0.0


def about(middle: float, logits: Tensor) -> Tensor:
    """Return logits in the same order, with the finest bins next to `middle`.

    Logits of a rare class, or after few steps, are almost equal, and would share a few bins.
    """
    _, exponent = math.frexp(max(abs(middle), 2.0**-11))
    # Of float32, so that equal rows remain in one bin.
    return (logits.double() - middle) * 2.0 ** (3 - exponent)


def of_curve(curve: Counts) -> dict[str, float]:
    """Return average_precision and auc of a curve; {} unless pairs with and without the label.

    The first is the mean precision over the pairs with the label, the second the probability that
    one of them exceeds a pair without; ties count half.
    """
    if not curve.any(axis=1).all():
        return {}
    negative, positive = curve
    below = negative.cumsum() - negative / 2
    above, right = curve[:, ::-1].cumsum(axis=1)
    precision = (positive[::-1] * right / np.maximum(right + above, 1)).sum() / positive.sum()
    auc = (positive * below).sum() / (positive.sum() * negative.sum())
    return {"average_precision": float(precision), "auc": float(auc)}


def f1_of(counts: FloatArray) -> FloatArray:
    """Return the F1 of counts (3, ...) of true positives, false positives and false negatives."""
    true_positive, false_positive, false_negative = counts
    twice = 2 * true_positive
    total = twice + false_positive + false_negative
    return np.divide(twice, total, out=np.zeros_like(total), where=total > 0)
