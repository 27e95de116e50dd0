"""Residual gated graph convolutions with states of edges (Bresson and Laurent, 2017)."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import EdgeResult, reduce_messages
from hpcgnn.nn.edge_linear import EdgeLinear, EdgeNetwork
from hpcgnn.nn.edge_states import EdgeStateModel
from hpcgnn.nn.layered import ACTIVATION_FUNCTIONS
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import LayerView
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING, Trait

EPSILON = 1e-6


class _Gates(EdgeNetwork):
    """Of each edge the gate, and beside it what passes."""

    def __init__(self, width: int, activation: str) -> None:
        super().__init__(EdgeLinear(width, width, width, width))
        self.value, self.norm = Linear(width, width), nn.LayerNorm(width)
        self.activate = ACTIVATION_FUNCTIONS[activation]

    @override
    def arrived(self, rows: Tensor) -> Tensor:
        # The row itself travels: both of its maps would be twice as wide.
        return torch.cat([self.first.map_sources(rows), self.value(rows)], dim=1)

    def forward(self, targets: Tensor, sources: Tensor, states: Tensor) -> EdgeResult:
        share, value = sources.chunk(2, dim=1)
        inner = self.first(targets, share, states)
        gate = torch.sigmoid(inner)
        states = states + self.activate(self.norm(inner))
        return EdgeResult(torch.cat([gate, gate * value], dim=1), states=states)


class GatedLayer(nn.Module):
    """``x_i += act(N(U x_i + Σ_j g_ij V x_j / (Σ_j g_ij + 1e-6)))``, with N a layer norm.

    The gates are ``g_ij = sigmoid(z_ij)`` of ``z_ij = W [x_i, x_j, e_ij] + b``; then
    ``e_ij += act(N(z_ij))``.
    """

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        self.edges = _Gates(width, activation)
        self.own, self.norm = Linear(width, width), nn.LayerNorm(width)

    @collective
    def forward(self, view: LayerView, x: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new rows (output rows, width) and states (E, width)."""
        own = view.own(x)
        mine = self.edges.first.of_targets(own)
        sums, new = reduce_messages(view.edges, self.edges, targets=mine, sources=x, states=states)
        assert new is not None
        gates, passed = sums.chunk(2, dim=1)
        inner = self.own(own) + passed / (gates + EPSILON)
        return own + self.edges.activate(self.norm(inner)), new


class GatedGCN(EdgeStateModel):
    """Gated layers between maps of the features of nodes and edges, and one to the classes."""

    needs = frozenset({Trait.STORED_EDGE_FEATURES, Trait.EDGE_STATES})
    lacks = NOTHING

    @override
    def make_layer(self, index: int) -> GatedLayer:
        return GatedLayer(self.shape.hidden, self.shape.activation)
