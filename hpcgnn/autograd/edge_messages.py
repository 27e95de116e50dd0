"""Messages that edges bend, summed at their targets, a block of edges at a time.

Shape suffixes: R rows of sources, E edges, F features of an edge, N local nodes, H width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.fetch import fetch_rows
from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder

BLOCK_BYTES = 8 << 20
"""Of the messages that are in memory at one time."""


@dataclass(frozen=True, eq=False)
class EdgeInputs:
    """The edges of a rank's nodes, with features.

    Parameters
    ----------
    request
        Of the R different rows of their sources.
    sources
        (E,) int64 places among these.
    targets
        (E,) int64 local rows.
    features
        (E, F) in the type that models compute in.
    """

    request: RowRequest
    sources: Tensor
    targets: Tensor
    features: Tensor
    num_targets: int
    trace: TraceRecorder


class _EdgeMessages(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, edges: EdgeInputs) -> Tensor:
        ctx.edges = edges
        ctx.save_for_backward(rows, weight, bias)
        out = rows.new_zeros(edges.num_targets, rows.shape[1])
        for some in _blocks(edges, rows):
            out.index_add_(0, edges.targets[some], _inner(rows, weight, bias, edges, some).relu_())
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), edges = gradients, ctx.edges
        rows, weight, bias = ctx.saved_tensors
        to_rows, to_weight, to_bias = map(torch.zeros_like, (rows, weight, bias))
        for some in _blocks(edges, rows):
            # Computed again: kept, they would be the array that this function avoids.
            inner = _inner(rows, weight, bias, edges, some)
            message = gradient[edges.targets[some]].masked_fill_(inner <= 0, 0)
            to_rows.index_add_(0, edges.sources[some], message)
            to_weight.addmm_(message.T, edges.features[some])
            to_bias += message.sum(0)
        return to_rows, to_weight, to_bias, None


def _blocks(edges: EdgeInputs, rows: Tensor) -> Iterator[slice]:
    step = max(1, BLOCK_BYTES // max(1, rows.shape[1] * rows.element_size()))
    for start in range(0, len(edges.sources), step):
        yield slice(start, start + step)


def _inner(rows: Tensor, weight: Tensor, bias: Tensor, edges: EdgeInputs, some: slice) -> Tensor:
    inner = torch.addmm(bias, edges.features[some], weight.T)
    return inner.add_(rows[edges.sources[some]])


@collective
def sum_messages(edges: EdgeInputs, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``Σ_j relu(x_j + W e_ij + b)`` over the edges j -> i of each local node i.

    Collective, and so is its backward pass, which computes messages again. Messages are made in
    blocks of edges; what is kept are the rows of the sources.

    Parameters
    ----------
    x
        (N, H) rows of the local nodes.
    weight, bias
        W (H, F) and b (H,).

    Returns
    -------
    Tensor
        (N, H).
    """
    rows = fetch_rows(x, edges.request, edges.trace)
    return _EdgeMessages.apply(rows, weight, bias, edges)  # type: ignore[no-untyped-call]
