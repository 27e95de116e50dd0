"""Losses as sums over local nodes divided by the global count.

Summed over the ranks of a layer of the grid they give the loss of the whole graph, and so do their
gradients; replicas are counted once because only one layer is summed.
"""

from torch import Tensor

from hpcgnn.autograd import arithmetic, cross_entropy_sum


def single_label_loss(
    logits_NC: Tensor,
    labels_N: Tensor,
    num_global: float,
    smoothing: float = 0.0,
    weights_N: Tensor | None = None,
) -> Tensor:
    """Return this rank's share of the mean cross entropy, a scalar.

    Parameters
    ----------
    logits_NC
        Logits of the local nodes that count.
    labels_N
        (N,) int64 classes.
    num_global
        Number of nodes that count on all ranks, or the sum of their factors, at least 1.
    smoothing
        Label smoothing in [0, 1).
    weights_N
        (N,) factors of the nodes' losses; None: ones.
    """
    return cross_entropy_sum(logits_NC, labels_N, smoothing, weights_N) / num_global


def multi_label_loss(
    logits_NC: Tensor,
    labels_NC: Tensor,
    num_global: float,
    smoothing: float = 0.0,
    weights_N: Tensor | None = None,
) -> Tensor:
    """Return this rank's share of the mean sigmoid cross entropy over nodes and classes, a scalar.

    Parameters
    ----------
    logits_NC, num_global, weights_N
        As of `single_label_loss`.
    labels_NC
        (N, C) zeros and ones, in the dtype of the logits.
    smoothing
        Targets become ``y (1 - s) + s / 2``.
    """
    target = labels_NC * (1.0 - smoothing) + 0.5 * smoothing
    factors = None if weights_N is None else weights_N[:, None]
    total = arithmetic().cross_entropies(logits_NC, target, factors)
    return total / (num_global * max(logits_NC.shape[1], 1))
