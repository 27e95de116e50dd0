"""Aggregation of node rows on a GPU as a torch function: the primal and its adjoint."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd.crossing import as_device_array, as_tensor, shared_stream
from hpcgnn.kernels.cuda.device import DeviceArray
from hpcgnn.spmm.device import DeviceSpMM

__all__ = ["aggregate_on_device"]


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, operator: DeviceSpMM) -> Tensor:
        ctx.operator = operator
        return _applied(operator.apply, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return _applied(ctx.operator.apply_transpose, gradient), None


def _applied(product: Callable[[DeviceArray], DeviceArray], x: Tensor) -> Tensor:
    # torch differentiates in a thread of its own: the stream is that of the thread that runs.
    with shared_stream():
        return as_tensor(product(as_device_array(x.contiguous())))


def aggregate_on_device(operator: DeviceSpMM, x: Tensor) -> Tensor:
    """Return ``A x``; its gradient is ``Aᵀ g``.

    Collective, and so is its backward pass: all ranks must differentiate the same expression. The
    backward pass sends messages from torch's thread, which MPI must have been started to allow.

    Parameters
    ----------
    operator
        The matrix A, on the GPU of `x`.
    x
        (input rows, width) float32 or float64, on a GPU; neither it nor the result is copied.

    Returns
    -------
    Tensor
        (result rows, width), same dtype.
    """
    result: Tensor = _Aggregate.apply(x, operator)  # type: ignore[no-untyped-call]
    return result
