"""Losses as sums over local nodes divided by the global count.

Summed over the ranks of a layer of the grid they give the loss of the whole graph, and so do their
gradients; replicas are counted once because only one layer is summed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

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
