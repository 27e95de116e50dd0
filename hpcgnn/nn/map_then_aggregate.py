"""Apply the linear map of a layer before its aggregation, for sparse or wide rows.

Aggregations and maps are linear, so ``(A X) W = A (X W)``. With the map first, the product uses
only the non-zeros of X, and the aggregated rows have the columns of the map.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpcgnn.autograd import SparseFeatures, aggregate, arithmetic
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective


def dense_rows(x: Tensor) -> Tensor:
    """Return rows (N, F), made dense if they are sparse.

    This is for messages that are not linear in the rows and so have as many columns.
    """
    return x.written_out() if isinstance(x, SparseFeatures) else x


def mapped_first(x: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (N, any) and maps (K, any, out) with the products of x (N, F) and (K, F, out).

    If aggregating K out columns is cheaper than F, the rows are the products with all maps side by
    side, and the returned maps select their columns. Otherwise rows are unchanged, but dense. The
    cost counts passes: rows without a gradient, such as features, are aggregated only forward,
    mapped rows forward and backward.
    """
    count, in_width, out_width = maps.shape
    passes = 1 if isinstance(x, SparseFeatures) or x.requires_grad else 2
    if passes * count * out_width >= in_width:
        return dense_rows(x), maps
    joined = maps.transpose(1, 2).reshape(count * out_width, in_width)
    choices = torch.eye(len(joined), dtype=maps.dtype, device=maps.device)
    return arithmetic().linear(x, joined), choices.view(count, out_width, -1).transpose(1, 2)


@collective
def powers_of(view: LayerView, kind: Aggregation, x: Tensor, maps: Sequence[Any]) -> list[Tensor]:
    """Return ``Aʲ X W_jᵀ + b_j`` at the output nodes for j from 1, with one map for each power.

    Maps are `hpcgnn.nn.Linear`. Powers are repeated products, ``Aʲ X = A (Aʲ⁻¹ X)``, each computed
    once. Sparse rows are mapped before they are aggregated.
    """
    operators, powers = [step.operators[kind] for step in view.steps], []
    if isinstance(x, SparseFeatures):
        # All maps are one product, and each result is aggregated only as often as needed.
        rows = arithmetic().linear(x, torch.cat([linear.weight for linear in maps]))
        for index, (operator, linear) in enumerate(zip(operators, maps, strict=True)):
            rows, width = aggregate(operator, rows), len(linear.weight)
            # Every power's rows include those of the layer's outputs.
            powers.append(_shifted(view.after(index + 1, rows[:, :width]), linear.bias))
            rows = rows[:, width:]
        return powers
    for index, (operator, linear) in enumerate(zip(operators, maps, strict=True)):
        x = aggregate(operator, x)
        powers.append(linear(view.after(index + 1, x)))
    return powers


def _shifted(rows: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return rows
    return (rows + arithmetic().for_rows(bias, len(rows))).to(rows.dtype)
