"""Rows of tensors that other ranks own, for pairs of nodes that lie on two ranks."""

from typing import Any

import torch
from torch import Tensor

from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder


class _FetchGhosts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, request: RowRequest, trace: TraceRecorder) -> Tensor:
        ctx.request, ctx.trace = request, trace
        sent, rows = request.num_sent, x.detach().cpu().numpy()
        with trace.span("exchange.pairs", rows=sent, bytes=sent * rows.shape[1] * rows.itemsize):
            return torch.from_numpy(request.rows(rows)).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        sent, rows = ctx.request.num_from_others, gradient.contiguous().cpu().numpy()
        size = sent * rows.shape[1] * rows.itemsize
        with ctx.trace.span("exchange.pairs_backward", rows=sent, bytes=size):
            return torch.from_numpy(ctx.request.add_back(rows)).to(gradient.device), None, None


@collective
def fetch_rows(x: Tensor, request: RowRequest, trace: TraceRecorder) -> Tensor:
    """Return the rows (wanted, width) of a request; their gradient adds up at their owners.

    Collective, and so is its backward pass. `x` (num_local, width) are the rows of this rank.
    """
    return _FetchGhosts.apply(x, request, trace)  # type: ignore[no-untyped-call]
