"""Gradients of weights: their sum over ranks, and the limit of their norm."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.spmd import collective


@collective
def sum_gradients(grid: ProcessGrid, parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its sum over the block rows, in one message.

    Replicas of a block row hold equal gradients and are not added. A parameter without a gradient
    (none of its rows is here) contributes zero. Gradients that are whole already stay.
    """
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if arithmetic().sums_are_whole:
        return
    gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
    mine = torch.cat([gradient.reshape(-1) for gradient in gradients])
    host = mine.cpu()
    allreduce_sum(grid.layer, host.numpy())
    flat = host.to(mine.device)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def gradient_bytes(grid: ProcessGrid, parameters: Iterable[nn.Parameter]) -> int:
    """Return the bytes that this rank hands to `sum_gradients`; none where it is alone."""
    if grid.num_blocks == 1 or arithmetic().sums_are_whole:
        return 0
    return sum(each.numel() * each.element_size() for each in parameters if each.requires_grad)


@collective
def clip_gradients(
    grid: ProcessGrid,
    shared: Sequence[nn.Parameter],
    own: Sequence[nn.Parameter],
    max_norm: float,
) -> None:
    """Scale gradients so that their common norm is at most `max_norm`; 0 leaves them.

    Collective where there are `own` parameters.

    Parameters
    ----------
    shared
        With summed gradients, equal on all ranks.
    own
        With rows of this rank's nodes.
    max_norm
        Not negative.
    """
    if max_norm == 0:
        return
    norm = _norm(shared)
    if own:
        squares = _norm(own).double().square().cpu().reshape(1)
        allreduce_sum(grid.layer, squares.numpy())
        norm = (norm.double().square() + squares[0].to(norm.device)).sqrt().to(norm.dtype)
    torch.nn.utils.clip_grads_with_norm_([*shared, *own], max_norm, norm)


def _norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    return torch.nn.utils.get_total_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )
