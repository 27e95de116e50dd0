"""Rows of the sources of a rank's edges, and sums at them taken home; each the other's adjoint.

Shape suffixes: N local nodes, G rows that other ranks own.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn import messages
from hpcgnn.messages import MessageOperator
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective


class _Moved(torch.autograd.Function):
    """One of the two moves; the other is its backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, operator: MessageOperator, home: bool) -> Tensor:
        ctx.operator, ctx.home = operator, home
        move = messages.take_home if home else messages.with_ghosts
        return torch.from_numpy(move(operator, rows.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        back = with_ghosts if ctx.home else take_home
        return back(gradients[0], ctx.operator), None, None


@collective
def with_ghosts(rows: Tensor, operator: MessageOperator) -> Tensor:
    """Return (N + G, width) the own rows (N, width) and behind them the fetched ones.

    Its backward pass is collective, and may be differentiated again.
    """
    return _Moved.apply(rows, operator, False)  # type: ignore[no-untyped-call]


@collective
def take_home(rows: Tensor, operator: MessageOperator) -> Tensor:
    """Return (N, width) sums: the own ones of (N + G, width), and what others have for them.

    Its backward pass is collective, and may be differentiated again.
    """
    return _Moved.apply(rows, operator, True)  # type: ignore[no-untyped-call]


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
