"""Means over the neighbours of each relation, mapped and added up: ``Y + Σ_r S_r (M_r X) W_r``.

The means are one tall array with a row for every pair of a node and a relation of its edges,
several times as large as X. Under a resident schedule they are kept for the backward pass. Under a
sequential one they are computed again there ("Sequential Aggregation and Rematerialization", case
2) and overwritten by their gradients, relation by relation: of all layers together, only one tall
array is in memory at a time.

Where it is cheaper, X is mapped first, or the means of a node are mapped as one row, which saves a
pass over the result for each relation; see `hpcgnn.operator.RelationOrder`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd.aggregate import applied
from hpcgnn.autograd.memory import memory_of
from hpcgnn.autograd.numerics.mixed import like_rows, widened
from hpcgnn.autograd.numerics.plain import arithmetic
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.operator import (
    AggregationOperator,
    ChoosingOperator,
    RelationOrder,
    choose_relation_order,
)
from hpcgnn.typing import LocalIndices


class _ByRelation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operator: AggregationOperator, rows: Sequence[LocalIndices], *tensors: Tensor
    ) -> Tensor:
        x, weights, out = tensors
        ctx.start = operator.run_position.now
        means, weights = applied(operator.apply, x), like_rows(weights, x)
        mapped = map(arithmetic().product, _parts(means, rows), weights)
        _add_to(ctx, out, zip(mapped, rows, strict=True))
        ctx.rows = rows
        _save(ctx, operator, x, means, weights)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        operator, rows, gradient = ctx.operator, ctx.rows, gradients[0].contiguous()
        means, weights = _saved(ctx, lambda x: applied(operator.apply, x))
        memory = memory_of(gradient)
        needs_input = ctx.needs_input_grad[2]
        for_means = means
        if needs_input and not ctx.computes_again:
            for_means = memory.empty(means, means.shape)
        for_weights = []
        parts = zip(rows, _parts(means, rows), _parts(for_means, rows), strict=True)
        for relation, (where, part, for_part) in enumerate(parts):
            for_mapped = _rows_of(gradient, where)
            for_weights.append(arithmetic().contract(part, for_mapped))
            if needs_input:
                # This overwrites means that were computed again, which nothing else reads.
                arithmetic().product(for_mapped, weights[relation].t(), for_part)
        for_x = applied(operator.apply_transpose, for_means) if needs_input else None
        return None, None, for_x, torch.stack(for_weights), gradients[0]


class _SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operator: AggregationOperator, rows: Sequence[LocalIndices], *tensors: Tensor
    ) -> Tensor:
        x, weights, out = tensors
        joined = like_rows(weights, x).flatten(0, 1)
        ctx.pairs, ctx.start = _pairs(rows), operator.run_position.now
        wide = _side_by_side(x, operator, ctx.pairs, len(out), len(rows))
        arithmetic().add_product(out, wide, joined)
        ctx.mark_dirty(out)
        ctx.shape = weights.shape
        _save(ctx, operator, x, wide, joined)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient, (count, in_width, _) = gradients[0].contiguous(), ctx.shape
        arguments = ctx.operator, ctx.pairs, len(gradient), count
        wide, joined = _saved(ctx, lambda x: _side_by_side(x, *arguments))
        for_weights = arithmetic().contract(wide, gradient).view(ctx.shape)
        for_x = None
        if ctx.needs_input_grad[2]:
            for_wide = arithmetic().product(gradient, joined.t())
            for_means = _rows_of(for_wide.view(-1, in_width), ctx.pairs)
            for_x = applied(ctx.operator.apply_transpose, for_means)
        return None, None, for_x, for_weights, gradients[0]


class _ProjectFirst(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operator: ChoosingOperator, rows: Sequence[LocalIndices], *tensors: Tensor
    ) -> Tensor:
        x, weights, out = tensors
        joined = like_rows(weights, x).transpose(0, 1).flatten(1)
        mapped = arithmetic().product(x, joined)
        means = applied(partial(operator.apply_chosen, num_relations=len(rows)), mapped)
        ctx.operator, ctx.shape, ctx.where = operator, weights.shape, np.concatenate(rows)
        _add_to(ctx, out, [(means, ctx.where)])
        ctx.save_for_backward(x, joined)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x, joined), gradient = ctx.saved_tensors, gradients[0].contiguous()
        count, in_width, out_width = ctx.shape
        for_means = _rows_of(gradient, ctx.where)
        back = partial(ctx.operator.apply_chosen_transpose, num_relations=count)
        for_mapped = applied(back, for_means)
        for_weights = arithmetic().contract(x, for_mapped).view(in_width, count, out_width)
        for_x = None
        if ctx.needs_input_grad[2]:
            for_x = arithmetic().product(for_mapped, joined.t())
        return None, None, for_x, for_weights.transpose(0, 1), gradients[0]


def _save(
    ctx: Any, operator: AggregationOperator, x: Tensor, means: Tensor, weights: Tensor
) -> None:
    """Save the input of the backward pass: the means or, to compute them again, x."""
    ctx.operator = operator
    ctx.computes_again = operator.size.is_sequential and not operator.size.is_kept
    ctx.save_for_backward(x if ctx.computes_again else means, weights)


def _saved(ctx: Any, means_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the means, computed again where x was saved, and the weights; see `_save`."""
    saved, weights = ctx.saved_tensors
    if not ctx.computes_again:
        return saved, weights
    with ctx.operator.run_position.replaying(ctx.start):
        return means_of(saved), weights


def _parts(tall: Tensor, rows: Sequence[LocalIndices]) -> Iterator[Tensor]:
    """Return the rows of each relation."""
    return iter(torch.split(tall, [len(numbers) for numbers in rows]))


def _pairs(rows: Sequence[LocalIndices]) -> LocalIndices:
    """Return (tall,) int32 ``node * R + relation`` of every row of the means."""
    count = len(rows)
    return np.concatenate([where * np.int32(count) + np.int32(r) for r, where in enumerate(rows)])


def _side_by_side(
    x: Tensor, operator: AggregationOperator, pairs: LocalIndices, num_rows: int, count: int
) -> Tensor:
    """Return the means of each node in one row, (num_rows, R in_width), of the dtype of `x`."""
    means = applied(operator.apply, x)
    wide = widened(means[:0]).new_zeros(num_rows * count, x.shape[1])
    _add_rows(means, pairs, wide)
    return wide.view(num_rows, count * x.shape[1]).to(x.dtype)


def _add_to(ctx: Any, out: Tensor, parts: Iterable[tuple[Tensor, LocalIndices]]) -> None:
    """Add parts, in order, to rows of `out`, an argument that a function changes."""
    # In 16 bits, every addition would be rounded.
    total = widened(out)
    for rows, where in parts:
        _add_rows(rows, where, total)
    if total is not out:
        out.copy_(total)
    ctx.mark_dirty(out)


def _add_rows(rows: Tensor, where: LocalIndices, total: Tensor) -> None:
    """Add rows to some of `total`, which is float32 if they have 16 bits."""
    memory = memory_of(total)
    with memory.ordered():
        kernels, sums = memory.kernels, memory.array(total)
        kernels.scatter_add_rows(memory.array(rows), where, sums, half="bfloat16")


def _rows_of(rows: Tensor, where: LocalIndices) -> Tensor:
    """Return copies of some rows."""
    memory = memory_of(rows)
    chosen = memory.empty(rows, (len(where), rows.shape[1]))
    with memory.ordered():
        memory.kernels.gather_rows(memory.array(rows), where, memory.array(chosen))
    return chosen


_FUNCTIONS = {
    RelationOrder.BY_RELATION: _ByRelation,
    RelationOrder.SIDE_BY_SIDE: _SideBySide,
    RelationOrder.PROJECT_FIRST: _ProjectFirst,
}


def relation_linear(
    operator: AggregationOperator,
    rows: Sequence[LocalIndices],
    x: Tensor,
    weights: Tensor,
    out: Tensor,
) -> Tensor:
    """Add the mapped means of every relation to `out`, and return it; differentiable.

    Collective, and so is its backward pass: all ranks must differentiate the same expression.

    `operator` has the means M_r, one under the other, of `Aggregation.MEAN_BY_RELATION`. `rows` are
    for each relation (m_r,) int32 rows of `out` that its means belong to, CuPy arrays for rows on a
    GPU; they may repeat, and then add up in order on the CPU, in any order on a GPU. `x` (input
    rows, in_width) is float32 or float64, or bfloat16 beside float32 weights; sparse features,
    where the operator is a `ChoosingOperator`, are mapped first. `weights` are (R, in_width,
    out_width). `out` (k, out_width), C-contiguous, of the dtype of `x` and in the same place, is
    changed, so that nothing may have saved it for its backward pass.
    """
    order = RelationOrder.PROJECT_FIRST
    if not isinstance(x, SparseFeatures):
        count, in_width, out_width = weights.shape
        widths, needs_input = (count, in_width, out_width), x.requires_grad
        order = choose_relation_order(operator.size, widths, needs_input_gradient=needs_input)
    return _FUNCTIONS[order].apply(  # type: ignore[no-untyped-call]
        operator, tuple(rows), x, weights, out
    )
