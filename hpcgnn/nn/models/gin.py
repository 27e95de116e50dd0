"""Graph isomorphism network (Xu et al., ICLR 2019): sums of neighbours and a perceptron.

A second direction of the graph enters the perceptron through weights of its own.
"""

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import (
    Epilogue,
    SparseFeatures,
    add_own_share,
    arithmetic,
    graph_linear,
    map_with_share,
)
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation, AggregationOperator, choose_order
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING

_DIRECTIONS = (Aggregation.SUM_IN, Aggregation.SUM_OUT)


class GINLayer(nn.Module):
    """``relu((1 + ε) X W + A X W + Aᵀ X W' + b) W_2 + b_2``; the last sum on directed graphs.

    There are `inner_width` columns between the two maps. The width of a last layer's output would
    be too small: one or two rectifiers soon give zero for all nodes, and then learn nothing more.
    """

    def __init__(self, in_width: int, inner_width: int, out_width: int, *, directed: bool) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.first = Linear(in_width, inner_width)
        self.reversed = Linear(in_width, inner_width, bias=False) if directed else None
        self.second = Linear(inner_width, out_width)

    def _maps_first(self, operator: AggregationOperator, x: Tensor) -> bool:
        """Return whether own rows and neighbours are mapped together, before they are added up."""
        if self.reversed is not None:
            return False
        if isinstance(x, SparseFeatures):
            return True
        out_width, in_width = self.first.weight.shape
        needs_input = x.requires_grad
        order = choose_order(operator.size, in_width, out_width, needs_input_gradient=needs_input)
        return not order.aggregate_first

    @collective
    def forward(self, view: LayerView, x: Tensor, epilogue: Epilogue | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        share, bias, rectified = 1 + self.epsilon, self.first.bias, Epilogue(view.node_ids)
        of_neighbours = view.operators[Aggregation.SUM_IN]
        if self._maps_first(of_neighbours, x):
            rows = arithmetic().linear(x, self.first.weight)
            own = share, view.own(rows)
            return self.second(add_own_share(of_neighbours, rows, own, bias, rectified), epilogue)
        if self.reversed is None and not x.requires_grad:
            own, weight = (share, view.own(x)), self.first.weight
            inner = map_with_share(of_neighbours, x, own, weight, bias, rectified)
            return self.second(inner, epilogue)
        operators, weights = [of_neighbours], [self.first.weight]
        if self.reversed is not None:
            operators.append(view.operators[Aggregation.SUM_OUT])
            weights.append(self.reversed.weight)
        mixed = arithmetic().combine(share[None, None], self.first.weight[None])[0]
        roots = [(view.own(x), mixed)]
        inner = graph_linear(operators, x, weights, own=roots, bias=bias, epilogue=rectified)
        return self.second(inner, epilogue)


class GIN(LayeredModel):
    """GIN of any depth; graphs with hubs need a ``norm``, since sums grow with degrees."""

    aggregations = _DIRECTIONS
    lacks = NOTHING
    aggregates_features = fuses_epilogue = takes_sparse = True
    maps_own_rows = True
    shift = "second.bias"

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> GINLayer:
        return GINLayer(in_width, self.shape.hidden, out_width, directed=self.directed)
