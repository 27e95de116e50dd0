"""Rows by number: of a matrix at hand, any number of times, and those that other ranks own."""

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
        sums = memory.empty(gradients[0], ctx.shape).zero_()
        rows = gradients[0].reshape(math.prod(ctx.places.shape), ctx.shape[1]).contiguous()
        kernels.scatter_add_rows(
            memory.array(rows),
            ctx.places.reshape(-1),
            memory.array(sums),
            half="bfloat16" if rows.dtype == torch.bfloat16 else None,
        )
        return sums, None


def take_rows(x: Tensor, places: LocalIndices) -> Tensor:
    """Return ``x[places]``, differentiable in x: gradients of a row add up in order of the places.

    `x` is (rows, width) float32, float64, or bfloat16, whose sums are rounded with each; `places`
    (...) int32 are in main memory.
    """
    if memory_of(x).kernels is not kernels:
        return x[torch.from_numpy(places).to(x.device)]
    return _Take.apply(x, places)  # type: ignore[no-untyped-call]


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, places: LocalIndices | None, request: RowRequest, trace: TraceRecorder
    ) -> Tensor:
        ctx.places, ctx.request, ctx.trace = places, request, trace
        sent, rows = request.num_sent, x.detach().cpu().numpy()
        with trace.span("exchange.pairs", rows=sent, bytes=sent * rows.shape[1] * rows.itemsize):
            fetched = torch.from_numpy(request.rows(rows))
        return (fetched if places is None else take_rows(fetched, places)).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        places, request = ctx.places, ctx.request

        def add(rows: Tensor) -> Tensor:
            own = rows.numpy()
            if places is not None:
                own = np.zeros((len(request.owners), rows.shape[1]), own.dtype)
                kernels.scatter_add_rows(rows.numpy(), places, own)
            sent = request.num_from_others
            size = sent * own.shape[1] * own.itemsize
            with ctx.trace.span("exchange.pairs_backward", rows=sent, bytes=size):
                return torch.from_numpy(request.add_back(own))

        rows = gradients[0].contiguous().cpu()
        sums = add(rows) if places is None else arithmetic().added(add, rows)
        return sums.to(gradients[0].device), None, None, None


@collective
def fetch_rows(x: Tensor, request: RowRequest, trace: TraceRecorder) -> Tensor:
    """Return the rows (wanted, width) of a request; their gradient adds up at their owners.

    Collective, and so is its backward pass. `x` (num_local, width) are the rows of this rank.
    """
    return _Fetch.apply(x, None, request, trace)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class AskedRows:
    """Rows that this rank has asked for, of any ranks, each read any number of times.

    `x` are the rows that were fetched; or, where there is a `request`, this rank's own, of which
    each reading is fetched: then gradients of all ranks are one sum, before anything rounds them.
    """

    x: Tensor
    request: RowRequest | None
    trace: TraceRecorder

    @classmethod
    @collective
    def of(cls, x: Tensor, request: RowRequest | None, trace: TraceRecorder) -> "AskedRows":
        """Return the rows of a request among `x` (num_local, width); None: `x` are they."""
        if request is None or (arithmetic().sums_are_whole and torch.is_grad_enabled()):
            return cls(x, request, trace)
        return cls(fetch_rows(x, request, trace), None, trace)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "AskedRows":
        """Return what `change` makes of each row."""
        return replace(self, x=change(self.x))

    @collective
    def at(self, *places: LocalIndices) -> Sequence[Tensor]:
        """Return the rows at some places (m,) and others; its backward pass is collective."""
        joined = np.concatenate(places)
        if self.request is None:
            rows = take_rows(self.x, joined)
        else:
            rows = _Fetch.apply(self.x, joined, self.request, self.trace)  # type: ignore
        return torch.split(rows, [len(each) for each in places])
