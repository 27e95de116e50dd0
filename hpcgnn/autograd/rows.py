"""Gather rows by number, local ones or those that other ranks own, with gradients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import LocalIndices

_COPIED = {torch.float32, torch.float64, torch.bfloat16}
"""Dtypes of the rows that `take_rows` reads."""


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, numbers: LocalIndices) -> Tensor:
        ctx.numbers, ctx.shape = numbers, x.shape
        memory, x = memory_of(x), x.contiguous()
        out = memory.empty(x, (numbers.size, x.shape[1]))
        kernels.gather_rows(memory.array(x), numbers.reshape(-1), memory.array(out))
        return out.view(*numbers.shape, x.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        memory = memory_of(gradients[0])
        sums = memory.empty(gradients[0], ctx.shape).zero_()
        rows = gradients[0].reshape(math.prod(ctx.numbers.shape), ctx.shape[1]).contiguous()
        kernels.scatter_add_rows(
            memory.array(rows),
            ctx.numbers.reshape(-1),
            memory.array(sums),
            half="bfloat16" if rows.dtype == torch.bfloat16 else None,
        )
        return sums, None


def take_rows(x: Tensor, numbers: LocalIndices) -> Tensor:
    """Return ``x[numbers]``, differentiable in x; gradients of a row are added in that order.

    `x` is (rows, width) float32, float64, or bfloat16, which rounds each sum; `numbers` (...) int32
    are in main memory.
    """
    if memory_of(x).kernels is not kernels:
        return x[torch.from_numpy(numbers).to(x.device)]
    return _Take.apply(x, numbers)  # type: ignore[no-untyped-call]


def rows_at(x: Tensor, positions: Tensor) -> Tensor:
    """Return ``x[positions]``, differentiable in x; positions (...) int64 are where `x` is.

    On the CPU, rows of floating point take half the time of torch's, forward and backward: results
    are in reused memory, and rows are copied whole.
    """
    # Functions of torch compute the rows of other classes.
    if type(x) is Tensor and x.is_cpu and x.ndim == 2 and x.dtype in _COPIED:
        return take_rows(x, positions.numpy().astype(np.int32))
    return x[positions]


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, numbers: LocalIndices | None, request: RowRequest, trace: TraceRecorder
    ) -> Tensor:
        ctx.numbers, ctx.request, ctx.trace = numbers, request, trace
        sent, rows = request.num_sent, x.detach().cpu().numpy()
        with trace.span("exchange.pairs", rows=sent, bytes=sent * rows.shape[1] * rows.itemsize):
            fetched = torch.from_numpy(request.rows(rows))
        return (fetched if numbers is None else take_rows(fetched, numbers)).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        numbers, request = ctx.numbers, ctx.request

        def add(rows: Tensor) -> Tensor:
            sums_of_rows = rows.numpy()
            if numbers is not None:
                sums_of_rows = np.zeros((len(request.owners), rows.shape[1]), sums_of_rows.dtype)
                kernels.scatter_add_rows(rows.numpy(), numbers, sums_of_rows)
            sent = request.num_from_others
            size = sent * sums_of_rows.shape[1] * sums_of_rows.itemsize
            with ctx.trace.span("exchange.pairs_backward", rows=sent, bytes=size):
                return torch.from_numpy(request.add_back(sums_of_rows))

        rows = gradients[0].contiguous().cpu()
        sums = add(rows) if numbers is None else arithmetic().added(add, rows)
        return sums.to(gradients[0].device), None, None, None


@collective
def fetch_rows(x: Tensor, request: RowRequest, trace: TraceRecorder) -> Tensor:
    """Return the requested rows (count, width); their gradients are summed at their owners.

    Collective, and so is its backward pass. `x` (num_local, width) are the rows of this rank.
    """
    return _Fetch.apply(x, None, request, trace)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class RequestedRows:
    """Rows that this rank has requested from any ranks, each of which may be read many times.

    `x` are the fetched rows. With a `request`, they are this rank's own rows instead, and each read
    fetches: the gradients of all ranks are then one sum, without rounding in between.
    """

    x: Tensor
    request: RowRequest | None
    trace: TraceRecorder

    @classmethod
    @collective
    def of(cls, x: Tensor, request: RowRequest | None, trace: TraceRecorder) -> "RequestedRows":
        """Return the requested rows of the ranks' `x` (num_local, width), `x` itself for None."""
        if request is None or (arithmetic().sums_are_whole and torch.is_grad_enabled()):
            return cls(x, request, trace)
        return cls(fetch_rows(x, request, trace), None, trace)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "RequestedRows":
        """Return the rows after `change`, which treats each row alone."""
        return replace(self, x=change(self.x))

    @collective
    def at(self, *numbers: LocalIndices) -> Sequence[Tensor]:
        """Return the rows of each array of numbers (m,); its backward pass is collective."""
        joined = np.concatenate(numbers)
        if self.request is None:
            rows = take_rows(self.x, joined)
        else:
            rows = _Fetch.apply(self.x, joined, self.request, self.trace)  # type: ignore
        return torch.split(rows, [len(part) for part in numbers])
