"""GatedGCN: residual gated graph convolutions with edge states (Bresson and Laurent, 2017)."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import ACTIVATIONS, EdgeResult, arithmetic, layer_norm
from hpcgnn.nn.edge_linear import EdgeLinear, EdgeNetwork
from hpcgnn.nn.edge_states import EdgeStateLayer, EdgeStateModel
from hpcgnn.nn.linear import Linear
from hpcgnn.support import NOTHING, Trait


class _Gates(EdgeNetwork):
    """The gates of edges, and the gated values; rows travel, as their two maps are wider."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__(EdgeLinear(width, width, width, width, rows_travel=True))
        self.value, self.norm = Linear(width, width), nn.LayerNorm(width)
        self.activate = ACTIVATIONS[activation].whole

    @override
    def arrived(self, rows: Tensor) -> Tensor:
        return torch.cat([self.first.map_sources(rows), self.value(rows)], dim=1)

    def forward(self, targets: Tensor, sources: Tensor, states: Tensor) -> EdgeResult:
        share, value = sources.chunk(2, dim=1)
        inner = self.first(targets, share, states)
        gate, normed = arithmetic().sigmoid(inner), layer_norm(inner, self.norm)
        new = states + self.activate(normed)
        return EdgeResult(torch.cat([gate, gate * value], dim=1), states=new)


class GatedLayer(EdgeStateLayer):
    """``x_i += act(N(U x_i + Σ_j g_ij V x_j / (Σ_j g_ij + 1e-6)))``, ``e_ij += act(N(z_ij))``.

    Gates are ``g = sigmoid(z)`` with ``z_ij = W [x_i, x_j, e_ij] + b``; N is a layer norm.
    """

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        self.edges = _Gates(width, activation)
        self.own, self.norm = Linear(width, width), nn.LayerNorm(width)
        self.activate = ACTIVATIONS[activation].whole

    @override
    def updated(self, own: Tensor, summed: Tensor) -> Tensor:
        gates, passed = summed.chunk(2, dim=1)
        rows = self.own(own) + passed / (gates + 1e-6)
        return own + self.activate(layer_norm(rows, self.norm))


class GatedGCN(EdgeStateModel):
    """Gated layers between maps of node and edge features and a map to the classes."""

    needs = frozenset({Trait.STORED_EDGE_FEATURES, Trait.EDGE_STATES})
    lacks = NOTHING
    takes_sparse = True

    @override
    def make_layer(self, index: int) -> GatedLayer:
        return GatedLayer(self.shape.hidden, self.shape.activation)
