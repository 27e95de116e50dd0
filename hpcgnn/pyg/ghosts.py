"""Rows of the sources of a rank's edges, and sums at them taken home; each the other's adjoint.

Shape suffixes: N local nodes, G rows that other ranks own.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.messages import MessageOperator
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, FloatArray


@collective
def _fetched(rows: FloatArray, operator: MessageOperator) -> FloatArray:
    """Return (N + G, width) the own rows and those of each stage."""
    rows = np.ascontiguousarray(rows)
    fetch, found = operator.start_fetch(rows), [rows]
    for index in range(len(operator.stages)):
        with operator.trace.span("wait.forward"):
            # Rows of a sequential exchange are valid until the next stage.
            found.append(operator.arrived(fetch, index, rows.dtype).copy())
    return np.concatenate(found)


@collective
def _taken_home(rows: FloatArray, operator: MessageOperator) -> FloatArray:
    """Return (N, width) the own rows (N + G, width) and what other ranks have for them, added."""
    sizes = [operator.shape[1], *(stage.block.shape[1] for stage in operator.stages)]
    own, *stages = np.split(rows, np.cumsum(sizes)[:-1])
    total = np.ascontiguousarray(own).copy()
    # An exchange may push in another order than it fetched in: these places tell it.
    places = [np.arange(len(stage))[:, None] for stage in stages]

    def sums(index: int, order: Array | None) -> FloatArray:
        assert order is not None
        return np.ascontiguousarray(stages[index][order[:, 0]])

    operator.start_push(total, places, total, sums).finish()
    return total


class _WithGhosts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, operator: MessageOperator) -> Tensor:
        ctx.operator = operator
        return torch.from_numpy(_fetched(rows.detach().numpy(), operator))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return take_home(gradients[0], ctx.operator), None


class _TakeHome(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, operator: MessageOperator) -> Tensor:
        ctx.operator = operator
        return torch.from_numpy(_taken_home(rows.detach().numpy(), operator))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return with_ghosts(gradients[0], ctx.operator), None


@collective
def with_ghosts(rows: Tensor, operator: MessageOperator) -> Tensor:
    """Return (N + G, width) the own rows (N, width) and behind them the fetched ones.

    Its backward pass is collective, and may be differentiated again.
    """
    return _WithGhosts.apply(rows, operator)  # type: ignore[no-untyped-call]


@collective
def take_home(rows: Tensor, operator: MessageOperator) -> Tensor:
    """Return (N, width) sums: the own ones of (N + G, width), and what others have for them.

    Its backward pass is collective, and may be differentiated again.
    """
    return _TakeHome.apply(rows, operator)  # type: ignore[no-untyped-call]


class _RankSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, sums: RankSums) -> Tensor:
        ctx.sums = sums
        total = np.array(share.detach().double().numpy(), order="C", ndmin=1)
        sums(total)
        return torch.from_numpy(total).view(share.shape).to(share.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Each rank has the gradient of its own share of the loss.
        return rank_sum(gradients[0], ctx.sums), None


@collective
def rank_sum(share: Tensor, sums: RankSums) -> Tensor:
    """Return the sum of a tensor over the ranks, added in float64; so is its gradient."""
    return _RankSum.apply(share, sums)  # type: ignore[no-untyped-call]
