"""What layers that aggregate before they map do with sparse features: the map comes first.

Aggregations are linear, as maps are, so that ``(A X) W = A (X W)``: the product is of what is not
zero of X, and what is aggregated has the columns of the map.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcgnn.autograd.aggregate import aggregate
from hpcgnn.autograd.arithmetic import arithmetic
from hpcgnn.autograd.sparse_features import SparseFeatures
from hpcgnn.operator import AggregationOperator
from hpcgnn.spmd import collective


def dense_rows(x: Tensor) -> Tensor:
    """Return rows (N, F), written out where they are sparse.

    For messages that are no linear maps of rows: they have as many columns themselves.
    """
    return x.written_out() if isinstance(x, SparseFeatures) else x


def mapped_first(x: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (N, any) and maps (K, any, out) with the products of x (N, F) and (K, F, out).

    Dense rows stay. Of sparse ones the products of all maps come first, side by side, and the maps
    that are returned choose among their columns; where these would be no fewer than F, the rows are
    written out.
    """
    count, in_width, out_width = maps.shape
    if not isinstance(x, SparseFeatures) or count * out_width >= in_width:
        return dense_rows(x), maps
    joined = maps.transpose(1, 2).reshape(count * out_width, in_width)
    choices = torch.eye(len(joined), dtype=maps.dtype).view(count, out_width, -1)
    return arithmetic().linear(x, joined), choices.transpose(1, 2)


@collective
def mapped_powers(
    operators: Sequence[AggregationOperator], x: Tensor, weights: Sequence[Tensor]
) -> list[Tensor]:
    """Return ``A_1 X W_1ᵀ``, ``A_2 A_1 X W_2ᵀ`` and so on, differentiable in the weights.

    Collective, and so is its backward pass. `x` are (N, F) sparse features, weights (any, F). All
    maps are one product, and a result is aggregated no further than it goes.
    """
    rows = arithmetic().linear(x, torch.cat(list(weights)))
    found = []
    for operator, weight in zip(operators, weights, strict=True):
        rows = aggregate(operator, rows)
        found.append(rows[:, : len(weight)])
        rows = rows[:, len(weight) :]
    return found
