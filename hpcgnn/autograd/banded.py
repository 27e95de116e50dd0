"""Linear maps of rows that are grouped by type, as a torch function."""

import itertools
from typing import Any

import torch
from torch import Tensor

from hpcgnn.typing import Offsets

__all__ = ["typed_linear"]


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
    """Return ``x[i] @ weight[p]`` for each row i of type p.

    Not collective.

    Parameters
    ----------
    x
        (rows, F) contiguous, ordered by type.
    weight
        (P, F, H), same dtype.
    starts
        (P + 1,) first row of each type, from 0 to the number of rows.

    Returns
    -------
    Tensor
        (rows, H).
    """
    result: Tensor = _TypedLinear.apply(x, weight, starts)  # type: ignore[no-untyped-call]
    return result
