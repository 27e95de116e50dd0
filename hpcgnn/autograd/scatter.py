"""Addition of rows to chosen rows, as a torch function; its adjoint gathers them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn import kernels
from hpcgnn.typing import LocalIndices

__all__ = ["add_rows"]


class _AddRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, values: Tensor, rows: LocalIndices) -> Tensor:
        ctx.rows = rows
        total = out.clone(memory_format=torch.contiguous_format)
        kernels.scatter_add_rows(values.contiguous().numpy(), rows, total.numpy())
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        gradient = gradients[0].contiguous().numpy()
        gathered = np.empty((len(ctx.rows), gradient.shape[1]), gradient.dtype)
        kernels.gather_rows(gradient, ctx.rows, gathered)
        return gradients[0], torch.from_numpy(gathered), None


def add_rows(out: Tensor, values: Tensor, rows: LocalIndices) -> Tensor:
    """Return `out` with ``values[i]`` added to its row ``rows[i]``.

    Not collective.

    Parameters
    ----------
    out
        (k, width) float32 or float64, on the CPU.
    values
        (m, width) of the same dtype.
    rows
        (m,) int32 in [0, k); may repeat, and then adds up in order.
    """
    result: Tensor = _AddRows.apply(out, values, rows)  # type: ignore[no-untyped-call]
    return result
