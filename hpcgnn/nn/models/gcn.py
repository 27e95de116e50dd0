"""Graph convolutional network (Kipf and Welling, ICLR 2017)."""

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import Epilogue, graph_linear
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import xavier_linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class GCNLayer(nn.Module):
    """One convolution: ``Â X W + b``."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = xavier_linear(in_width, out_width)
        self.bias = nn.Parameter(self.linear.weight.new_zeros(out_width))

    @collective
    def forward(self, view: LayerView, x: Tensor, epilogue: Epilogue | None = None) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        operator = view.operators[Aggregation.SYMMETRIC]
        return graph_linear([operator], x, [self.linear.weight], bias=self.bias, epilogue=epilogue)


class GCN(LayeredModel):
    """GCN of any depth: symmetric normalisation with self loops, on directed graphs too."""

    aggregations = (Aggregation.SYMMETRIC,)
    lacks = NOTHING
    aggregates_features = fuses_epilogue = takes_sparse = True
    shift = "bias"

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> GCNLayer:
        return GCNLayer(in_width, out_width)
