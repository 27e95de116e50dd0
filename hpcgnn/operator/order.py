"""The order of a graph layer's two products: A (X W) or (A X) W.

Both give the same result; they differ in the width that is aggregated and sent (section 6.1 of
"Accurate, efficient and scalable training of graph neural networks"). What the forward pass keeps
decides what the backward pass needs, so the two are chosen together, by the cost of both.
"""

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import product

from hpcgnn.operator.protocol import OperatorSize

_GATHERED_VALUE = 1.0
"""Cost of one value read through a non-zero: the unit, about 0.4 ns a core."""
_MOVED_VALUE = 10.0
"""Cost of one value sent to another rank, against the unit."""
_MULTIPLY_ADD = 1 / 12
"""Cost of one multiply-add of a dense product, against the unit."""
_SHARED_VALUE, _WEIGHTED_VALUE = 1.0, 0.45
"""Cost of one value that attention reads for all heads, and of weighing it for one of them, against
one that is read for each head."""


@dataclass(frozen=True)
class ComputationOrder:
    """Which product comes first.

    Forward `aggregate_first` is (A X) W instead of A (X W). Its backward pass needs no aggregation
    for the gradient of W, because A X is kept; `project_first` is then, for the gradient of X, Aᵀ
    (G Wᵀ) instead of (Aᵀ G) Wᵀ.
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
"""A (X W), the order of an X that aggregation would fill."""


@lru_cache(maxsize=1024)
def choose_order(
    size: OperatorSize, in_width: int, out_width: int, *, needs_input_gradient: bool
) -> ComputationOrder:
    """Return the cheapest order of a layer for X of `in_width` columns; equal on all ranks.

    Features, as X, need no gradient.
    """
    orders = [
        ComputationOrder(aggregate, project)
        for aggregate, project in product((False, True), repeat=2)
        # Only (A X) W leaves the backward pass a choice, and only A X can be at hand.
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
        # Forward and backward aggregate the projected width; three products at the columns.
        return 2 * by_column * out_width + by_row * size.num_columns * (2 + needs_input_gradient)
    cost = 2 * by_row * size.num_rows
    if not size.is_kept:
        cost += by_column * in_width
    if needs_input_gradient and order.project_first:
        cost += by_column * in_width + by_row * size.num_rows
    elif needs_input_gradient:
        cost += by_column * out_width + by_row * size.num_columns
    return cost


_ENOUGH_READS = 2.5
"""Values that each number of a kept product saves reading in an epoch, at least."""


def is_worth_keeping(size: OperatorSize, in_width: int, out_width: int) -> bool:
    """Tell whether a product with features saves much for its memory; equal on all ranks.

    Where a node has few neighbours, or many features that are mapped to few columns first, it is as
    large as the features, and an epoch takes hardly longer without it.
    """
    costs = []
    for sizes in (size, replace(size, is_kept=True)):
        order = choose_order(sizes, in_width, out_width, needs_input_gradient=False)
        costs.append(_cost(order, sizes, in_width, out_width, needs_input_gradient=False))
    return costs[0] - costs[1] >= _ENOUGH_READS * size.num_rows * in_width


class RelationOrder(Enum):
    """How ``Σ_r S_r (M_r X) W_r`` is computed, of relations whose means are one tall array."""

    BY_RELATION = "S((AX)W)"
    """Means are mapped relation by relation, and what comes out is added up."""
    SIDE_BY_SIDE = "(S(AX))W"
    """A node's means lie side by side, zero where it has none, and have one map."""
    PROJECT_FIRST = "S(A(XW))"
    """X has one map to the columns of all relations, each of which averages its own."""


_ADDED_VALUE = 2.0
"""Cost of one value that is written, read and added to another row, against the unit."""


@lru_cache(maxsize=1024)
def choose_relation_order(
    size: OperatorSize, widths: tuple[int, int, int], *, needs_input_gradient: bool
) -> RelationOrder:
    """Return the cheapest order of a layer; equal on all ranks, and on any number of them.

    `widths` are the relations R, the columns of X and those of the result.
    """
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
        # Rows that travel have the columns of all relations.
        read = size.num_entries * _GATHERED_VALUE + num_relations * size.num_moved * _MOVED_VALUE
        added = _ADDED_VALUE * size.num_rows
        costs[RelationOrder.PROJECT_FIRST] = passes * by_row * pairs + 2 * out_width * (
            read + added
        )
    return min(costs, key=lambda order: costs[order])


def _read(size: OperatorSize, width: int) -> float:
    """Return the cost of a product with rows of so many columns."""
    return (size.num_entries * _GATHERED_VALUE + size.num_moved * _MOVED_VALUE) * width


def heads_share_input(in_width: int, heads: int, head_width: int) -> bool:
    """Return whether attention is cheaper over its input, projected after, on one rank.

    Every edge then reads `in_width` values once, and weighs them for each head from cache, where
    projected values are read for each head. The dense products are as large either way.
    Without it forward and backward take 1.16 times as long with 4 heads of width 100 on 100 columns
    and 1.38 times with 8 (R-MAT, average degree 29); an epoch on debian-packages 0.97 to 1.14
    times, and sampled with 8 heads 1.24 times the memory (one thread, November 2026).
    """
    return in_width * (_SHARED_VALUE + _WEIGHTED_VALUE * heads) < heads * head_width
