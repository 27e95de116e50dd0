"""NNConv: convolutions whose matrices are functions of edge features (Gilmer et al., ICML 2017)."""

from types import MappingProxyType

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import EdgeModule, arithmetic, reduce_messages
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.map_then_aggregate import dense_rows
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING, Trait


class _MatrixMessages(EdgeModule):
    """``x_j W(e_ij)`` with the matrix ``W(e) = V relu(U e + a) + c``."""

    def __init__(self, in_width: int, inner: int, out_width: int, num_edge_features: int) -> None:
        super().__init__()
        self.shape, self.width = (in_width, out_width), in_width * out_width
        self.first, self.second = Linear(num_edge_features, inner), Linear(inner, self.width)

    def forward(self, targets: None, sources: Tensor, states: Tensor) -> Tensor:
        matrices = self.second(torch.relu(self.first(states))).view(-1, *self.shape)
        return arithmetic().multiply_each(sources, matrices)


class NNConvLayer(nn.Module):
    """``W x_i + b`` plus the mean of ``x_j W(e_ij)``, whose network has `inner` units."""

    def __init__(self, in_width: int, out_width: int, inner: int, num_edge_features: int) -> None:
        super().__init__()
        self.messages = _MatrixMessages(in_width, inner, out_width, num_edge_features)
        self.own = Linear(in_width, out_width)

    @collective
    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        edges, rows = view.edges, dense_rows(x)
        means, _ = reduce_messages(
            edges, self.messages, sources=rows, states=edges.stored, reduce=["mean"]
        )
        return self.own(view.own(x)) + means


class NNConv(LayeredModel):
    """NNConv of any depth; ``options.inner`` is the number of units of the networks on edges."""

    aggregations = (Aggregation.ADDED_MESSAGES,)

    needs = frozenset({Trait.STORED_EDGE_FEATURES})
    lacks = NOTHING
    takes_sparse = maps_own_rows = True
    own_options = MappingProxyType({"inner": 32})
    shift = "own.bias"

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> NNConvLayer:
        inner, width = self.shape.own["inner"], self.shape.num_edge_features
        return NNConvLayer(in_width, out_width, inner, width)
