"""Normalisations of node rows; statistics are those of the rows of all ranks.

With `exchange.active_sets = true` a layer computes some rows only, and its statistics are those of
these rows. Graph norm has statistics of each graph where several are predicted, or computed side
by side. The result does not depend on the number of ranks or on the partition either way.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import (
    GraphRows,
    GraphSums,
    arithmetic,
    mean_of_graphs,
    moments,
    rows_at_nodes,
    standardise,
    widened,
)
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective

EPSILON = 1e-5


class Norm(nn.Module, ABC):
    """A normalisation of (rows, width) with a learned scale and shift of every column."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    @abstractmethod
    @collective
    def forward(self, x_NH: Tensor, sums: RankSums, *, training: bool) -> Tensor:
        """Return the normalised rows, of which a rank may have none.

        `training` says whether they count as a batch to train on.
        """

    def scaled(self, x_NH: Tensor, mean_H: Tensor, variance_H: Tensor) -> Tensor:
        """Return rows brought to mean zero and unit variance, scaled and shifted."""
        factor = self.weight * (variance_H + EPSILON).rsqrt()
        if x_NH.dtype == torch.bfloat16:
            return standardise(x_NH, mean_H, factor, self.bias)
        shared = self.bias, mean_H, factor
        bias, mean, factor = (arithmetic().for_rows(parameter, len(x_NH)) for parameter in shared)
        return torch.addcmul(bias, x_NH - mean, factor)


class BatchNorm(Norm):
    """Batch normalisation (Ioffe and Szegedy 2015) over the rows of all ranks.

    Evaluation uses running means of the statistics, which belong to the model's state and are equal
    on all ranks. As in torch, the running variance is the unbiased one. While `counts` is False
    running means stay.
    """

    counts = True

    running_mean: Tensor
    running_variance: Tensor

    def __init__(self, width: int, momentum: float = 0.1) -> None:
        super().__init__(width)
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_variance", torch.ones(width))

    @collective
    @override
    def forward(self, x_NH: Tensor, sums: RankSums, *, training: bool) -> Tensor:
        if not training:
            return self.scaled(x_NH, self.running_mean, self.running_variance)
        mean, variance, count = moments(x_NH, sums)
        if self.counts and count > 0:
            unbiased = variance.detach() * float(count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.detach(), self.momentum)
            self.running_variance.lerp_(unbiased, self.momentum)
        return self.scaled(x_NH, mean, variance)


class GraphNorm(Norm):
    """GraphNorm (Cai et al., ICML 2021): the share of the mean that is removed is learned.

    Statistics are those of the graph at hand, in evaluation too; of many, of each by itself.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.mean_share = nn.Parameter(torch.ones(width))

    @collective
    @override
    def forward(self, x_NH: Tensor, sums: RankSums, *, training: bool) -> Tensor:
        if isinstance(sums, GraphSums):
            return self._by_graph(widened(x_NH), sums.graphs).to(x_NH.dtype)
        mean, variance, _ = moments(x_NH, sums)
        left = mean * (1 - self.mean_share)
        return self.scaled(x_NH, mean * self.mean_share, variance + left.square())

    @collective
    def _by_graph(self, x_NH: Tensor, graphs: GraphRows) -> Tensor:
        shared = self.mean_share, self.bias, self.weight
        share, bias, weight = (arithmetic().for_rows(each, len(x_NH)) for each in shared)
        away = x_NH - rows_at_nodes(mean_of_graphs(x_NH, graphs), graphs) * share
        factor_GH = (mean_of_graphs(away.square(), graphs) + EPSILON).rsqrt()
        return torch.addcmul(bias, away * rows_at_nodes(factor_GH, graphs), weight)


class LayerNorm(Norm):
    """Layer normalisation (Ba et al. 2016): every row by itself."""

    @override
    def forward(self, x_NH: Tensor, sums: RankSums, *, training: bool) -> Tensor:
        return arithmetic().layer_norm(x_NH, self.weight, self.bias, EPSILON)


NORMS: Mapping[str, type[Norm] | None] = {
    "none": None,
    "batch": BatchNorm,
    "layer": LayerNorm,
    "graph": GraphNorm,
}
"""Normalisations by the name that configurations use."""

NORMS_OVER_NODES = frozenset({"batch", "graph"})
"""Those whose statistics are over the rows of all nodes."""


@contextlib.contextmanager
def running_means_stay(model: nn.Module) -> Iterator[None]:
    """Leave running means of `model` as they are, where rows are only computed again."""
    norms = [each for each in model.modules() if isinstance(each, BatchNorm)]
    for each in norms:
        each.counts = False
    try:
        yield
    finally:
        for each in norms:
            each.counts = True


def hold_shifts(norm: nn.Module | None, shift: nn.Parameter | None) -> None:
    """Leave a parameter untrained that is added to every row just before `norm`, if it is batch.

    Batch normalisation subtracts it again, so that its gradient is 0. What sums over ranks give for
    it is rounding, of which Adam makes steps as long as of any gradient: training would not change
    by them, but the running means would, which evaluation subtracts.
    """
    if isinstance(norm, BatchNorm) and shift is not None:
        shift.requires_grad_(False)


def make_norm(name: str, width: int) -> Norm | None:
    """Return the normalisation called `name`, None for "none"."""
    kind = NORMS[name]
    return None if kind is None else kind(width)
