"""Messages whose reductions and gradients have the same bits for any distribution of nodes.

All edges of a rank are computed at once, and again in the backward pass. The module's products and
sums over edges use the `Arithmetic` of the run.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hpcgnn.autograd.activation_checkpointing import Step, run_steps
from hpcgnn.autograd.messages.reductions import REDUCTIONS, EdgeBlock, gradients_of
from hpcgnn.autograd.rows import take_rows
from hpcgnn.messages import ExactMessages
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray


class _SourceRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, operator: ExactMessages, kept: list[FloatArray] | None
    ) -> Tensor:
        ctx.operator = operator
        return torch.from_numpy(operator.source_rows(rows.detach().contiguous().numpy(), kept))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        of_edges = gradients[0].contiguous().numpy()
        return torch.from_numpy(ctx.operator.sums_of_sources(of_edges)), None, None


class _Reduced(torch.autograd.Function):
    """Reductions (N, M each) of messages (E, M), which are sorted by target."""

    @staticmethod
    def forward(
        ctx: Any, names: tuple[str, ...], block: Callable[..., EdgeBlock], *tensors: Tensor
    ) -> Tensor:
        ctx.block = block(*tensors)
        ctx.reductions = [REDUCTIONS[name](ctx.block.num_rows, ctx.block) for name in names]
        for reduction in ctx.reductions:
            reduction.add(ctx.block)
        return torch.cat([reduction.result() for reduction in ctx.reductions], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parts = gradients[0].chunk(len(ctx.reductions), dim=1)
        for reduction, part in zip(ctx.reductions, parts, strict=True):
            reduction.start_backward(part)
        return None, None, *gradients_of(ctx.reductions, ctx.block)


@collective
def reduce_exactly(
    operator: ExactMessages,
    module: nn.Module,
    names: tuple[str, ...],
    inputs: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> tuple[Tensor, Tensor | None]:
    """Return the result of `reduce_messages`.

    `inputs` are rows of targets, rows of sources after `EdgeModule.arrived`, and states.
    """
    kept: list[FloatArray] | None = (
        [] if operator.sources.keeps and torch.is_grad_enabled() else None
    )
    order, ends = torch.from_numpy(operator.order), torch.from_numpy(operator.ends).long()
    positions = [index for index, rows in enumerate(inputs) if rows is not None]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        operands: list[Tensor | None] = [None, None, None]
        for position, tensor in zip(positions, tensors, strict=True):
            if position == 0:
                operands[0] = take_rows(tensor, operator.ends)
            elif position == 1:
                operands[1] = _SourceRows.apply(  # type: ignore[no-untyped-call]
                    tensor, operator, kept
                )
            else:
                operands[2] = tensor[order]
        returned = module(*operands)
        message, score, states = (
            (returned, None, None) if isinstance(returned, Tensor) else returned
        )
        count = operator.shape[0]
        block = partial(EdgeBlock, slice(0, count), count, ends)
        reduced: Tensor = _Reduced.apply(  # type: ignore[no-untyped-call]
            names, block, message, score
        )
        if states is None:
            return (reduced,)
        return reduced, torch.empty_like(states).index_copy(0, order.long(), states)

    present = [rows for rows in inputs if rows is not None]
    reduced, *states = run_steps([Step(run, module)], present, operator.run_position, saves=False)
    return reduced, states[0] if states else None
