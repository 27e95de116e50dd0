"""Correct and Smooth (Huang et al., ICLR 2021): label propagation on top of a trained model.

Both stages iterate ``Z <- a S Z + (1 - a) Z_0`` on the operators that models aggregate with. The
first spreads the errors of the training nodes and corrects the scores by them. The second spreads
the corrected scores, with labels in place of the training nodes' scores.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hpcgnn.autograd import aggregate, arithmetic
from hpcgnn.operator import AggregationOperator, RankSums
from hpcgnn.spmd import collective

_LARGEST_SCALE = 1000.0


@dataclass(frozen=True, eq=False)
class Propagation:
    """The iteration of a stage: `operator` is S, a scaled adjacency, and `alpha` its share a."""

    operator: AggregationOperator
    alpha: float
    steps: int

    @collective
    def run(self, start_NC: Tensor, after_step: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows after all steps, each passed through `after_step`."""
        rest_NC, z_NC = (1 - self.alpha) * start_NC, start_NC
        for _ in range(self.steps):
            z_NC = after_step(self.alpha * aggregate(self.operator, z_NC) + rest_NC)
        return z_NC


@dataclass(frozen=True, eq=False)
class CorrectAndSmooth:
    """Both stages.

    `scale` is the factor of the spread errors ("fixed"), with the training nodes' errors reset in
    every step. None scales every node's error to the mean size of the training nodes' errors
    ("autoscale").
    """

    correction: Propagation
    smoothing: Propagation
    scale: float | None
    sums: RankSums

    @torch.no_grad()
    @collective
    def __call__(self, scores_NC: Tensor, truth_NC: Tensor, labelled: Tensor) -> Tensor:
        """Return corrected and smoothed scores (N, C), given a model's probabilities `scores_NC`.

        `truth_NC` are labels of zeros and ones, read only where `labelled` (N,) bool is true.
        """
        corrected = self._correct(scores_NC, truth_NC, labelled)
        start = torch.where(labelled[:, None], truth_NC, corrected)
        return self.smoothing.run(start, lambda z: z.clamp(0, 1))

    def _correct(self, scores_NC: Tensor, truth_NC: Tensor, labelled: Tensor) -> Tensor:
        errors = torch.where(labelled[:, None], truth_NC - scores_NC, 0.0)
        if self.scale is not None:
            fixed = self.correction.run(errors, lambda z: torch.where(labelled[:, None], errors, z))
            return scores_NC + self.scale * fixed
        spread = self.correction.run(errors, lambda z: z.clamp(-1, 1))
        sizes = errors[labelled].double().abs().sum(1, keepdim=True)
        total, count = arithmetic().sums_and_count(sizes, self.sums).tolist()
        size = spread.abs().sum(1, keepdim=True)
        scale = (total / max(count, 1.0)) / size
        # As published: if hardly any error reached a node, it is not scaled up.
        scale = torch.where((size > 0) & (scale <= _LARGEST_SCALE), scale, 1.0)
        return scores_NC + scale * spread
