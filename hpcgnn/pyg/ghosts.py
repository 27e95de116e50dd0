"""Differentiable exchange of the rows of edges' sources, and its adjoint, sums for their owners.

Shapes: N local nodes, G rows that other ranks own.
"""

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import checkpoint

from hpcgnn import messages
from hpcgnn.errors import InputError
from hpcgnn.messages import MessageOperator
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective


class _Moved(torch.autograd.Function):
    """Either direction of the exchange; the other direction is its backward pass."""

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
    """Return (N + G, width) the own rows (N, width) followed by the fetched ones.

    The backward pass is collective and can itself be differentiated.
    """
    return _Moved.apply(rows, operator, False)  # type: ignore[no-untyped-call]


@collective
def take_home(rows: Tensor, operator: MessageOperator) -> Tensor:
    """Return (N, width) the own rows of (N + G, width) plus what other ranks have for them.

    The backward pass is collective and can itself be differentiated.
    """
    return _Moved.apply(rows, operator, True)  # type: ignore[no-untyped-call]


class _RankSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Tensor, sums: RankSums) -> Tensor:
        ctx.sums = sums
        whole = share.dtype == torch.int64
        parts = torch.stack(halves(share)) if whole else share.detach()
        total = np.array(parts.double().numpy(), order="C", ndmin=1)
        sums(total)
        added = torch.from_numpy(total)
        added = joined_halves(*added) if whole else added
        return added.view(share.shape).to(share.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Each rank's gradient is that of its share of the loss, so sum them as well.
        return _RankSum.apply(gradients[0], ctx.sums), None  # type: ignore[no-untyped-call]


@collective
def rank_sum(share: Tensor, sums: RankSums) -> Tensor:
    """Return the sum of a tensor over the ranks, in float64; its gradient is summed as well.

    Raises `InputError` within an activation checkpoint, and for complex numbers.
    """
    refuse_checkpoints()
    refuse_complex(share)
    return _RankSum.apply(share, sums)  # type: ignore[no-untyped-call]


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the upper and lower 32 bits of int64, whose sums and maxima float64 holds exactly."""
    return x >> 32, x & 0xFFFFFFFF


def joined_halves(high: Tensor, low: Tensor) -> Tensor:
    """Return int64 from both halves, which may be float64; the adjoint of `halves`."""
    return (high.long() << 32) + low.long()


def refuse_complex(x: Tensor) -> None:
    """Raise `InputError` for complex numbers, of which only real parts would be sent."""
    if x.is_complex():
        raise InputError(
            f"a tensor of dtype {x.dtype}: rows of complex numbers are not joined over ranks; use "
            "torch.view_as_real"
        )


def refuse_checkpoints() -> None:
    """Raise `InputError` if an activation checkpoint of torch calls.

    It would call what it runs once more in the backward pass, without the ranks.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code.co_filename == checkpoint.__file__:
            raise InputError(
                "torch.utils.checkpoint: what it runs again in the backward pass must not read or "
                "join rows of other ranks; leave it out, or use it for parts of a layer"
            )
        frame = frame.f_back
