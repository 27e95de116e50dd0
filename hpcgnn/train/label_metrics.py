"""Loss and metrics of labels or numbers of nodes, graphs or edges."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import arithmetic, cross_entropies
from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.nn import MeanLoss
from hpcgnn.spmd import collective
from hpcgnn.storage import Split
from hpcgnn.train.curves import Counts, Piece, areas, curves_by_split
from hpcgnn.train.evaluation import (
    SPLITS,
    Evaluation,
    constant_targets,
    means_by_split,
    target_metrics,
)
from hpcgnn.train.multi_label import evaluate_multi_label, f1_of
from hpcgnn.typing import FloatArray

_ROWS = 1 << 14


def loss_of(facts: GraphFacts, loss: MeanLoss, logits_TC: Tensor, labels: Tensor) -> Tensor:
    """Return this rank's share of the loss of some rows, of the kind that `facts` tell."""
    if facts.targets:
        return loss.squared(logits_TC, labels)
    return (loss.multi_label if facts.multi_label else loss.single_label)(logits_TC, labels)


@collective
def score(
    grid: ProcessGrid,
    logits_NC: Tensor,
    labels: Tensor,
    split_N: Tensor,
    facts: GraphFacts,
    threshold: str,
) -> Evaluation:
    """Return the metrics of the rows of all ranks.

    `labels` are (N,) int64 with -1 for none, or (N, C) zeros and ones, or scaled numbers (N, T);
    `facts` tell the kind and the names. `split_N` is uint8; for `threshold`, see
    ``train.threshold``.
    """
    arguments = (grid, logits_NC, labels, split_N)
    if facts.targets:
        values: dict[str, float] = {}
        for part, metrics_of_part in target_metrics(*arguments, facts).items():
            values |= {f"{part}_{key}": value for key, value in metrics_of_part.items()}
        constant = "; ".join(
            f"all {count} test rows get {number:.4g} for {name}"
            for name, count, number in constant_targets(*arguments, facts)
        )
        return Evaluation(values, "r2", constant)
    if facts.multi_label:
        return evaluate_multi_label(*arguments, tuned=threshold)
    return evaluate_single_label(*arguments, facts.class_names)


@collective
def evaluate_single_label(
    grid: ProcessGrid,
    logits_NC: Tensor,
    labels_N: Tensor,
    split_N: Tensor,
    names: Sequence[str] = (),
) -> Evaluation:
    """Return loss, accuracy and macro_f1 over all ranks; nodes without a label (-1) do not count.

    With two classes, add average_precision and auc of the second, by the difference of the logits,
    where a split has both. `labels_N` are classes (int64), `split_N` uint8; without `names`,
    classes are named by number.
    """
    num_classes = logits_NC.shape[1]
    splits = [int(split) for split in SPLITS.values()]
    losses = np.zeros((len(SPLITS), 1))
    # Nodes by class: predicted correctly, predicted, and true.
    counts = np.zeros((len(SPLITS), 3, num_classes))
    # In pieces: all rows in float64 would dominate the memory of a small model. Exact losses are
    # collective, and ranks have different numbers of rows: take all at once.
    step = max(len(logits_NC), 1) if arithmetic().sums_are_whole else _ROWS
    for start in range(0, max(len(logits_NC), 1), step):
        piece = [rows[start : start + step] for rows in (logits_NC, labels_N, split_N)]
        known = ((piece[1] >= 0) & (piece[2] != int(Split.NONE))).nonzero()[:, 0]
        logits_TC, labels_T, split_T = (rows[known] for rows in piece)
        losses_T = cross_entropies(logits_TC.double(), labels_T)
        for row, split in enumerate(splits):
            inside = split_T == split
            losses[row] += float(arithmetic().loss(losses_T[inside]))
        # One count for all splits: number the pairs of a split and a class.
        first_T, predicted_T = split_T.long() * num_classes, logits_TC.argmax(dim=1)
        true_T = first_T + labels_T
        pairs = true_T[predicted_T == labels_T], first_T + predicted_T, true_T
        for column, numbers in enumerate(pairs):
            found = numbers.bincount(minlength=len(Split) * num_classes).cpu().numpy()
            counts[:, column] += found.reshape(len(Split), num_classes)[splits]
    for sums in (losses, counts):
        allreduce_sum(grid.layer, sums)
    curves = _curves(grid, logits_NC, labels_N, split_N) if num_classes == 2 else ()
    hits, _, true = counts.sum(axis=2).T
    values = means_by_split(SPLITS, np.stack([true, losses[:, 0], hits], axis=1))
    for prefix, macro_f1 in zip(SPLITS, _macro_f1(counts), strict=True):
        if macro_f1 is not None:
            values[f"{prefix}_macro_f1"] = macro_f1
    for prefix, curve in zip(SPLITS, curves, strict=False):
        values |= {f"{prefix}_{name}": value for name, value in areas(curve).items()}
    return Evaluation(values, "accuracy", _one_class(counts[-1], names))


@collective
def _curves(grid: ProcessGrid, logits_N2: Tensor, labels_N: Tensor, split_N: Tensor) -> Counts:
    """Return the curves (splits, 2, bins) of the difference of two classes' logits."""

    def pieces() -> Iterator[Piece]:
        for row, split in enumerate(SPLITS.values()):
            judged = torch.nonzero((labels_N >= 0) & (split_N == int(split)))[:, 0]
            for rows in torch.split(judged, _ROWS):
                logits = logits_N2[rows]
                yield row, logits[:, 1] - logits[:, 0], labels_N[rows]

    return curves_by_split(grid, len(SPLITS), pieces)[1]


def _macro_f1(counts: FloatArray) -> list[float | None]:
    """Return the mean F1 of the classes of each split; None for a split without nodes.

    `counts` (splits, 3, C) are correct, predicted and true nodes. A class without true or predicted
    nodes is left out.
    """
    hits, predicted, true = counts.swapaxes(0, 1)
    f1 = f1_of(np.stack([hits, predicted - hits, true - hits]))
    present, num_nodes = counts.sum(axis=1) > 0, true.sum(axis=1)
    return [
        float(of_split[chosen].mean()) if count else None
        for of_split, chosen, count in zip(f1, present, num_nodes, strict=True)
    ]


def _one_class(counts: FloatArray, names: Sequence[str]) -> str:
    """Return a note if all nodes are wrongly predicted as one class, from counts (3, C)."""
    hits, predicted, true = counts
    chosen = np.flatnonzero(predicted)
    count, correct = int(true.sum()), int(hits.sum())
    if len(chosen) != 1 or correct == count:
        return ""
    name = names[chosen[0]] if names else str(chosen[0])
    return f"all {count} test rows get class {name}, which {correct} of them have"
