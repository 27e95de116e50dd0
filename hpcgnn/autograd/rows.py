"""Rows by number: of a matrix at hand, any number of times, and those that other ranks own."""

import math
from typing import Any

import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of
from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import LocalIndices


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: LocalIndices) -> Tensor:
        ctx.places, ctx.shape = places, x.shape
        memory, x = memory_of(x), x.contiguous()
        out = memory.empty(x, (places.size, x.shape[1]))
        kernels.gather_rows(memory.array(x), places.reshape(-1), memory.array(out))
        return out.view(*places.shape, x.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        memory = memory_of(gradients[0])
        sums = gradients[0].new_zeros(ctx.shape)
        rows = gradients[0].reshape(math.prod(ctx.places.shape), ctx.shape[1]).contiguous()
        kernels.scatter_add_rows(memory.array(rows), ctx.places.reshape(-1), memory.array(sums))
        return sums, None


def take_rows(x: Tensor, places: LocalIndices) -> Tensor:
    """Return ``x[places]``, differentiable in x: gradients of a row add up in order of the places.

    `x` is (rows, width) float32 or float64; `places` (...) int32 are in main memory.
    """
    if memory_of(x).kernels is not kernels:
        return x[torch.from_numpy(places).to(x.device)]
    return _Take.apply(x, places)  # type: ignore[no-untyped-call]


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
