"""Save only a few layer inputs for the backward pass, and recompute the others.

Layers are cut into segments of S, S - 1, ..., 2 and 1 layers. The input of each segment is saved,
and so is what its last layer saves beside its inputs. The backward pass runs a segment again up to
that layer, including exchanges, and differentiates its layers, the last one first. At most S inputs
of S (S + 1) / 2 layers are in memory at a time. That is optimal for binomial checkpointing
("Algorithm 799: revolve", Griewank and Walther, 2000) with no layer running more than twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hpcgnn.autograd.recompute import rematerialised
from hpcgnn.comm import RunPosition
from hpcgnn.spmd import collective

_Gradients: TypeAlias = list[Tensor | None]


class Step(NamedTuple):
    """One layer of a sequence: `run` returns the inputs of the next one."""

    run: Callable[..., Sequence[Tensor]]
    layer: nn.Module


def _segments(num_layers: int) -> list[range]:
    """Return consecutive segments; the last has one layer, each other one more than its next."""
    ends, length = [num_layers], 1
    while ends[0] > 0:
        ends.insert(0, max(0, ends[0] - length))
        length += 1
    return [range(*pair) for pair in pairwise(ends)]


_UNREAD, _WRITTEN = "unread", "written"


def is_unread(node: Any, output: int) -> bool:
    """Return whether only the running autograd `node` reads the gradient of an output.

    If so, it may overwrite it.
    """
    return output in node.metadata.get(_UNREAD, ())


def note_unread(node: Any, gradient: Tensor) -> None:
    """Record that nobody else holds a gradient that the running autograd `node` returns."""
    node.metadata[_WRITTEN] = gradient.data_ptr()


class _Starts(torch.autograd.Function):
    """Tensors whose gradients are appended to a list, and not held elsewhere as those of leaves."""

    @staticmethod
    def forward(
        ctx: Any, gradients: _Gradients, _one: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.gradients.extend(gradients)
        return None, None, *(None for _ in gradients)


class _Ends(torch.autograd.Function):
    """A zero whose backward pass passes given gradients to some tensors.

    `torch.autograd.grad` on the tensors themselves would hold them and their gradients to its end.
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


class _Flow(NamedTuple):
    """Gradients, and the indices of those that nobody else holds."""

    gradients: _Gradients
    unread: Sequence[int] = ()


class _Graph:
    """The autograd graph of a step. It holds no outputs, and its inputs only in `values`."""

    def __init__(self, step: Step, values: Sequence[Tensor], needed: Sequence[bool]) -> None:
        self.values = list(values)
        self._step, self._needed = step, needed
        self._start = torch.zeros((), requires_grad=True)
        self._of_inputs: _Gradients = []
        self._of_outputs: _Gradients = []

    def outputs(self) -> list[Tensor]:
        """Run the step, and return its outputs."""
        values, needed = self.values, self._needed
        # Detached, since weights of the step may be part of their history.
        detached = [value.detach() for value, needs in zip(values, needed, strict=True) if needs]
        means = [(value, partial(values.__getitem__, n)) for n, value in enumerate(values)]
        with torch.enable_grad(), rematerialised(*means):
            del means
            starts = iter(
                _Starts.apply(self._of_inputs, self._start, *detached)  # type: ignore[no-untyped-call]
                if detached
                else ()
            )
            outputs = self._step.run(
                *(
                    next(starts) if needs else value.detach()
                    for value, needs in zip(values, needed, strict=True)
                )
            )
            nodes: list[tuple[Any, int]] = [(x.grad_fn, x.output_nr) for x in outputs]
            self._nodes = nodes
            self._end = _Ends.apply(self._of_outputs, *outputs)  # type: ignore[no-untyped-call]
        return [tensor.detach() for tensor in outputs]

    def gradients(self, of_outputs: _Flow) -> tuple[_Flow, dict[Tensor, Tensor | None]]:
        """Return the gradients of the inputs and parameters, and free those of the outputs."""
        for index in of_outputs.unread:
            node, output = self._nodes[index]
            if node is not None:
                node.metadata.setdefault(_UNREAD, set()).add(output)
        self._of_outputs.extend(of_outputs.gradients)
        of_outputs.gradients.clear()
        parameters = [weight for weight in self._step.layer.parameters() if weight.requires_grad]
        of_parameters: Sequence[Tensor | None] = [None] * len(parameters)
        if self._end.requires_grad:
            leaves = [self._start, *parameters]
            _, *of_parameters = torch.autograd.grad(self._end, leaves, allow_unused=True)
        of_inputs = iter(self._of_inputs)
        gradients = [next(of_inputs, None) if needs else None for needs in self._needed]
        written = {node.metadata.get(_WRITTEN) for node, _ in self._nodes if node is not None}
        unread = [
            index
            for index, gradient in enumerate(gradients)
            if gradient is not None and gradient.data_ptr() in written
        ]
        return _Flow(gradients, unread), dict(zip(parameters, of_parameters, strict=True))


class _Waiting(NamedTuple):
    """A segment before its backward pass; `values` are its inputs, None for the first segment."""

    steps: Sequence[Step]
    start: Any
    values: Sequence[Tensor] | None
    last: _Graph | None


class _Steps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        steps: Sequence[Step],
        run_position: RunPosition,
        saves: bool,
        count: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        values: Sequence[Tensor] = tensors[:count]
        ctx.run_position, ctx.parameters, ctx.count = run_position, _parameters(steps), count
        ctx.set_materialize_grads(False)
        # Only the caller's inputs are saved tensors: those of a segment are freed after its use.
        ctx.save_for_backward(*values)
        ctx.waiting, ctx.ended = [], False
        needed: Sequence[bool] = ctx.needs_input_grad[4 : 4 + count]
        for part in _segments(len(steps)):
            segment = steps[part.start : part.stop]
            start, inputs, last = run_position.now, values if part.start else None, None
            if saves:
                *segment, ending = segment
            for step in segment:
                values = step.run(*values)
                needed = [True] * len(values)
            if saves:
                last = _Graph(ending, values, needed)
                values = last.outputs()
                last.values.clear()
                needed = [True] * len(values)
            ctx.waiting.append(_Waiting(segment, start, inputs, last))
            del inputs
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if ctx.ended:
            raise RuntimeError("the backward pass of steps frees what they saved; run it once")
        ctx.ended = True
        flow, totals = _Flow(list(gradients)), dict.fromkeys(ctx.parameters)
        del gradients
        while ctx.waiting:
            steps, start, values, last = ctx.waiting.pop()
            needed = [True] * len(values or ())
            if values is None:
                values, needed = ctx.saved_tensors, ctx.needs_input_grad[4 : 4 + ctx.count]
            graphs = []
            with ctx.run_position.replaying(start):
                for step in steps:
                    graphs.append(_Graph(step, values, needed))
                    values = graphs[-1].outputs()
                    needed = [True] * len(values)
            if last is not None:
                last.values.extend(values)
                graphs.append(last)
            del values, last
            while graphs:
                flow, of_parameters = graphs.pop().gradients(flow)
                for parameter, gradient in of_parameters.items():
                    total = totals[parameter]
                    totals[parameter] = gradient if total is None else total + gradient
        return None, None, None, None, *flow.gradients, *totals.values()


@collective
def run_steps(
    steps: Sequence[Step],
    inputs: Sequence[Tensor],
    run_position: RunPosition,
    *,
    saves: bool = True,
) -> tuple[Tensor, ...]:
    """Run steps one after the other on tensors, and return the last outputs; differentiable once.

    Most steps run again in the backward pass, and all do unless `saves`. Collective if the steps
    are, as is its backward pass. Gradients reach the inputs and the parameters of the layers, and
    are equal bit by bit to those of a run that saves everything: for a rerun, `run_position` of the
    ranks is set back.
    """
    results: tuple[Tensor, ...] = _Steps.apply(  # type: ignore[no-untyped-call]
        steps, run_position, saves, len(inputs), *inputs, *_parameters(steps)
    )
    return results


def _parameters(steps: Sequence[Step]) -> list[nn.Parameter]:
    return list(dict.fromkeys(weight for step in steps for weight in step.layer.parameters()))
