"""Choose the order of a graph layer's two products: A (X W) or (A X) W.

Both give the same result; they differ in the width that is aggregated and sent (section 6.1 of
"Accurate, efficient and scalable training of graph neural networks"). What the backward pass must
compute depends on what the forward pass keeps, so both orders are chosen together, by total cost.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import product

from hpcgnn.operator.protocol import OperatorSize

_GATHERED_VALUE = 1.0
"""Cost of reading one value through a non-zero: the unit, about 0.4 ns on a core."""
_MOVED_VALUE = 10.0
"""Cost of sending one value to another rank, relative to the unit."""
_MULTIPLY_ADD = 1 / 12
"""Cost of one multiply-add of a dense product, relative to the unit."""
_SHARED_VALUE, _WEIGHTED_VALUE = 1.0, 0.45
"""Costs of reading one value for all attention heads, and of weighting it for one head, relative to
reading a value for each head."""


@dataclass(frozen=True)
class ComputationOrder:
    """Which product comes first.

    In the forward pass, `aggregate_first` is (A X) W instead of A (X W). The backward pass then
    needs no aggregation for the gradient of W, because A X is kept; `project_first` is, for the
    gradient of X, Aᵀ (G Wᵀ) instead of (Aᵀ G) Wᵀ.
    """

    aggregate_first: bool
    project_first: bool

    @property
    def forward(self) -> str:
        """The forward order as a formula."""
        return "(AX)W" if self.aggregate_first else "A(XW)"

    @property
    def backward(self) -> str:
        """The backward order as a formula."""
        return "A'(GW')" if self.project_first else "(A'G)W'"


PROJECT_FIRST = ComputationOrder(aggregate_first=False, project_first=False)
"""A (X W), the order for a sparse X, which aggregation would make dense."""


@lru_cache(maxsize=1024)
def choose_order(
    size: OperatorSize, in_width: int, out_width: int, *, needs_input_gradient: bool
) -> ComputationOrder:
    """Return the cheapest order of a layer for X of `in_width` columns; equal on all ranks.

    Without `needs_input_gradient`, X are features, which need no gradient.
    """
    orders = [
        ComputationOrder(aggregate, project)
        for aggregate, project in product((False, True), repeat=2)
        # Only (A X) W leaves the backward pass a choice, and only A X can be kept.
        if aggregate or not (project or size.is_kept)
    ]
    return min(orders, key=lambda o: _cost(o, size, in_width, out_width, needs_input_gradient))


def _cost(
    order: ComputationOrder,
    size: OperatorSize,
    in_width: int,
    out_width: int,
    needs_input_gradient: bool,
) -> float:
    by_column = size.num_entries * _GATHERED_VALUE + size.num_moved * _MOVED_VALUE
    by_row = in_width * out_width * _MULTIPLY_ADD
    if not order.aggregate_first:
        # Forward and backward aggregate the projected width; dense products have a row per column.
        return 2 * by_column * out_width + by_row * size.num_columns * (2 + needs_input_gradient)
    cost = 2 * by_row * size.num_rows
    if not size.is_kept:
        cost += by_column * in_width
    if needs_input_gradient and order.project_first:
        cost += by_column * in_width + by_row * size.num_rows
    elif needs_input_gradient:
        cost += by_column * out_width + by_row * size.num_columns
    return cost


class RelationOrder(Enum):
    """How to compute ``Σ_r S_r (M_r X) W_r``, where the means M_r X are one tall array."""

    BY_RELATION = "S((AX)W)"
    """Project the means relation by relation, and add the results."""
    SIDE_BY_SIDE = "(S(AX))W"
    """Put a node's means side by side, zeros for missing ones, and project once."""
    PROJECT_FIRST = "S(A(XW))"
    """Project X once to the columns of all relations; each relation averages its own."""


_ADDED_VALUE = 2.0
"""Cost of writing one value, reading it and adding it to another row, relative to the unit."""


@lru_cache(maxsize=1024)
def choose_relation_order(
    size: OperatorSize, widths: tuple[int, int, int], *, needs_input_gradient: bool
) -> RelationOrder:
    """Return the cheapest order of a layer; the same on all ranks, and on any number of ranks.

    `widths` are the number of relations, the columns of X and those of the result.
    """
    costs = _relation_costs(size, widths, needs_input_gradient=needs_input_gradient)
    return min(costs, key=lambda order: costs[order])


def _relation_costs(
    size: OperatorSize, widths: tuple[int, int, int], *, needs_input_gradient: bool
) -> dict[RelationOrder, float]:
    num_relations, in_width, out_width = widths
    by_row = in_width * out_width * _MULTIPLY_ADD
    passes, pairs = 2 + needs_input_gradient, size.num_columns * num_relations
    read = 0.0 if size.is_kept else _read(size, in_width)
    means = read + needs_input_gradient * _read(size, in_width)
    costs = {
        RelationOrder.BY_RELATION: means
        + size.num_rows * (passes * by_row + 2 * _ADDED_VALUE * out_width),
        RelationOrder.SIDE_BY_SIDE: means
        + passes * by_row * pairs
        + 2 * _ADDED_VALUE * size.num_rows * in_width,
    }
    if size.chooses_columns and not size.is_kept:
        # Rows sent to other ranks have the columns of all relations.
        read = size.num_entries * _GATHERED_VALUE + num_relations * size.num_moved * _MOVED_VALUE
        added = _ADDED_VALUE * size.num_rows
        costs[RelationOrder.PROJECT_FIRST] = passes * by_row * pairs + 2 * out_width * (
            read + added
        )
    return costs


def _read(size: OperatorSize, width: int) -> float:
    return (size.num_entries * _GATHERED_VALUE + size.num_moved * _MOVED_VALUE) * width


_ENOUGH_READS = 2.5
"""The least number of reads that each value of a kept product must save in an epoch."""


def is_worth_caching(
    size: OperatorSize, widths: tuple[int, int], num_relations: int = 0, *, trains: bool = False
) -> bool:
    """Tell whether keeping a product with features saves enough for its memory; same on all ranks.

    It is not if nodes have few neighbours, or many features that are projected to few columns
    first: the product is as large as the features, and an epoch takes hardly longer without it.

    `widths` are the columns of the features and of the layer's result. With `num_relations` the
    product are the means of `choose_relation_order`. Where the layer `trains` and would map them by
    relation, its backward pass needs them: to keep them then takes no more memory at a time.
    """
    kept = replace(size, is_kept=True)
    if num_relations:
        costs, kept_costs = (
            _relation_costs(each, (num_relations, *widths), needs_input_gradient=False)
            for each in (size, kept)
        )
        saved = min(costs.values()) - min(kept_costs.values())
        order = min(costs, key=lambda each: costs[each])
        if order == RelationOrder.PROJECT_FIRST and not size.num_moved:
            # Without an exchange to save, it is not worth the tallest array of all.
            return False
        if trains and size.chooses_columns and order == RelationOrder.BY_RELATION:
            return saved > 0
    else:
        saved = _least_cost(size, widths) - _least_cost(kept, widths)
    return saved >= _ENOUGH_READS * size.num_rows * widths[0]


def _least_cost(size: OperatorSize, widths: tuple[int, int]) -> float:
    order = choose_order(size, *widths, needs_input_gradient=False)
    return _cost(order, size, *widths, needs_input_gradient=False)


def heads_share_input(in_width: int, heads: int, head_width: int) -> bool:
    """Return whether attention on one rank is cheaper over its input, with projection afterwards.

    Every edge then reads `in_width` values once and weights them for each head from cache, instead
    of reading projected values for each head. The dense products have the same size either way.
    Without it, forward and backward take 1.16 times as long with 4 heads of width 100 on 100
    columns, and 1.38 times with 8 (R-MAT, average degree 29); an epoch on debian-packages takes
    0.97 to 1.14 times as long, and sampling with 8 heads 1.24 times the memory (one thread,
    November 2026).
    """
    return in_width * (_SHARED_VALUE + _WEIGHTED_VALUE * heads) < heads * head_width
