"""Layers in segments, of which only the first input waits for the backward pass.

A segment is computed again there, exchanges included, and then differentiated ("Training deep nets
with sublinear memory cost", Chen et al., 2016). Segments get shorter towards the end: when the last
ones are differentiated all inputs wait, and when the first one is, its own alone.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hpcgnn.comm import Moment
from hpcgnn.spmd import collective

_Gradients: TypeAlias = list[Tensor | None]


class Segment(NamedTuple):
    """Layers that run one after the other: `run` gives what the next segment takes.

    If it `runs_again` its inputs alone wait, else what its layers save.
    """

    run: Callable[..., Sequence[Tensor]]
    layers: Sequence[nn.Module]
    runs_again: bool = True

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those of the layers, each once."""
        return list(dict.fromkeys(each for layer in self.layers for each in layer.parameters()))


def segments_of(num_layers: int) -> list[range]:
    """Return consecutive segments, of which about √(2 L) inputs are in memory at one time.

    The last two have one layer each. Nobody reads the states that the last layer gives: they have
    no gradient, and its memory holds one more input.
    """
    ends, length = [num_layers], 1
    while ends[0] > 0:
        ends.insert(0, max(0, ends[0] - length))
        length += len(ends) > 2
    return [range(*pair) for pair in pairwise(ends)]


class _Ends(torch.autograd.Function):
    """A zero whose backward pass hands gradients to some tensors.

    `torch.autograd.grad` of the tensors themselves would hold them and their gradients to its end.
    """

    @staticmethod
    def forward(ctx: Any, gradients: _Gradients, *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return tensors[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_one: Tensor) -> Any:
        gradients = tuple(ctx.gradients)
        ctx.gradients.clear()
        return None, *gradients


class _Graph:
    """What the layers of a segment have saved; it does not hold their outputs."""

    def __init__(self, segment: Segment, inputs: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self._inputs = [
            tensor.detach().requires_grad_(needs)
            for tensor, needs in zip(inputs, needed, strict=True)
        ]
        self._parameters = segment.parameters
        self._gradients: _Gradients = []
        self._run = segment.run

    def outputs(self) -> list[Tensor]:
        """Return those of the layers, which run here."""
        with torch.enable_grad():
            outputs = self._run(*self._inputs)
            self._end = _Ends.apply(self._gradients, *outputs)  # type: ignore[no-untyped-call]
        return [each.detach() for each in outputs]

    def gradients(self, of_outputs: _Gradients) -> tuple[_Gradients, dict[Tensor, Tensor | None]]:
        """Return those of the inputs and of the parameters; those of the outputs are forgotten."""
        self._gradients.extend(of_outputs)
        of_outputs.clear()
        leaves = [each for each in (*self._inputs, *self._parameters) if each.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(leaves)
        if self._end.requires_grad:
            found = torch.autograd.grad(self._end, leaves, allow_unused=True)
        by_leaf = dict(zip(leaves, found, strict=True))
        return [by_leaf.pop(each, None) for each in self._inputs], by_leaf


class _Segments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, segments: Sequence[Segment], moment: Moment, count: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        values: Sequence[Tensor] = tensors[:count]
        ctx.moment, ctx.parameters, ctx.count = moment, _parameters(segments), count
        ctx.set_materialize_grads(False)
        # Inputs of a segment are freed when it has its gradients, unlike saved tensors. The first
        # ones are the caller's.
        ctx.save_for_backward(*values)
        ctx.waiting, ctx.ended = [], False
        needed: Sequence[bool] = ctx.needs_input_grad[3 : 3 + count]
        for index, segment in enumerate(segments):
            if segment.runs_again:
                ctx.waiting.append((segment, moment.now, values if index else None))
                values = segment.run(*values)
            else:
                graph = _Graph(segment, values, needed)
                values = graph.outputs()
                ctx.waiting.append(graph)
            needed = [True] * len(values)
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if ctx.ended:
            raise RuntimeError("what segments saved is freed by their backward pass; run it once")
        ctx.ended = True
        flowing, totals = list(gradients), dict.fromkeys(ctx.parameters)
        del gradients
        while ctx.waiting:
            graph = ctx.waiting.pop()
            if not isinstance(graph, _Graph):
                segment, begun, inputs = graph
                needed = [True] * len(inputs or ())
                if inputs is None:
                    inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[3 : 3 + ctx.count]
                graph = _Graph(segment, inputs, needed)
                del inputs
                with ctx.moment.again(begun):
                    graph.outputs()
            flowing, found = graph.gradients(flowing)
            for parameter, gradient in found.items():
                total = totals[parameter]
                totals[parameter] = gradient if total is None else total + gradient
        return None, None, None, *flowing, *totals.values()


@collective
def run_segments(
    segments: Sequence[Segment], inputs: Sequence[Tensor], moment: Moment
) -> tuple[Tensor, ...]:
    """Return what segments give for tensors, one after the other; differentiable once.

    Those that do so run again in the backward pass. Collective where they are, and so is its
    backward pass. Gradients reach the inputs and the parameters of the layers, and have the bits
    of a run that saves all: `moment`, of the ranks that it calls, begins again where it was.
    """
    made: tuple[Tensor, ...] = _Segments.apply(  # type: ignore[no-untyped-call]
        segments, moment, len(inputs), *inputs, *_parameters(segments)
    )
    return made


def _parameters(segments: Sequence[Segment]) -> list[nn.Parameter]:
    return list(dict.fromkeys(each for segment in segments for each in segment.parameters))
