"""GraphSAGE with mean aggregation (Hamilton, Ying and Leskovec, NeurIPS 2017).

On a directed graph the nodes that point here and the nodes pointed to have different meanings, so
each direction has its own mean and its own weights. The second uses the transpose of the first's
matrix, and the same exchange plan.
"""

from itertools import pairwise

from torch import Tensor, nn

from hpcgnn.autograd import graph_linear
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.model import Aggregations, LayerView, ModelShape

__all__ = ["GraphSAGE", "SAGELayer"]

_DIRECTIONS = (Aggregations.MEAN_IN, Aggregations.MEAN_OUT)


class SAGELayer(nn.Module):
    """One layer: ``X W_self + Σ_d M_d X W_d + b`` over the directions d of the graph."""

    def __init__(
        self, in_width: int, out_width: int, *, directed: bool, residual: bool = False
    ) -> None:
        super().__init__()
        self.own = nn.Linear(in_width, out_width)
        self.neighbours = nn.ParameterList(
            self.own.weight.new_empty(out_width, in_width) for _ in range(1 + directed)
        )
        self.residual = residual and in_width == out_width
        nn.init.zeros_(self.own.bias)
        for weight in (self.own.weight, *self.neighbours):
            nn.init.xavier_uniform_(weight)

    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width).

        Collective.
        """
        own = view.own(x)
        out: Tensor = self.own(own)
        for direction, weight in zip(_DIRECTIONS, self.neighbours, strict=False):
            out = out + graph_linear(view.operators[direction], x, weight)
        return out + own if self.residual else out


class GraphSAGE(LayeredModel):
    """GraphSAGE (mean) of any depth.

    Not collective.

    A learned map of a layer's own input is part of every layer, so `residual` here adds the
    identity between layers of equal width.
    """

    aggregations = _DIRECTIONS

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        widths = shape.widths()
        for in_width, out_width in pairwise(widths):
            self.layers.append(
                SAGELayer(in_width, out_width, directed=directed, residual=shape.residual)
            )
