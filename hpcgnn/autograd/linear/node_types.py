"""Linear maps of rows by their type, as torch functions."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import like_rows
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.typing import Offsets


class _LinearByType(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Sequence[Tensor], num_rows: int, *tensors: Tensor) -> Tensor:
        parts, exact, biases = _thirds(tensors)
        ctx.rows = rows
        weights = [like_rows(*pair) for pair in zip(exact, parts, strict=True)]
        ctx.save_for_backward(*parts, *weights)
        # One type after another: only the result is as large as all nodes.
        out = _empty_rows(weights[0], num_rows)
        for where, part, weight, bias in zip(rows, parts, weights, biases, strict=True):
            mapped = arithmetic().affine(part, weight.t(), bias)
            out.index_copy_(0, where, mapped)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, count = ctx.saved_tensors, len(ctx.rows)
        parts, weights = saved[:count], saved[count:]
        for_parts: list[Tensor | None] = []
        for_weights, for_biases = [], []
        for number, where in enumerate(ctx.rows):
            buffer = _empty_rows(weights[number], len(where))
            of_type = torch.index_select(gradients[0], 0, where, out=buffer)
            # The parts come after two other arguments: the rows and their number.
            needs_part = ctx.needs_input_grad[2 + number]
            for_parts.append(arithmetic().product(of_type, weights[number]) if needs_part else None)
            for_weights.append(arithmetic().contract(of_type, parts[number]))
            for_biases.append(arithmetic().total(of_type))
        return None, None, *for_parts, *for_weights, *for_biases


def _empty_rows(weight: Tensor, num_rows: int) -> Tensor:
    """Return uninitialised rows for the result of a map."""
    return memory_of(weight).empty(weight, (num_rows, len(weight)))


def _thirds(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
    count = len(tensors) // 3
    return tuple(tensors[start : start + count] for start in range(0, len(tensors), count))


def linear_by_type(
    rows: Sequence[Tensor],
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> Tensor:
    """Return ``x Wᵀ + b`` with the W and b of each node's type, differentiable in all three.

    A rank without nodes of a type has a gradient of zeros for its map. For each type, at least one,
    `rows` (n_t,) int64 are its nodes in the result (sum of n_t, out_width), so that every row
    belongs to one type; `parts` (n_t, F_t) float32 or float64, or bfloat16 beside float32 weights,
    are their x; F_t may be 0. Weights are (out_width, F_t) and biases (out_width,).
    """
    num_rows = sum(len(numbers) for numbers in rows)
    return _LinearByType.apply(  # type: ignore[no-untyped-call]
        tuple(rows), num_rows, *parts, *weights, *biases
    )


class _TypedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, starts: Offsets) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.starts = starts
        out = x.new_empty(x.shape[0], weight.shape[2])
        for kind, low, high in _ranges(starts):
            torch.mm(x[low:high], weight[kind], out=out[low:high])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        for_input, for_weight = torch.empty_like(x), torch.zeros_like(weight)
        for kind, low, high in _ranges(ctx.starts):
            torch.mm(gradient[low:high], weight[kind].t(), out=for_input[low:high])
            torch.mm(x[low:high].t(), gradient[low:high], out=for_weight[kind])
        return for_input, for_weight, None


def _ranges(starts: Offsets) -> list[tuple[int, int, int]]:
    bounds = starts.tolist()
    pairs = enumerate(itertools.pairwise(bounds))
    return [(kind, low, high) for kind, (low, high) in pairs if low < high]


def typed_linear(x: Tensor, weight: Tensor, starts: Offsets) -> Tensor:
    """Return (rows, H): ``x[i] @ weight[p]`` for each row i of type p.

    `x` is (rows, F) contiguous, ordered by type, `weight` (P, F, H) of the same dtype, `starts` (P
    + 1,) the first row of each type, from 0 to the number of rows.
    """
    return _TypedLinear.apply(x, weight, starts)  # type: ignore[no-untyped-call]
