"""Sum and clip the gradients of all ranks, and check that their weights are equal."""

import platform
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hpcgnn.autograd import arithmetic
from hpcgnn.comm import Communicator, ProcessGrid, allreduce_max, allreduce_sum, start_broadcast
from hpcgnn.errors import MachineError
from hpcgnn.spmd import collective
from hpcgnn.storage.checksums import array_crc


@collective
def sum_gradients(grid: ProcessGrid, parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its sum over block rows and groups, in one message.

    Replicas of a block row hold equal gradients and are not added; on GPUs, whose sums vary with
    their order, all replicas take those of the first. A parameter without a gradient on this rank
    contributes zero. In exact arithmetic, gradients are summed already and stay as they are.
    """
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if arithmetic().sums_are_whole or grid.learners.size == grid.replication == 1:
        return
    gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
    differ = grid.replication > 1 and any(gradient.is_cuda for gradient in gradients)
    if grid.learners.size == 1 and not differ:
        return
    summands = torch.cat([gradient.reshape(-1) for gradient in gradients])
    host = summands.cpu()
    allreduce_sum(grid.learners, host.numpy())
    if differ:
        start_broadcast(grid.replicas, host.numpy(), 0).wait()
    flat = host.to(summands.device)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


@torch.no_grad()
def weights_are_finite(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether no weight is infinite or NaN."""
    weights: list[Tensor] = [*parameters]
    if not weights:
        return True
    # One call for all weights: the check of scaled gradients, which multiplies them by 1 here.
    found = weights[0].new_zeros(1, dtype=torch.float32)
    torch._amp_foreach_non_finite_check_and_unscale_(weights, found, torch.ones_like(found))
    return not found.item()


def gradient_bytes(grid: ProcessGrid, parameters: Iterable[nn.Parameter]) -> int:
    """Return the bytes that `sum_gradients` sends from this rank; 0 for a single learner."""
    if grid.num_blocks * grid.groups == 1 or arithmetic().sums_are_whole:
        return 0
    return sum(
        weight.numel() * weight.element_size() for weight in parameters if weight.requires_grad
    )


@collective
def clip_gradients(
    grid: ProcessGrid,
    shared: Sequence[nn.Parameter],
    own: Sequence[nn.Parameter],
    max_norm: float,
) -> None:
    """Scale gradients so that their joint norm is at most `max_norm`; 0 leaves them unchanged.

    The gradients of `shared` parameters are summed and equal on all ranks; `own` parameters have
    rows of this rank's nodes, and the call is collective if there are any.
    """
    if max_norm == 0:
        return
    summed = [parameter.grad for parameter in shared if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(summed)
    if own:
        total = norm.double().square()
        for parameter in own:
            assert parameter.grad is not None
            squares = parameter.grad.square()
            total += arithmetic().sums_and_count(squares, grid.sum_over_blocks)[:-1].sum()
        norm = total.sqrt().to(norm.dtype)
    torch.nn.utils.clip_grads_with_norm_([*shared, *own], max_norm, norm)


@collective
def unequal(comm: Communicator, tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not equal on all ranks."""
    checksums = {name: array_crc(value.detach().cpu().numpy()) for name, value in tensors.items()}
    of_ranks = comm.allgather(checksums)
    names = dict.fromkeys(name for crcs in of_ranks for name in crcs)
    return [name for name in names if len({crcs.get(name) for crcs in of_ranks}) > 1]


@collective
def check_equal_weights(comm: Communicator, tensors: Mapping[str, Tensor], when: str) -> None:
    """Compare a checksum of `tensors`, by name, over the ranks; `when` appears in the message.

    Raises `MachineError` naming the ranks that differ from the majority.
    """
    crc = 0
    for _, value in sorted(tensors.items()):
        crc = array_crc(value.detach().cpu().numpy(), crc)
    extremes = np.array([crc, -crc], np.int64)
    allreduce_max(comm, extremes)
    if extremes.sum() == 0:
        return
    checksums = comm.allgather((crc, platform.node()))
    crcs = [crc for crc, _ in checksums]
    counts = sorted(((crcs.count(one), one) for one in set(crcs)), reverse=True)
    most, common = counts[0]
    # If no set of weights is on most ranks, it is unknown which are right.
    wrong = [
        f"rank {rank} on {host}"
        for rank, (crc, host) in enumerate(checksums)
        if crc != common or most == counts[1][0]
    ]
    others = f"than the other {most} rank(s)" if most > counts[1][0] else "than one another"
    raise MachineError(
        f"{', '.join(wrong)}: other weights {others} after {when}: memory or a processor there has "
        "failed, or processors differ (docs/sharp_bits.md); start the same command again without "
        "that host to go on from the last checkpoint"
    )
