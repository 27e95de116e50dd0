"""Column means and variances over the rows of all ranks, as differentiable torch functions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import row_chunks, widened
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.comm import Communicator
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, Mask


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: RankSums) -> tuple[Tensor, Tensor, Tensor]:
        first = arithmetic().sums_and_count(x, sums)
        count = first[-1]
        mean = torch.from_numpy(first[:-1] / max(count, 1.0)).to(x.device)
        centre = mean.to(widened(x[:0]).dtype)
        second = arithmetic().sums_and_count((x - centre).square_(), sums)[:-1]
        # Correct the variance: the rows were centred on the rounded mean.
        mean_square = torch.from_numpy(second / max(count, 1.0)).to(x.device)
        variance = mean_square - (mean - centre).square()
        ctx.sums, ctx.count = sums, max(float(count), 1.0)
        ctx.save_for_backward(x, centre)
        total = torch.tensor(count, dtype=torch.float64)
        ctx.mark_non_differentiable(total)
        return centre, variance.clamp_(min=0).to(centre.dtype), total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, centre = ctx.saved_tensors
        stacked = torch.stack(gradients[:2]).double().cpu()
        arithmetic().complete(stacked.numpy(), ctx.sums)
        for_mean, for_variance = (stacked / ctx.count).to(centre)
        result = torch.addcmul(for_mean, x - centre, for_variance, value=2)
        return result.to(x.dtype), None


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, centre: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
        ctx.save_for_backward(x, centre, factor)
        result = memory_of(x).empty(x, x.shape)
        for rows in row_chunks(x):
            result[rows] = torch.addcmul(shift, widened(x[rows]) - centre, factor)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, centre, factor = ctx.saved_tensors
        for_x = memory_of(x).empty(x, x.shape)
        for_shift, for_factor = torch.zeros_like(factor), torch.zeros_like(factor)
        for rows in row_chunks(x):
            gradient = widened(gradients[0][rows])
            for_shift += gradient.sum(0)
            for_factor += (gradient * (widened(x[rows]) - centre)).sum(0)
            for_x[rows] = gradient * factor
        return for_x, -factor * for_shift, for_factor, for_shift


def standardise(x: Tensor, centre: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return ``(x - centre) factor + shift``, differentiable in all four; it saves no rows but `x`.

    `x` is (rows, width) float32 or float64, or bfloat16 with the others in float32; the others are
    (width,).
    """
    return _Standardise.apply(x, centre, factor, shift)  # type: ignore[no-untyped-call]


class CountedSums(ABC):
    """Sums over ranks for which `moments` only counts some rows.

    `sums` adds an array up over the ranks.
    """

    def __init__(self, sums: RankSums) -> None:
        self._sums = sums

    @collective
    def __call__(self, share: Array) -> None:
        """Replace an array by its sum over the ranks."""
        self._sums(share)

    @abstractmethod
    def counted(self, x: Tensor) -> Tensor:
        """Return the rows of `x` (rows, width) that count; collective."""


class DistinctSums(CountedSums):
    """Sums over rows in which a node may occur several times, on any ranks: only the first counts.

    `sums` adds an array up over the ranks of `comm`. `nodes` has the int64 nodes (rows,) of each
    table of rows that this rank may sum over; the tables differ in their numbers of rows.
    """

    def __init__(self, sums: RankSums, comm: Communicator, nodes: Sequence[GlobalIndices]) -> None:
        super().__init__(sums)
        self._comm, self._nodes = comm, nodes

    @cached_property
    @collective
    def _counted(self) -> dict[int, Tensor]:
        counted = {}
        for own_nodes in self._nodes:
            before = self._comm.allgather(own_nodes)[: self._comm.rank]
            first = np.zeros(len(own_nodes), np.bool_)
            first[np.unique(own_nodes, return_index=True)[1]] = True
            first &= ~np.isin(own_nodes, np.concatenate([own_nodes[:0], *before]))
            counted[len(own_nodes)] = torch.from_numpy(np.flatnonzero(first))
        return counted

    @collective
    @override
    def counted(self, x: Tensor) -> Tensor:
        return x[self._counted[len(x)].to(x.device)]


class ChosenSums(CountedSums):
    """Sums that count the rows `chosen` (rows,) bool; a shorter table holds chosen rows only."""

    def __init__(self, sums: RankSums, chosen: Mask) -> None:
        super().__init__(sums)
        self._num_rows, self._chosen = len(chosen), torch.from_numpy(np.flatnonzero(chosen))

    @override
    def counted(self, x: Tensor) -> Tensor:
        return x[self._chosen.to(x.device)] if len(x) == self._num_rows else x


@collective
def moments(x: Tensor, sums: RankSums) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean, the (biased) variance and the number of the rows of all ranks.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    It makes two passes, summed in float64: the mean over all ranks, then the squared differences
    from it. The gradient is exact: with the gradients of mean and variance summed over the ranks,
    ``dx = (g_mean + 2 (x - mean) g_variance) / n``.

    `x` is (rows, width) float32, float64 or bfloat16; a rank may have no rows. Mean and variance
    are (width,) of its dtype, float32 for bfloat16, and equal on all ranks; the number is a
    float64 scalar.
    """
    if isinstance(sums, CountedSums):
        x = sums.counted(x)
    mean, variance, count = _Moments.apply(x, sums)  # type: ignore[no-untyped-call]
    return mean, variance, count
