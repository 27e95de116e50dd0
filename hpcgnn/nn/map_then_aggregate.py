"""Layers that aggregate before they map, of rows that are sparse or wide: the map comes first.

Aggregations are linear, as maps are, so that ``(A X) W = A (X W)``: the product is of what is not
zero of X, and what is aggregated has the columns of the map.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, aggregate, arithmetic
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation, AggregationOperator
from hpcgnn.spmd import collective


def dense_rows(x: Tensor) -> Tensor:
    """Return rows (N, F), written out where they are sparse.

    For messages that are no linear maps of rows: they have as many columns themselves.
    """
    return x.written_out() if isinstance(x, SparseFeatures) else x


def mapped_first(x: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (N, any) and maps (K, any, out) with the products of x (N, F) and (K, F, out).

    Where K out columns are fewer to aggregate than F, the products of all maps come first, side by
    side, and the maps that are returned choose among their columns; elsewhere dense rows stay, and
    sparse ones are written out. Rows without a gradient, as features, are aggregated once, and
    mapped ones twice: there and back.
    """
    count, in_width, out_width = maps.shape
    passes = 1 if isinstance(x, SparseFeatures) or x.requires_grad else 2
    if passes * count * out_width >= in_width:
        return dense_rows(x), maps
    joined = maps.transpose(1, 2).reshape(count * out_width, in_width)
    choices = torch.eye(len(joined), dtype=maps.dtype, device=maps.device)
    return arithmetic().linear(x, joined), choices.view(count, out_width, -1).transpose(1, 2)


@collective
def mapped_powers(
    operators: Sequence[AggregationOperator], x: Tensor, weights: Sequence[Tensor]
) -> list[Tensor]:
    """Return ``A_1 X W_1ᵀ``, ``A_2 A_1 X W_2ᵀ`` and so on, differentiable in the weights.

    Collective, and so is its backward pass. `x` are (N, F) sparse features, weights (any, F). All
    maps are one product, and a result is aggregated no further than it goes.
    """
    rows = arithmetic().linear(x, torch.cat(list(weights)))
    powers = []
    for operator, weight in zip(operators, weights, strict=True):
        rows = aggregate(operator, rows)
        powers.append(rows[:, : len(weight)])
        rows = rows[:, len(weight) :]
    return powers


@collective
def powers_of(view: LayerView, kind: Aggregation, x: Tensor, maps: Sequence[Any]) -> list[Tensor]:
    """Return ``Aʲ X W_jᵀ + b_j`` at the output nodes, for j from 1, a map for each.

    Maps are `hpcgnn.nn.Linear`. Powers are repeated products: ``Aʲ X = A (Aʲ⁻¹ X)``, each computed
    once. Sparse rows are mapped before them.
    """
    operators = [step.operators[kind] for step in view.steps]
    if isinstance(x, SparseFeatures):
        powers = mapped_powers(operators, x, [linear.weight for linear in maps])
        # The rows of the next power contain those of the layer's outputs.
        powers = [view.after(index + 1, rows) for index, rows in enumerate(powers)]
        return [_shifted(rows, linear.bias) for rows, linear in zip(powers, maps, strict=True)]
    powers = []
    for index, (operator, linear) in enumerate(zip(operators, maps, strict=True)):
        x = aggregate(operator, x)
        powers.append(linear(view.after(index + 1, x)))
    return powers


def _shifted(rows: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return rows
    return (rows + arithmetic().for_rows(bias, len(rows))).to(rows.dtype)
