"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017).

On a directed graph, in-neighbours and out-neighbours have different meanings, so each direction has
its own mean and weights. The second uses the transpose of the first's matrix and the same exchange
plan.
"""

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import Epilogue, graph_linear
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING

_DIRECTIONS = (Aggregation.MEAN_IN, Aggregation.MEAN_OUT)


class SAGELayer(nn.Module):
    """One layer: ``X W_self + Σ_d M_d X W_d + b`` over the directions d of the graph.

    With edge features the messages of in-neighbours are ``W x_j + V e_ij``, whose mean is
    ``W (mean of x_j) + V (mean of e_ij)``; the second mean is the same in every epoch.
    """

    def __init__(
        self, in_width: int, out_width: int, *, directed: bool, num_edge_features: int = 0
    ) -> None:
        super().__init__()
        self.own = Linear(in_width, out_width)
        self.neighbours = nn.ParameterList(
            self.own.weight.new_empty(out_width, in_width) for _ in range(1 + directed)
        )
        self.edges: Linear | None = None
        if num_edge_features:
            self.edges = xavier_linear(num_edge_features, out_width)
        nn.init.zeros_(self.own.bias)
        for weight in (self.own.weight, *self.neighbours):
            nn.init.xavier_uniform_(weight)

    @collective
    def forward(self, view: LayerView, x: Tensor, epilogue: Epilogue | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        operators = [view.operators[direction] for direction in _DIRECTIONS[: len(self.neighbours)]]
        own = [(view.own(x), self.own.weight)]
        if self.edges is not None:
            means = view.own_traits.edge_means
            assert means is not None
            own.append((means.to(x.dtype), self.edges.weight))
        return graph_linear(
            operators, x, list(self.neighbours), own=own, bias=self.own.bias, epilogue=epilogue
        )


class GraphSAGE(LayeredModel):
    """GraphSAGE (mean) of any depth."""

    aggregations = _DIRECTIONS
    lacks = NOTHING
    options = LayeredModel.options | {"edge_features"}
    aggregates_features = fuses_epilogue = takes_sparse = True
    maps_own_rows = True
    shift = "own.bias"

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> SAGELayer:
        features = self.shape.num_edge_features
        return SAGELayer(in_width, out_width, directed=self.directed, num_edge_features=features)
