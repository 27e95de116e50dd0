"""Addition of rows to chosen rows, as a torch function; its adjoint gathers them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.memory import memory_of
from hpcgnn.typing import LocalIndices

__all__ = ["add_rows"]


class _AddRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Sequence[LocalIndices], out: Tensor, *parts: Tensor) -> Tensor:
        ctx.rows, memory = rows, memory_of(out)
        total = out.clone(memory_format=torch.contiguous_format)
        with memory.ordered():
            sums = memory.array(total)
            for where, part in zip(rows, parts, strict=True):
                memory.kernels.scatter_add_rows(memory.array(part.contiguous()), where, sums)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, memory = gradients[0].contiguous(), memory_of(gradients[0])
        found = [memory.empty(gradient, (len(each), gradient.shape[1])) for each in ctx.rows]
        with memory.ordered():
            source = memory.array(gradient)
            for where, part in zip(ctx.rows, found, strict=True):
                memory.kernels.gather_rows(source, where, memory.array(part))
        return None, gradients[0], *found


def add_rows(out: Tensor, parts: Sequence[Tensor], rows: Sequence[LocalIndices]) -> Tensor:
    """Return `out` with each row i of part p added to its row ``rows[p][i]``.

    Not collective.

    Parameters
    ----------
    out
        (k, width) float32 or float64.
    parts
        Each (m_p, width) of the same dtype, where `out` is; they add up in this order.
    rows
        For each part (m_p,) int32 in [0, k), CuPy arrays for rows on a GPU; they may repeat, and
        then add up in order on the CPU, in any order on a GPU.
    """
    result: Tensor = _AddRows.apply(tuple(rows), out, *parts)  # type: ignore[no-untyped-call]
    return result
