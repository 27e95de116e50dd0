"""Losses of links, of the scores of edges and of wrong ends.

Shape suffixes: E edges, K wrong ends of each.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hpcgnn.autograd import arithmetic, loss_sum

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
