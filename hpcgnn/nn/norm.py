"""Normalisations of node rows, with statistics over the rows of all ranks.

With `exchange.active_sets = true` a layer computes only some rows, and its statistics are those of
these rows. Graph norm has separate statistics for each graph if several are predicted or computed
together. In either case the result does not depend on the number of ranks or on the partition.
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
        """Return the normalised rows; a rank may have none.

        `training` tells whether the rows are a training batch.
        """

    def scaled(self, x_NH: Tensor, mean_H: Tensor, variance_H: Tensor) -> Tensor:
        """Return rows normalised to mean zero and unit variance, then scaled and shifted."""
        factor = self.weight * (variance_H + EPSILON).rsqrt()
        if x_NH.dtype == torch.bfloat16:
            return standardise(x_NH, mean_H, factor, self.bias)
        shared = self.bias, mean_H, factor
        bias, mean, factor = (arithmetic().for_rows(parameter, len(x_NH)) for parameter in shared)
        return torch.addcmul(bias, x_NH - mean, factor)


class BatchNorm(Norm):
    """Batch normalisation (Ioffe and Szegedy 2015) over the rows of all ranks.

    Evaluation uses running means of the statistics, which are part of the model's state and equal
    on all ranks. As in torch, the running variance is the unbiased one. While `counts` is False
    running means are not updated.
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
    """GraphNorm (Cai et al., ICML 2021), which removes a learned share of the mean.

    Statistics are those of the current graph, in evaluation too, or of each of several graphs.
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
        share, bias, weight = (arithmetic().for_rows(parameter, len(x_NH)) for parameter in shared)
        away = x_NH - rows_at_nodes(mean_of_graphs(x_NH, graphs), graphs) * share
        factor_GH = (mean_of_graphs(away.square(), graphs) + EPSILON).rsqrt()
        return torch.addcmul(bias, away * rows_at_nodes(factor_GH, graphs), weight)


class LayerNorm(Norm):
    """Layer normalisation (Ba et al. 2016) of every row by itself."""

    @override
    def forward(self, x_NH: Tensor, sums: RankSums, *, training: bool) -> Tensor:
        return arithmetic().layer_norm(x_NH, self.weight, self.bias, EPSILON)


NORMS: Mapping[str, type[Norm] | None] = {
    "none": None,
    "batch": BatchNorm,
    "layer": LayerNorm,
    "graph": GraphNorm,
}
"""Normalisations by their names in configurations."""

NORMS_OVER_NODES = frozenset({"batch", "graph"})
"""Names of the normalisations with statistics over the rows of all nodes."""


@contextlib.contextmanager
def running_means_stay(model: nn.Module) -> Iterator[None]:
    """Do not update the running means of `model` inside the block, when rows are recomputed."""
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm.counts = False
    try:
        yield
    finally:
        for norm in norms:
            norm.counts = True


def hold_shifts(norm: nn.Module | None, shift: nn.Parameter | None) -> None:
    """Do not train a parameter that is added to every row just before batch normalisation.

    Batch normalisation subtracts it again, so its gradient is 0 except for rounding, from which
    Adam would make steps of full length. They would not change training, but they would change the
    running means, which evaluation subtracts.
    """
    if isinstance(norm, BatchNorm) and shift is not None:
        shift.requires_grad_(False)


def make_norm(name: str, width: int) -> Norm | None:
    """Return the normalisation `name`, None for "none"."""
    kind = NORMS[name]
    return None if kind is None else kind(width)
