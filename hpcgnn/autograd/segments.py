"""Layers in segments, of which only the first input waits for the backward pass.

A segment is computed again there, exchanges included, and then differentiated ("Training deep nets
with sublinear memory cost", Chen et al., 2016). Segments get shorter towards the end: when the last
one is computed again all inputs wait, and when the first one is, its own alone.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hpcgnn.comm import Moment
from hpcgnn.spmd import collective


def segments_of(num_layers: int) -> list[range]:
    """Return consecutive segments, of which about √(2 L) inputs are in memory at one time."""
    ends, length = [num_layers], 1
    while ends[0] > 0:
        ends.insert(0, max(0, ends[0] - length))
        length += 1
    return [range(*pair) for pair in pairwise(ends)]


class _Segment(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        run: Callable[..., Sequence[Tensor]],
        moment: Moment,
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.run, ctx.parameters = run, tensors[count:]
        ctx.moment, ctx.begun = moment, moment.now
        ctx.save_for_backward(*tensors[:count])
        ctx.set_materialize_grads(False)
        return tuple(run(*tensors[:count]))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        wanted = ctx.needs_input_grad[3:]
        leaves = [
            each.detach().requires_grad_(needed)
            for each, needed in zip(ctx.saved_tensors, wanted, strict=False)
        ]
        with torch.enable_grad(), ctx.moment.again(ctx.begun):
            results = ctx.run(*leaves)
        ends = [pair for pair in zip(results, gradients, strict=True) if pair[1] is not None]
        del results
        every = [*leaves, *ctx.parameters]
        places = [place for place, needed in enumerate(wanted) if needed]
        values, of_values = zip(*ends, strict=True)
        found = torch.autograd.grad(
            values, [every[place] for place in places], of_values, allow_unused=True
        )
        by_place = dict(zip(places, found, strict=True))
        return None, None, None, *(by_place.get(place) for place in range(len(every)))


@collective
def run_segment(
    run: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor],
    layers: Sequence[nn.Module],
    moment: Moment,
) -> tuple[Tensor, ...]:
    """Return what `run` gives for tensors, differentiable; it runs again in the backward pass.

    Collective where `run` is, and so is its backward pass. Gradients reach the inputs and the
    parameters of the layers that it runs, and have the bits of a run that keeps all: `moment`, of
    the ranks that it calls, begins again where it was.
    """
    parameters = [each for layer in layers for each in layer.parameters()]
    made: tuple[Tensor, ...] = _Segment.apply(  # type: ignore[no-untyped-call]
        run, moment, len(inputs), *inputs, *parameters
    )
    return made
