"""Losses of nodes and of links, as sums over a rank's nodes or edges.

Their sums over the ranks of a layer of the grid are the loss of the whole graph, and so for their
gradients; replicas are counted once because only one layer is summed.

Shape suffixes: N nodes, C classes, T targets; E edges, K negatives of each.
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
    """The mean loss over nodes, of which each rank computes its share, a scalar.

    `num_global` is the number of nodes with a loss on all ranks, or the sum of their weights, at
    least 1. Label `smoothing` is in [0, 1). `weights` (N,) are weights of the nodes' losses; None:
    ones.
    """

    num_global: float
    smoothing: float = 0.0
    weights: Tensor | None = None

    def single_label(self, logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        """Return the cross entropy of local nodes with int64 classes (N,)."""
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
        """Return the squared error; that of a node is the mean over its known targets.

        Unknown targets are NaN in `targets_NT`; every node has at least one known target.
        """
        labelled = ~targets_NT.isnan()
        # Do not multiply NaN by 0, which is NaN, in the gradient too.
        errors = torch.where(labelled, predicted_NT - targets_NT.nan_to_num(0), 0).square()
        per_node = errors.sum(1) / labelled.sum(1)
        factors = 1 if self.weights is None else self.weights
        return loss_sum(per_node * factors) / self.num_global


LinkLoss: TypeAlias = Callable[[Tensor, Tensor, float], Tensor]
"""Maps scores (E,), scores of negatives (E, K) and the margin to the sum of losses over edges."""


def logistic_loss(scores_E: Tensor, negatives_EK: Tensor, _margin: float) -> Tensor:
    """Return the sum over edges of ``log(1 + exp(-s)) + mean_k log(1 + exp(s_k))``."""
    softplus = arithmetic().softplus
    return loss_sum(softplus(-scores_E) + softplus(negatives_EK).mean(1))


def margin_loss(scores_E: Tensor, negatives_EK: Tensor, margin: float) -> Tensor:
    """Return the sum over edges of ``mean_k max(0, margin - s + s_k)``."""
    return loss_sum(functional.relu(margin - scores_E[:, None] + negatives_EK).mean(1))


def cross_entropy_loss(scores_E: Tensor, negatives_EK: Tensor, _margin: float) -> Tensor:
    """Return the sum over edges of ``-log(exp(s) / (exp(s) + Σ_k exp(s_k)))``."""
    candidates = torch.cat([scores_E[:, None], negatives_EK], dim=1)
    return loss_sum(candidates.logsumexp(1) - scores_E)


LINK_LOSSES: Mapping[str, LinkLoss] = {
    "logistic": logistic_loss,
    "margin": margin_loss,
    "cross_entropy": cross_entropy_loss,
}
"""Losses by their names."""
