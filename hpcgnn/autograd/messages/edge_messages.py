"""Messages that a torch module computes for edges, reduced at their targets, by blocks of edges.

Edges with sources on this rank are computed while the rows of other ranks are under way, others
when their rows arrive; see `hpcgnn.messages`.

Shape suffixes: N local nodes, R rows of sources, E edges, B edges of a block, T targets of a block,
F columns of an edge's state, M columns of a message, K scores of an edge.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hpcgnn.autograd.activation_checkpointing import is_unread, note_unread
from hpcgnn.autograd.cupy_bridge import as_tensor
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.messages.chain import Chain, Ends, Room
from hpcgnn.autograd.messages.edge_chain import ChainEdges, EdgeChain
from hpcgnn.autograd.messages.exact_messages import reduce_exactly
from hpcgnn.autograd.messages.pushed_messages import BackwardPush, ForwardPush, Pushed
from hpcgnn.autograd.messages.reductions import (
    REDUCTIONS,
    BlockTargets,
    EdgeBlock,
    Reduction,
    Sum,
    gradients_of,
)
from hpcgnn.autograd.numerics.mixed import widened
from hpcgnn.autograd.rows import take_rows
from hpcgnn.messages import EdgePart, ExactMessages, Fetched, MessageOperator
from hpcgnn.sparse import MAIN
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray, LocalIndices

_PUSHED = (
    "messages that an exchange pushes are summed, so that {}: set exchange.method = 'aware', or "
    "ask for Aggregation.MESSAGES"
)
BLOCK_BYTES = 4 << 20
"""The size in bytes of the rows and states that a block of edges gathers."""
DEVICE_BLOCK_BYTES = 256 << 20
"""The same on a GPU, whose caches are small and whose launches take long."""
KEPT_BLOCK = 1 << 14
"""Blocks of at most so many edges are made once, not in each pass; on a GPU all blocks are."""


@dataclass(frozen=True, eq=False)
class EdgeInputs:
    """The edges that end at a rank's nodes, in the operator's order.

    `replacement` (E, F) are features that replace those of the operator.
    """

    operator: MessageOperator
    replacement: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """Features (E, F) in the dtype that models compute in, in the memory of node rows."""
        stored = self.stored
        return stored.float() if stored.dtype == torch.float16 else stored

    @property
    def stored(self) -> Tensor:
        """The features, in float16 if the store has that: use as `states` of `reduce_messages`."""
        return _known(self.operator, "features") if self.replacement is None else self.replacement

    def with_columns(self, rows: Tensor) -> Tensor:
        """Return the features with `rows` (E, any width), in the order of the store, appended."""
        fixed, numbers = _known(self.operator, "features"), self.operator.numbers
        columns = rows if numbers is None else rows[torch.from_numpy(numbers)]
        return torch.cat([fixed, columns.to(fixed)], dim=1)

    def in_store_order(self, rows: Tensor) -> Tensor:
        """Return rows (E, any width) of the edges in the order of the store."""
        positions = self.operator.positions
        return rows if positions is None else take_rows(rows, positions)

    @property
    def targets(self) -> Tensor:
        """The targets (E,) of the edges, int64 local rows."""
        return _known(self.operator, "targets")

    @property
    def degrees(self) -> Tensor:
        """The numbers of edges (N,) int64 that end at the nodes."""
        return _known(self.operator, "degrees")

    def carry(self, before: "EdgeInputs", states: Tensor) -> Tensor:
        """Return the states of these edges, from the states (any, F) of the layer `before`.

        With active sets, that layer has more edges.
        """
        positions = self.operator.positions_in(before.operator)
        return states if positions is None else take_rows(states, positions)


_uploaded: WeakKeyDictionary[MessageOperator, dict[str, Tensor]] = WeakKeyDictionary()
"""Arrays of operators on GPUs, by name."""


def _known(operator: MessageOperator, name: str) -> Tensor:
    """Return an array of an operator as a tensor in the memory of its rows."""
    if operator.memory is MAIN:
        return torch.from_numpy(getattr(operator, name))
    uploaded = _uploaded.setdefault(operator, {})
    if name not in uploaded:
        uploaded[name] = as_tensor(operator.memory.put(getattr(operator, name)))
    return uploaded[name]


class EdgeResult(NamedTuple):
    """The result of a message module that returns more than messages.

    `message` is (B, M). `score` is (B, K) and needed for the reduction ``softmax``; K divides M.
    `states` (B, any width) are the new states of the edges.
    """

    message: Tensor
    score: Tensor | None = None
    states: Tensor | None = None


class EdgeModule(nn.Module):
    """A message module with additional information for its execution."""

    width: int = 0
    """Columns of the widest array that it makes for an edge; blocks are cut to fit it."""
    keeps: bool = False
    """Whether to save the results of a chain's maps for the backward pass, not recompute them."""

    def chain(self) -> Chain | None:
        """Return the module's computation as a chain, which fused kernels can run, or None.

        The chain's input is the states, its ends are the rows of targets and sources (`arrived`).
        Its result is the messages and, if it adds the states, also the new states.
        """
        return None

    def arrived(self, rows: Tensor) -> Tensor:
        """Return a map of the rows (R, any width) of sources, which edges then read.

        It is computed after the rows were fetched, once for each row. A module can so map rows
        before or after they are sent, whichever is narrower.
        """
        return rows


class _Inputs(NamedTuple):
    targets: Tensor | None
    sources: Tensor | None
    states: Tensor | None


@dataclass(frozen=True, eq=False)
class _Block(BlockTargets):
    """A block of consecutive edges of a part.

    `target_ids` (B,) int32 are local nodes, `sources` (B,) int32 rows of the array of the part's
    sources, `edges` the slice of all edges.
    """

    target_ids: Tensor
    sources: Tensor
    edges: slice

    def on(self, device: torch.device) -> "_Block":
        """Return the block with its index arrays on a device."""
        if device.type == "cpu":
            return self
        return replace(
            self,
            rows=self.rows if isinstance(self.rows, slice) else self.rows.to(device),
            targets=self.targets.to(device),
            target_ids=self.target_ids.to(device),
            sources=self.sources.to(device),
        )

    def gathered(self, inputs: _Inputs) -> _Inputs:
        """Return the module's arguments, in the precision of its weights."""
        targets, sources, states = inputs
        return _Inputs(
            None if targets is None else widened(self.pick(targets)),
            None if sources is None else widened(sources.index_select(0, self.sources)),
            None if states is None else widened(_as_rows(states[self.edges])),
        )

    def in_chain(self, inputs: _Inputs) -> ChainEdges:
        """Return the inputs of a chain, or the gradients that it adds to."""
        targets, sources, states = inputs
        ends = Ends(
            targets,
            None if targets is None else self.target_ids,
            sources,
            None if sources is None else self.sources,
        )
        rows = None if states is None else _as_rows(states[self.edges])
        return ChainEdges(ends, rows, self.edges)

    def of(self, result: EdgeResult) -> EdgeBlock:
        """Return the messages in the form that reductions take."""
        # Widen them: a sum in 16 bits would round with each edge.
        message = widened(result.message.detach())
        score = None if result.score is None else widened(result.score.detach())
        return EdgeBlock(self.rows, self.num_rows, self.targets, message, score)


def _as_rows(states: Tensor) -> Tensor:
    """Return states in bfloat16 if they are stored in float16."""
    return states.to(torch.bfloat16) if states.dtype == torch.float16 else states


_kept_blocks: WeakKeyDictionary[EdgePart, dict[tuple[Any, ...], list[_Block]]] = WeakKeyDictionary()
"""Blocks of parts that are not made again in each epoch."""


class _Cuts(NamedTuple):
    """Cuts parts into blocks of `step` edges, with index arrays on the `device` of node rows."""

    step: int
    device: torch.device

    @classmethod
    def of(cls, module: nn.Module, inputs: _Inputs, run: EdgeChain | None) -> "_Cuts":
        """Return the cuts for the arguments of a module."""
        present = [tensor for tensor in inputs if tensor is not None]
        device = present[0].device if present else torch.device("cpu")
        if run is not None:
            return cls(run.block_rows, device)
        inner = module.width if isinstance(module, EdgeModule) else 0
        columns = inner + sum(tensor.shape[1] for tensor in present)
        size = columns * max((tensor.element_size() for tensor in present), default=1)
        limit = DEVICE_BLOCK_BYTES if device.type == "cuda" else BLOCK_BYTES
        return cls(max(1, limit // max(1, size)), device)

    def blocks(self, part: EdgePart, sources: LocalIndices, least: int = 0) -> Iterable[_Block]:
        """Return the blocks of a part; one empty block if it has no edges and `least` is 1."""
        # All steps that are long enough give the same single block.
        step = min(self.step, max(part.block.nnz, 1))
        blocks = (block.on(self.device) for block in _cut(part, sources, step, least))
        if self.device.type == "cpu" and part.block.nnz > min(step, KEPT_BLOCK):
            return blocks
        cached, key = _kept_blocks.setdefault(part, {}), (step, self.device, id(sources), least)
        if key not in cached:
            cached[key] = list(blocks)
        return cached[key]


def _cut(part: EdgePart, sources: LocalIndices, step: int, least: int) -> Iterator[_Block]:
    indptr, stored, total = part.block.indptr, part.block.rows, part.block.nnz
    for start in range(0, max(total, least), step):
        stop = min(start + step, total)
        first = int(np.searchsorted(indptr, start, side="right")) - 1 if stop else 0
        last = int(np.searchsorted(indptr, stop)) if stop else 0
        counts = np.diff(indptr[first : last + 1])
        if last > first:
            # Other blocks have the remaining edges of the first and the last row.
            counts[0] -= start - indptr[first]
            counts[-1] -= indptr[last] - stop
        rows = slice(first, last)
        nodes = np.arange(first, last, dtype=np.int32) if stored is None else stored[rows]
        yield _Block(
            rows if stored is None else torch.from_numpy(stored[rows].astype(np.int64)),
            last - first,
            torch.from_numpy(np.repeat(np.arange(last - first), counts)),
            torch.from_numpy(np.repeat(nodes.astype(np.int32, copy=False), counts)),
            torch.from_numpy(sources[start:stop]),
            slice(part.edges.start + start, part.edges.start + stop),
        )


def _chain_of(
    module: nn.Module, inputs: _Inputs, totals: Mapping[int, Tensor] | None = None
) -> EdgeChain | None:
    """Return a module's chain if the kernels can run it, else None."""
    chain = module.chain() if isinstance(module, EdgeModule) else None
    like = next((tensor for tensor in inputs if tensor is not None), None)
    if chain is None or like is None or not chain.fits(like):
        return None
    return EdgeChain(chain, like, totals)


def _seen(module: nn.Module, sources: Tensor | None) -> Tensor | None:
    """Return rows of sources as edges read them, see `EdgeModule.arrived`."""
    if sources is None or not isinstance(module, EdgeModule):
        return sources
    return module.arrived(sources)


def _result(returned: Tensor | EdgeResult) -> EdgeResult:
    return returned if isinstance(returned, EdgeResult) else EdgeResult(returned)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        operator: MessageOperator,
        module: nn.Module,
        names: tuple[str, ...],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.operator, ctx.module = operator, module
        # With hooks, saved tensors are not the parameters themselves, but a chain finds gradients
        # by the identity of parameters: keep these.
        ctx.learned = tensors[3:]
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        forward = _Forward(operator, module, names, _Inputs(*tensors[:3]))
        with _ordered(tensors):
            ctx.kept = forward.run(for_backward=any(ctx.needs_input_grad))
        ctx.reductions = forward.reductions
        results = [reduction.result() for reduction in forward.reductions]
        reduced = torch.cat(results, dim=1) if len(results) > 1 else results[0]
        like = next((tensor for tensor in tensors[:2] if tensor is not None), reduced)
        return reduced.to(like.dtype), forward.states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_reduced: Tensor | None, to_states: Tensor | None) -> Any:
        reductions = ctx.reductions if to_reduced is not None else []
        if to_reduced is not None:
            parts = to_reduced.chunk(len(reductions), dim=1)
            for reduction, part in zip(reductions, parts, strict=True):
                reduction.start_backward(part)
        tensors = *ctx.saved_tensors[:3], *ctx.learned
        needs_gradient, kept, ctx.kept = ctx.needs_input_grad[3:], ctx.kept, None
        backward = _Backward(
            ctx.module, reductions, to_states, tensors, needs_gradient, unread=is_unread(ctx, 1)
        )
        with _ordered(tensors):
            backward.run(ctx.operator, kept, to_reduced)
        totals = backward.totals()
        if totals[2] is not None:
            note_unread(ctx, totals[2])
        return None, None, None, *totals


def _ordered(tensors: Sequence[Tensor | None]) -> AbstractContextManager[None]:
    """Return a context in which exchanges of rows run in the order of torch's work."""
    present = [tensor for tensor in tensors if tensor is not None]
    return memory_of(present[0]).ordered() if present else nullcontext()


class _Kept(NamedTuple):
    """Data saved for the backward pass: fetched `rows`, and the results of a chain's maps."""

    rows: Fetched
    room: Room | None
    pushed: Pushed | None = None


class _Forward:
    """Computes the reductions of messages, and the new states of the edges."""

    def __init__(
        self,
        operator: MessageOperator,
        module: nn.Module,
        names: tuple[str, ...],
        inputs: _Inputs,
    ) -> None:
        self._operator, self._module, self._names = operator, module, names
        self._inputs, self._num_targets = inputs, operator.shape[0]
        self._chain = _chain_of(module, inputs)
        self._room: Room | None = None
        self.reductions: list[Reduction] = []
        self.states: Tensor | None = None

    @collective
    def run(self, *, for_backward: bool) -> _Kept:
        """Compute all messages; return the data to keep for the backward pass."""
        operator, inputs = self._operator, self._inputs
        if self._chain is not None and for_backward:
            always = isinstance(self._module, EdgeModule) and self._module.keeps
            self._room = self._chain.keep(operator.num_edges, always=always)
        if operator.pushed is None:
            return _Kept(self._add_own(keep=for_backward), self._room)
        like = next(tensor for tensor in inputs if tensor is not None)
        push = ForwardPush(operator.pushed, inputs.targets, like, operator.trace)
        start = partial(push.start, self._summed, self._total, operator.run_position)
        # The stages of a sequential push need the buffers of a fetch, so that it must end first.
        sequential = not operator.sources.keeps
        pushed = None if sequential else start(keep=for_backward)
        rows = self._add_own(keep=for_backward)
        pushed = start(keep=False) if pushed is None else pushed
        push.finish()
        return _Kept(rows, self._room, pushed)

    def _summed(self, part: EdgePart, targets: Tensor | None) -> Sum:
        stage = copy(self)
        stage._num_targets, stage.reductions = part.block.shape[0], []
        stage._inputs = self._inputs._replace(targets=targets)
        stage._add(part, self._inputs.sources, 1)
        if stage.states is not None:
            raise ValueError(_PUSHED.format("edges have no states"))
        return stage._sum

    def _total(self) -> Tensor:
        return self._sum.total

    @property
    def _sum(self) -> Sum:
        (reduction,) = self.reductions
        assert isinstance(reduction, Sum)
        return reduction

    @collective
    def _add_own(self, *, keep: bool) -> Fetched:
        """Add the messages of edges that end at this rank's rows."""
        operator, sources = self._operator, self._inputs.sources
        if sources is None:
            for least, part in zip((1, *[0] * len(operator.stages)), operator.parts, strict=True):
                self._add(part, None, least)
            return Fetched(None)
        return self._fetch(sources, keep=keep and operator.sources.keeps)

    @collective
    def _fetch(self, sources: Tensor, *, keep: bool) -> Fetched:
        operator, trace = self._operator, self._operator.trace
        memory = memory_of(sources)
        rows = memory.array(sources.contiguous())
        fetch = operator.sources.start_fetch(rows, keep=keep)
        instant = operator.run_position.now
        with trace.span("interior.forward"):
            # Without edges, one empty block determines the widths of the module's results.
            self._add(operator.own, sources, 1)
        arrived_rows = []
        for index, part in enumerate(operator.stages):
            with trace.span("wait.forward"):
                arrived = operator.sources.arrived(fetch, index, rows.dtype)
            with trace.span("boundary.forward"):
                self._add(part, memory.tensor(arrived), 0)
            if keep:
                arrived_rows.append(arrived)
        return Fetched(arrived_rows if keep else None, instant)

    def _add(self, part: EdgePart, sources: Tensor | None, least: int) -> None:
        inputs = self._inputs._replace(sources=_seen(self._module, sources))
        cuts = _Cuts.of(self._module, inputs, self._chain)
        for block in cuts.blocks(part, part.block.indices, least):
            result = self._result(block, inputs)
            messages = block.of(result)
            if not self.reductions:
                self.reductions = [
                    REDUCTIONS[name](self._num_targets, messages) for name in self._names
                ]
            for reduction in self.reductions:
                reduction.add(messages)
            if result.states is not None:
                like = result.states if inputs.states is None else _as_rows(inputs.states[:0])
                self._room_for_states(like, result.states.shape[1])[block.edges] = result.states

    def _result(self, block: _Block, inputs: _Inputs) -> EdgeResult:
        if self._chain is None:
            return _result(self._module(*block.gathered(inputs)))
        chain_input, out = block.in_chain(inputs), None
        if self._chain.gives_states and inputs.states is not None:
            like = _as_rows(inputs.states[:0])
            out = self._room_for_states(like, self._chain.width)[block.edges]
        return EdgeResult(widened(self._chain.messages(chain_input, self._room, out)))

    def _room_for_states(self, like: Tensor, width: int) -> Tensor:
        if self.states is None:
            shape = self._operator.num_edges, width
            self.states = memory_of(like).empty(like, shape)
        return self.states


class _Backward:
    """Computes the gradients of one call, recomputing one block after the other.

    `reductions` have their gradients set; there are none if their results need no gradient.
    `tensors` are the arguments, parameters last; `needs_gradient` tells which of them get one.
    `unread` tells that nobody else reads `to_states`: the states' gradient may then overwrite it.
    """

    def __init__(
        self,
        module: nn.Module,
        reductions: Sequence[Reduction],
        to_states: Tensor | None,
        tensors: Sequence[Tensor | None],
        needs_gradient: Sequence[bool],
        *,
        unread: bool,
    ) -> None:
        self._module, self._reductions, self._to_states = module, reductions, to_states
        self._tensors, self._inputs = tensors, _Inputs(*tensors[:3])
        self._sums = [
            _zeros(tensor) if tensor is not None and needed else None
            for tensor, needed in zip(
                tensors, (*needs_gradient[:2], False, *needs_gradient[3:]), strict=True
            )
        ]
        self._weights = _both(tensors[3:], self._sums[3:])
        totals = {id(weight): total for weight, total in self._weights}
        self._chain = _chain_of(module, self._inputs, totals)
        self._room: Room | None = None
        states = self._inputs.states
        if states is not None and needs_gradient[2]:
            # A chain writes all of them, block by block, so that they need no zeros.
            by_chain = self._chain is not None
            empty = memory_of(states).empty
            if unread and to_states is not None and _layout(to_states) == _layout(states):
                self._sums[2] = to_states
            else:
                self._sums[2] = empty(states, states.shape) if by_chain else _zeros(states)

    def totals(self) -> list[Tensor | None]:
        """Return the gradients of all arguments."""
        return [
            None if total is None or tensor is None else total.to(tensor.dtype)
            for total, tensor in zip(self._sums, self._tensors, strict=True)
        ]

    @collective
    def run(self, operator: MessageOperator, saved: _Kept, to_reduced: Tensor | None) -> None:
        """Add the gradients through all edges; `to_reduced` is that of the reductions."""
        self._room, push = saved.room, None
        if operator.pushed is not None and saved.pushed is not None and to_reduced is not None:
            sent = operator.pushed, saved.pushed, to_reduced, self._inputs.targets
            push = BackwardPush(*sent, operator.trace)
            push.start()
        self._add_own(operator, saved)
        if push is not None:
            push.finish(self._add_pushed, self._sums[0])

    def _add_pushed(self, part: EdgePart, reduction: Sum, targets: Tensor | None) -> Tensor | None:
        stage = copy(self)
        needed = self._sums[0] is not None and targets is not None
        of_targets = _zeros(targets) if needed and targets is not None else None
        stage._reductions, stage._sums = [reduction], [of_targets, *self._sums[1:]]
        stage._inputs = self._inputs._replace(targets=targets)
        stage._add(part, self._inputs.sources, self._sums[1])
        return of_targets

    @collective
    def _add_own(self, operator: MessageOperator, saved: _Kept) -> None:
        sources, total = self._inputs.sources, self._sums[1]
        if sources is None:
            for part in operator.parts:
                self._add(part, None, None)
            return
        memory, stages = memory_of(sources), operator.stages
        rows = memory.array(sources.contiguous())

        def gradient(index: int, arrived: Any) -> FloatArray:
            stage_rows = memory.tensor(arrived)
            stage_gradient = _zeros(stage_rows)
            self._add(stages[index], stage_rows, stage_gradient)
            return memory.array(stage_gradient)

        push = None
        if total is not None:
            push = operator.sources.start_return(rows, saved.rows, memory.array(total), gradient)
        else:
            for index, arrived in operator.sources.fetch_again(rows, saved.rows):
                with operator.trace.span("boundary.reverse"):
                    self._add(stages[index], memory.tensor(arrived), None)
        with operator.trace.span("interior.reverse"):
            self._add(operator.own, sources, total)
        if push is not None:
            push.finish()

    def _add(self, part: EdgePart, sources: Tensor | None, total: Tensor | None) -> None:
        """Add the gradients through the edges of a part; those of its sources go to `total`."""
        rows = None if sources is None else sources.detach().requires_grad_(total is not None)
        with torch.enable_grad():
            seen = _seen(self._module, rows)
        of_seen = total
        if seen is not rows and seen is not None:
            of_seen = _zeros(seen) if seen.requires_grad else None
        inputs = self._inputs._replace(sources=None if seen is None else seen.detach())
        cuts = _Cuts.of(self._module, inputs, self._chain)
        for block in cuts.blocks(part, part.sources):
            if self._chain is not None:
                self._add_chain(self._chain, block, inputs, of_seen)
            else:
                self._add_block(block, inputs, of_seen)
        if seen is rows or seen is None or of_seen is None or part.block.nnz == 0:
            return
        ends = [] if rows is None or total is None else [(rows, total)]
        for (_, leaf_total), gradient in _gradients(
            [(seen, of_seen.to(seen.dtype))], [*ends, *self._weights]
        ):
            leaf_total += gradient

    def _add_chain(
        self, chain: EdgeChain, block: _Block, inputs: _Inputs, of_sources: Tensor | None
    ) -> None:
        of_targets, _, of_states = self._sums[:3]
        chain_input = block.in_chain(inputs)
        upper = None if self._to_states is None else self._to_states[block.edges].contiguous()
        # If all edges of a target share one gradient, the messages themselves are not needed.
        shared = self._reductions[0].shared if len(self._reductions) == 1 else None
        reads = bool(self._reductions) and shared is None
        message = chain.recompute(chain_input, self._room, reads=reads)
        if shared is not None:
            upper = chain.gathered(shared, block.target_ids, upper)
        elif message is not None:
            of_message, _ = gradients_of(self._reductions, block.of(EdgeResult(widened(message))))
            upper = of_message if upper is None else of_message.add_(upper)
        if upper is not None:
            gradients = block.in_chain(_Inputs(of_targets, of_sources, of_states))
            chain.add_gradients(chain_input, self._room, upper, gradients)

    def _add_block(self, block: _Block, inputs: _Inputs, of_sources: Tensor | None) -> None:
        of_targets, _, of_states = self._sums[:3]
        leaves = [
            None if row is None else row.detach().requires_grad_(total is not None)
            for row, total in zip(
                block.gathered(inputs), (of_targets, of_sources, of_states), strict=True
            )
        ]
        # Recompute them: kept, they would be the arrays that this function avoids.
        with torch.enable_grad():
            result = _result(self._module(*leaves))
        ends: list[tuple[Tensor, Tensor]] = []
        if self._reductions:
            of_message, of_score = gradients_of(self._reductions, block.of(result))
            ends.append((result.message, of_message.to(result.message.dtype)))
            if of_score is not None and result.score is not None:
                ends.append((result.score, of_score))
        if self._to_states is not None and result.states is not None:
            upper = widened(self._to_states[block.edges])
            if of_states is self._to_states:
                upper = upper.clone()
                of_states[block.edges] = 0
            ends.append((result.states, upper))
        targets, sources, states = leaves
        leaf_totals = _both(leaves, (of_targets, of_sources, of_states))
        for (leaf, total), gradient in _gradients(ends, [*leaf_totals, *self._weights]):
            if leaf is targets:
                block.add(gradient, total)
            elif leaf is sources:
                total.index_add_(0, block.sources, gradient)
            elif leaf is states:
                total[block.edges] = gradient
            else:
                total += gradient


def _zeros(like: Tensor) -> Tensor:
    """Return zeros to sum in, in the precision of weights."""
    if like.dtype == torch.bfloat16:
        return like.new_zeros(like.shape, dtype=torch.float32)
    return memory_of(like).empty(like, like.shape).zero_()


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()


def _both(
    leaves: Sequence[Tensor | None], totals: Sequence[Tensor | None]
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of the leaves and their totals, without those that have none."""
    pairs = zip(leaves, totals, strict=True)
    return [(leaf, total) for leaf, total in pairs if leaf is not None and total is not None]


def _gradients(
    ends: Sequence[tuple[Tensor, Tensor]], leaf_totals: Sequence[tuple[Tensor, Tensor]]
) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
    """Yield the gradients of leaves that `ends` depend on, with the leaves and their totals."""
    ends = [(value, gradient) for value, gradient in ends if value.requires_grad]
    if not ends or not leaf_totals:
        return
    values, gradients = zip(*ends, strict=True)
    leaves = [leaf for leaf, _ in leaf_totals]
    parts: Sequence[Tensor | None] = torch.autograd.grad(
        values, leaves, gradients, allow_unused=True
    )
    for leaf_total, part in zip(leaf_totals, parts, strict=True):
        if part is not None:
            yield leaf_total, part


def _converts_by_block(states: Tensor, rows: Tensor, edges: EdgeInputs) -> bool:
    """Return whether states take the dtype of rows block by block: they need no gradient."""
    narrow = states.dtype == torch.float16 and rows.dtype == torch.bfloat16
    exact = isinstance(edges.operator, ExactMessages)
    return narrow and not exact and not states.requires_grad


@collective
def reduce_messages(
    edges: EdgeInputs,
    module: nn.Module,
    *,
    targets: Tensor | None = None,
    sources: Tensor | None = None,
    states: Tensor | None = None,
    reduce: Sequence[str] = ("sum",),
) -> tuple[Tensor, Tensor | None]:
    """Return messages of edges, reduced at their targets, and the new states of the edges.

    Collective if there are `sources`, and so is its backward pass. The module is called as
    ``module(rows of the targets, rows of the sources, states)`` on blocks of edges, without
    gradients, and again in the backward pass. Only the arguments, the rows of the sources and a few
    rows per target are saved for it. The module must therefore return the same for the same inputs,
    and treat each edge separately: no `torch.nn.Dropout`, no batch normalisation. Gradients reach
    its parameters, `targets`, `sources` and `states`; second derivatives are not supported.

    Parameters
    ----------
    module
        Returns messages (B, M), or an `EdgeResult`; it may be an `EdgeModule`. It is called on 0
        edges on a rank that has none.
    targets
        Rows (N, any width) of the local nodes that edges end at; without, the module gets None.
    sources
        Rows (N, any width) of the local nodes that edges start at, which are fetched from their
        owners; without, the module gets None.
    states
        States (E, F) of the edges, in their order; without, the module gets None.
    reduce
        Names in `REDUCTIONS`: ``sum``, ``mean``, ``max``, ``min``, ``std`` (of the population; 0 up
        to √1e-5), and ``softmax``, the sum of messages weighted by the softmax of their scores over
        the edges of a target, in which each score weights M / K columns. Edges that share a maximum
        or minimum share its gradient.

    Returns
    -------
    tuple of Tensor
        The reductions, concatenated in their order to (N, M times their number), zeros at nodes
        without edges; and new states (E, width), None if the module returns none.

    Raises
    ------
    TypeError
        If `module` is a plain function, whose parameters would get no gradients.
    ValueError
        If `reduce` is empty or names an unknown reduction, or ``softmax`` has no scores. If
        messages are pushed, also for reductions other than sum and mean, and for new states.

    Examples
    --------
    >>> class Difference(torch.nn.Module):
    ...     def forward(self, target, source, state):
    ...         return source - target
    >>> with hpcgnn.open_graph(None, "mine.h5", model={"name": "pna"}) as graph:
    ...     x = graph.features
    ...     reduced, _ = hpcgnn.reduce_messages(
    ...         graph.view.edges, Difference(), targets=x, sources=x, reduce=("mean", "max")
    ...     )
    ...     reduced.shape
    torch.Size([600, 32])
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module = {module!r}: give a torch.nn.Module, whose parameters learn")
    unknown = [name for name in reduce if name not in REDUCTIONS]
    if unknown or not reduce:
        raise ValueError(f"reduce={list(reduce)}: one or more of {', '.join(REDUCTIONS)}")
    rows = sources if targets is None else targets
    if rows is not None and states is not None and not _converts_by_block(states, rows, edges):
        states = states.to(rows.dtype)
    if isinstance(edges.operator, ExactMessages):
        seen = _seen(module, sources)
        return reduce_exactly(edges.operator, module, tuple(reduce), (targets, seen, states))
    # Parameters are arguments, so that torch computes their gradients.
    learned = (parameter for parameter in module.parameters() if parameter.requires_grad)
    tensors = targets, sources, states, *learned
    if edges.operator.pushed is None:
        return _Reduce.apply(  # type: ignore[no-untyped-call]
            edges.operator, module, tuple(reduce), *tensors
        )
    if not {"sum", "mean"}.issuperset(reduce):
        raise ValueError(_PUSHED.format(f"they cannot be reduced by {', '.join(reduce)}"))
    total, _ = _Reduce.apply(  # type: ignore[no-untyped-call]
        edges.operator, module, ("sum",), *tensors
    )
    means = widened(total) / edges.degrees.clamp(min=1)[:, None]
    parts = [total if name == "sum" else means.to(total.dtype) for name in reduce]
    return torch.cat(parts, dim=1), None
