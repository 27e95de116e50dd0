"""Loss and metrics of labels or numbers, whatever has them: nodes, graphs, edges."""

from torch import Tensor

from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.facts import GraphFacts
from hpcgnn.nn import MeanLoss
from hpcgnn.spmd import collective
from hpcgnn.train.evaluation import (
    Evaluation,
    constant_targets,
    evaluate_single_label,
    target_metrics,
)
from hpcgnn.train.multi_label import evaluate_multi_label


def loss_of(facts: GraphFacts, loss: MeanLoss, logits_TC: Tensor, labels: Tensor) -> Tensor:
    """Return this rank's share of the loss of some rows, as `facts` say what they are."""
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
    """Return the metrics of rows of all ranks.

    Parameters
    ----------
    labels
        (N,) int64 with -1 for none, or (N, C) zeros and ones, or scaled numbers (N, T).
    split_N
        uint8.
    facts
        Say which of them, and what they are called.
    threshold
        See ``train.threshold``.
    """
    arguments = (grid, logits_NC, labels, split_N)
    if facts.targets:
        values: dict[str, float] = {}
        by_part = target_metrics(*arguments, facts.targets, facts.target_scales)
        for part, metrics_of_part in by_part.items():
            values |= {f"{part}_{key}": value for key, value in metrics_of_part.items()}
        alike = "; ".join(
            f"all {count} that are tested are given {number:.4g} for {name}"
            for name, count, number in constant_targets(*arguments, facts)
        )
        return Evaluation(values, "r2", alike)
    if facts.multi_label:
        return evaluate_multi_label(*arguments, tuned=threshold)
    return evaluate_single_label(*arguments, facts.class_names)
