"""Messages that a torch module computes for edges, reduced at their targets, by blocks of edges.

Shape suffixes: N local nodes, R rows of sources, E edges, B edges of a block, T targets of a block,
F columns of an edge's state, M columns of a message, K scores of an edge.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hpcgnn.autograd.chain import Chain, Ends
from hpcgnn.autograd.edge_chain import ChainEdges, EdgeChain
from hpcgnn.autograd.reductions import REDUCTIONS, EdgeBlock, Reduction
from hpcgnn.autograd.rows import fetch_rows
from hpcgnn.comm import RowRequest
from hpcgnn.spmd import collective
from hpcgnn.trace import TraceRecorder

BLOCK_BYTES = 4 << 20
"""Of the rows and states that a block of edges gathers."""


@dataclass(frozen=True, eq=False)
class EdgeInputs:
    """The edges of a rank's nodes, in the order of their targets.

    Parameters
    ----------
    request
        Of the R different rows of their sources.
    sources
        (E,) int64 places among these.
    targets
        (E,) int64 local rows, not falling.
    features
        (E, F) in the type that models compute in.

    Raises
    ------
    ValueError
        When a target is smaller than the one before it.
    """

    request: RowRequest
    sources: Tensor
    targets: Tensor
    features: Tensor
    num_targets: int
    trace: TraceRecorder

    def __post_init__(self) -> None:
        if bool((self.targets[1:] < self.targets[:-1]).any()):
            raise ValueError("edges are not in the order of their targets")

    @property
    def degrees(self) -> Tensor:
        """(N,) int64 numbers of edges of the targets."""
        return torch.bincount(self.targets, minlength=self.num_targets)


class EdgeResult(NamedTuple):
    """What a message module returns that gives more than messages.

    Parameters
    ----------
    message
        (B, M).
    score
        (B, K), where ``softmax`` is among the reductions; K divides M.
    states
        (B, any width) the new states of the edges.
    """

    message: Tensor
    score: Tensor | None = None
    states: Tensor | None = None


class EdgeModule(nn.Module):
    """A message module that says more of itself than a plain one."""

    width: int = 0
    """Columns of the widest array that it makes of an edge, which blocks are cut for."""
    keeps: bool = False
    """Whether what the maps of a chain give waits for the backward pass, and is not made again."""

    def chain(self) -> Chain | None:
        """Return what the module computes as a chain, which fused kernels run, or None.

        The chain's input are the states, its ends what edges see of targets and sources. Its result
        are the messages and, where it adds the states, the new states.
        """
        return None

    def arrived(self, rows: Tensor) -> Tensor:
        """Return what edges see of the rows (R, any width) of their sources.

        It is computed where these were fetched to, once for each row, so that the narrower of a
        row and its map can travel.
        """
        return rows


class _Inputs(NamedTuple):
    targets: Tensor | None
    sources: Tensor | None
    states: Tensor | None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        edges: EdgeInputs,
        module: nn.Module,
        names: tuple[str, ...],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        inputs = _Inputs(*tensors[:3])
        ctx.edges, ctx.module = edges, module
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        reductions: list[Reduction] = []
        states: Tensor | None = None
        run = _chain_of(module, inputs)
        keeps = run is not None and module.keeps and any(ctx.needs_input_grad)
        ctx.kept = run.keep(len(edges.targets)) if run is not None and keeps else None
        for some in _blocks(edges, module, inputs, run):
            if run is None:
                result = _result(module(*_gathered(edges, inputs, some)))
            else:
                message = run.messages(_chain_edges(edges, inputs, some), ctx.kept)
                result = _of_chain(module, message)
            block = _block(edges, some, result)
            if not reductions:
                reductions = [REDUCTIONS[name](edges.num_targets, block) for name in names]
                if result.states is not None:
                    states = result.states.new_empty(len(edges.targets), *result.states.shape[1:])
            for reduction in reductions:
                reduction.add(block)
            if states is not None:
                assert result.states is not None
                states[some] = result.states
        ctx.reductions = reductions
        return torch.cat([each.result() for each in reductions], dim=1), states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_reduced: Tensor | None, to_states: Tensor | None) -> Any:
        edges, reductions = ctx.edges, ctx.reductions
        tensors = ctx.saved_tensors
        inputs, wanted = _Inputs(*tensors[:3]), ctx.needs_input_grad[3:]
        sums = [
            torch.zeros_like(tensor) if needed else None
            for tensor, needed in zip(tensors, wanted, strict=True)
        ]
        if to_reduced is not None:
            parts = to_reduced.chunk(len(reductions), dim=1)
            for reduction, part in zip(reductions, parts, strict=True):
                reduction.start_backward(part)
        weights = [each for each in ctx.module.parameters() if each.requires_grad]
        totals = zip(weights, sums[3:], strict=True)
        known = {id(each): total for each, total in totals if total is not None}
        run = _chain_of(ctx.module, inputs, known)
        for some in _blocks(edges, ctx.module, inputs, run):
            if run is not None:
                given, of = (
                    _chain_edges(edges, each, some) for each in (inputs, _Inputs(*sums[:3]))
                )
                message = run.again(given, ctx.kept)
                upper = None if to_states is None else to_states[some].contiguous()
                if to_reduced is not None:
                    block = _block(edges, some, EdgeResult(message), detach=True)
                    of_message, _ = _gradients(reductions, block)
                    upper = of_message if upper is None else of_message.add_(upper)
                if upper is not None:
                    run.add_gradients(given, ctx.kept, upper, of)
                continue
            gathered = [
                row if row is None else row.detach().requires_grad_(needed)
                for row, needed in zip(_gathered(edges, inputs, some), wanted, strict=False)
            ]
            # Computed again: kept, they would be the arrays that this function avoids.
            with torch.enable_grad():
                result = _result(ctx.module(*gathered))
            ends: list[tuple[Tensor, Tensor]] = []
            if to_reduced is not None:
                block = _block(edges, some, result, detach=True)
                of_message, of_score = _gradients(reductions, block)
                ends.append((result.message, of_message))
                if of_score is not None and result.score is not None:
                    ends.append((result.score, of_score))
            if to_states is not None and result.states is not None:
                ends.append((result.states, to_states[some]))
            _add_gradients(edges, some, ends, [*gathered, *tensors[3:]], sums)
        return None, None, None, *sums


def _chain_of(
    module: nn.Module, inputs: _Inputs, totals: Mapping[int, Tensor] | None = None
) -> EdgeChain | None:
    """Return a module's chain where the kernels can run it."""
    chain = module.chain() if isinstance(module, EdgeModule) else None
    like = next((each for each in inputs if each is not None), None)
    if chain is None or like is None or not chain.fits(like):
        return None
    return EdgeChain(chain, like, totals)


def _chain_edges(edges: EdgeInputs, inputs: _Inputs, some: slice) -> ChainEdges:
    targets, sources, states = inputs
    ends = Ends(
        targets,
        None if targets is None else edges.targets[some].to(torch.int32),
        sources,
        None if sources is None else edges.sources[some].to(torch.int32),
    )
    return ChainEdges(ends, None if states is None else states[some], some)


def _of_chain(module: nn.Module, message: Tensor) -> EdgeResult:
    chain = module.chain() if isinstance(module, EdgeModule) else None
    return EdgeResult(message, states=message if chain is not None and chain.residual else None)


def _blocks(
    edges: EdgeInputs, module: nn.Module, inputs: _Inputs, run: EdgeChain | None
) -> Iterator[slice]:
    given = [each for each in inputs if each is not None]
    inner = module.width if isinstance(module, EdgeModule) else 0
    columns = inner + sum(each.shape[1] for each in given)
    size = columns * max((each.element_size() for each in given), default=1)
    step = max(1, BLOCK_BYTES // max(1, size)) if run is None else run.block_rows
    total = len(edges.targets)
    # Without edges one empty block tells the widths of what the module returns.
    for start in range(0, max(1, total), step):
        yield slice(start, min(start + step, total))


def _gathered(edges: EdgeInputs, inputs: _Inputs, some: slice) -> _Inputs:
    targets, sources, states = inputs
    return _Inputs(
        None if targets is None else targets[edges.targets[some]],
        None if sources is None else sources[edges.sources[some]],
        None if states is None else states[some],
    )


def _result(returned: Tensor | EdgeResult) -> EdgeResult:
    return returned if isinstance(returned, EdgeResult) else EdgeResult(returned)


def _block(edges: EdgeInputs, some: slice, result: EdgeResult, detach: bool = False) -> EdgeBlock:
    targets, message, score = edges.targets[some], result.message, result.score
    first, end = (int(targets[0]), int(targets[-1]) + 1) if len(targets) else (0, 0)
    if detach:
        message, score = message.detach(), None if score is None else score.detach()
    return EdgeBlock(slice(first, end), targets - first, message, score)


def _gradients(reductions: Sequence[Reduction], block: EdgeBlock) -> tuple[Tensor, Tensor | None]:
    total, of_score = None, None
    for reduction in reductions:
        message, score = reduction.gradient(block)
        total = message if total is None else total.add_(message)
        of_score = of_score if score is None else score
    assert total is not None
    return total, of_score


def _add_gradients(
    edges: EdgeInputs,
    some: slice,
    ends: Sequence[tuple[Tensor, Tensor]],
    leaves: Sequence[Tensor | None],
    sums: Sequence[Tensor | None],
) -> None:
    ends = [(value, gradient) for value, gradient in ends if value.requires_grad]
    chosen = [
        (place, leaf, total)
        for place, (leaf, total) in enumerate(zip(leaves, sums, strict=True))
        if leaf is not None and total is not None
    ]
    if not ends or not chosen:
        return
    values, gradients = zip(*ends, strict=True)
    variables = [leaf for _, leaf, _ in chosen]
    parts: Sequence[Tensor | None] = torch.autograd.grad(
        values, variables, gradients, allow_unused=True
    )
    rows = {0: edges.targets, 1: edges.sources}
    for (place, _, total), part in zip(chosen, parts, strict=True):
        if part is None:
            continue
        if place in rows:
            total.index_add_(0, rows[place][some], part)
        elif place == 2:
            total[some] = part
        else:
            total += part


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

    Collective where there are `sources`, and so is its backward pass. The module is called as
    ``module(rows of the targets, rows of the sources, states)`` on a block of edges, without
    gradients, and again in the backward pass: what waits for it are the arguments, the rows of the
    sources and a few rows for each target. So the module returns the same for the same inputs,
    and computes each edge by itself: no `torch.nn.Dropout`, no batch normalisation. Gradients reach
    its parameters, `targets`, `sources` and `states`, once: not those of gradients.

    Parameters
    ----------
    module
        Returns messages (B, M), or an `EdgeResult`; an `EdgeModule` says more of itself. It is
        called on 0 edges where a rank has none.
    targets
        (N, any width) rows of the local nodes that edges end at; the module gets None without.
    sources
        (N, any width) rows of the local nodes that edges start at, fetched from their owners; the
        module gets None without.
    states
        (E, F) of the edges, in their order; the module gets None without.
    reduce
        Names in `REDUCTIONS`: ``sum``, ``mean``, ``max``, ``min``, ``std`` (of the population, 0 up
        to √1e-5), and ``softmax``: the sum of messages, weighted by the softmax of their scores
        over the edges of a target; each score weights M / K columns. Edges that share a largest or
        smallest number share its gradient.

    Returns
    -------
    tuple of Tensor
        (N, M times the number of reductions), side by side in their order, zeros at nodes without
        edges; and (E, width) new states, None where the module gives none.

    Raises
    ------
    TypeError
        When `module` is a plain function, whose parameters would get no gradients.
    ValueError
        When `reduce` is empty or names another reduction, or ``softmax`` has no scores.

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
    rows = None if sources is None else fetch_rows(sources, edges.request, edges.trace)
    if rows is not None and isinstance(module, EdgeModule):
        rows = module.arrived(rows)
    # Parameters are arguments so that torch asks for their gradients.
    weights = [each for each in module.parameters() if each.requires_grad]
    return _Reduce.apply(  # type: ignore[no-untyped-call]
        edges, module, tuple(reduce), targets, rows, states, *weights
    )
