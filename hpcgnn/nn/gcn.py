"""Graph convolutional network (Kipf and Welling, ICLR 2017)."""

from itertools import pairwise

from torch import Tensor, nn

from hpcgnn.autograd import graph_linear
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.model import Aggregations, LayerView, ModelShape

__all__ = ["GCN", "GCNLayer"]


class GCNLayer(nn.Module):
    """One convolution: ``Â X W + b``, plus ``X R`` with residual weights."""

    def __init__(self, in_width: int, out_width: int, *, residual: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, out_width, bias=False)
        self.bias = nn.Parameter(self.linear.weight.new_zeros(out_width))
        self.residual = nn.Linear(in_width, out_width, bias=False) if residual else None
        nn.init.xavier_uniform_(self.linear.weight)
        if self.residual is not None:
            nn.init.xavier_uniform_(self.residual.weight)

    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width).

        Collective.
        """
        operator = view.operators[Aggregations.SYMMETRIC]
        out = graph_linear(operator, x, self.linear.weight) + self.bias
        if self.residual is not None:
            out = out + self.residual(view.own(x))
        return out


class GCN(LayeredModel):
    """GCN of any depth: symmetric normalisation with self loops, ReLU, dropout, optional residuals.

    Not collective. The one matrix serves directed graphs too.
    """

    aggregations = (Aggregations.SYMMETRIC,)

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        widths = shape.widths()
        for in_width, out_width in pairwise(widths):
            self.layers.append(GCNLayer(in_width, out_width, residual=shape.residual))
