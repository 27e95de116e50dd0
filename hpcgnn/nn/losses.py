"""Losses of nodes and of links, as sums on a rank.

Summed over the ranks of a layer of the grid they give the loss of the whole graph, and so do their
gradients; replicas are counted once because only one layer is summed.

Shape suffixes: N nodes, C classes, T targets; E edges, K wrong ends of each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd import arithmetic, cross_entropy_sum, loss_sum


@dataclass(frozen=True, eq=False)
class MeanLoss:
    """The mean loss of nodes, of which each rank computes its share, a scalar.

    `num_global` is the number of nodes that count on all ranks, or the sum of their factors, at
    least 1. `smoothing` of labels is in [0, 1). `weights` (N,) are factors of the nodes' losses;
    None: ones.
    """

    num_global: float
    smoothing: float = 0.0
    weights: Tensor | None = None

    def single_label(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross entropy with int64 classes (N,), of the local nodes that count."""
        return cross_entropy_sum(logits_NC, labels_N, self.smoothing, self.weights, self.num_global)

    def multi_label(self, logits_NC: Tensor, labels_NC: Tensor) -> Tensor:
        """Return the sigmoid cross entropy over nodes and classes; targets are smoothed towards ½.

        `labels_NC` are zeros and ones, in the dtype of the logits.
        """
        target = labels_NC
        if self.smoothing:
            target = labels_NC * (1.0 - self.smoothing) + 0.5 * self.smoothing
        factors = None if self.weights is None else self.weights[:, None]
        divisor = self.num_global * max(logits_NC.shape[1], 1)
        return arithmetic().cross_entropies(logits_NC, target, factors, divisor)

    def squared(self, predicted_NT: Tensor, targets_NT: Tensor) -> Tensor:
        """Return the squared error, of a node the mean over its known targets, at least one.

        `targets_NT` are NaN where they are not known.
        """
        labelled = ~targets_NT.isnan()
        # Not 0 times NaN, which is NaN, in the gradient too.
        errors = torch.where(labelled, predicted_NT - targets_NT.nan_to_num(0), 0).square()
        per_node = errors.sum(1) / labelled.sum(1)
        factors = 1 if self.weights is None else self.weights
        return loss_sum(per_node * factors) / self.num_global


LinkLoss: TypeAlias = Callable[[Tensor, Tensor, float], Tensor]
"""Gives the sum over edges, from scores (E,) and (E, K) of wrong ends, and the margin."""


def logistic_loss(scores_E: Tensor, wrong_EK: Tensor, _margin: float) -> Tensor:
    """Return the sum over edges of ``log(1 + exp(-s)) + mean_k log(1 + exp(s_k))``."""
    softplus = arithmetic().softplus
    return loss_sum(softplus(-scores_E) + softplus(wrong_EK).mean(1))


def margin_loss(scores_E: Tensor, wrong_EK: Tensor, margin: float) -> Tensor:
    """Return the sum over edges of ``mean_k max(0, margin - s + s_k)``."""
    return loss_sum(functional.relu(margin - scores_E[:, None] + wrong_EK).mean(1))


def cross_entropy_loss(scores_E: Tensor, wrong_EK: Tensor, _margin: float) -> Tensor:
    """Return the sum over edges of ``-log(exp(s) / (exp(s) + Σ_k exp(s_k)))``."""
    candidates = torch.cat([scores_E[:, None], wrong_EK], dim=1)
    return loss_sum(candidates.logsumexp(1) - scores_E)


LINK_LOSSES: Mapping[str, LinkLoss] = {
    "logistic": logistic_loss,
    "margin": margin_loss,
    "cross_entropy": cross_entropy_loss,
}
"""Losses by their names."""
