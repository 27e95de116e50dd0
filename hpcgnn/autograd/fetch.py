"""Rows of tensors that other ranks own, for pairs of nodes that lie on two ranks."""

from typing import Any

import torch
from torch import Tensor

from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective


class _Fetch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, request: RowRequest) -> Tensor:
        ctx.request = request
        return torch.from_numpy(request.rows(x.detach().cpu().numpy())).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        added = ctx.request.add_back(gradient.contiguous().cpu().numpy())
        return torch.from_numpy(added).to(gradient.device), None


@collective
def fetch_rows(x: Tensor, request: RowRequest) -> Tensor:
    """Return the rows that a request asks for; its gradient adds up at their owners.

    Collective, and so is its backward pass.

    Parameters
    ----------
    x
        (num_local, width) rows of this rank.
    request
        Of other ranks' rows, and of own ones.

    Returns
    -------
    Tensor
        (wanted rows, width).
    """
    result: Tensor = _Fetch.apply(x, request)  # type: ignore[no-untyped-call]
    return result
