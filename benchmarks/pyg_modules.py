"""Single-process torch-geometric modules: from its `nn.models`, and its examples rewritten.

They have the arguments of `hpcgnn train model.name=pyg:benchmarks.pyg_modules:NAME`, but no ranks.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    PNA,
    AGNNConv,
    ARMAConv,
    DeepGCNLayer,
    EdgeCNN,
    GCN2Conv,
    GENConv,
    GraphSAGE,
    SGConv,
    TAGConv,
    TransformerConv,
)

DEGREES = torch.bincount(torch.arange(40))
"""Number of nodes by degree, for PNA's scalers; the same for every module."""


class Norms(PNA):
    """PNA with three aggregations and three scalers."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        dropout: float,
    ) -> None:
        super().__init__(
            in_channels,
            hidden_channels,
            num_layers,
            out_channels,
            dropout,
            aggregators=["mean", "max", "std"],
            scalers=["identity", "amplification", "attenuation"],
            deg=DEGREES,
        )


class Steps(nn.Module):
    """Layers on rows and edges, with dropout before each and `act` between them."""

    def __init__(self, layers: list[nn.Module], dropout: float, act: Any = functional.relu) -> None:
        super().__init__()
        self.layers, self.dropout, self._act = nn.ModuleList(layers), dropout, act

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (N, out_channels)."""
        for place, layer in enumerate(self.layers):
            x = functional.dropout(x if place == 0 else self._act(x), self.dropout, self.training)
            x = layer(x) if isinstance(layer, nn.Linear) else layer(x, edge_index)
        return x


class Predicts(Steps):
    """APPNP: two linear maps, then propagation steps."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float
    ) -> None:
        maps = [nn.Linear(in_channels, hidden_channels), nn.Linear(hidden_channels, out_channels)]
        super().__init__(maps, dropout)
        self.steps = APPNP(10, 0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (N, out_channels)."""
        return self.steps(super().forward(x, edge_index), edge_index)


class Simple(Steps):
    """SGC: a power of the adjacency matrix and one linear map."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__([SGConv(in_channels, out_channels, K=2)], dropout)


class Filters(Steps):
    """ARMA: stacks of recursive filters."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float
    ) -> None:
        sizes = {"num_stacks": 3, "num_layers": 2, "shared_weights": True}
        layers = [
            ARMAConv(in_channels, hidden_channels, **sizes),
            ARMAConv(hidden_channels, out_channels, act=lambda x: x, **sizes),
        ]
        super().__init__(layers, dropout)


class Powers(Steps):
    """TAGCN: polynomials of the adjacency matrix."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float
    ) -> None:
        layers = [TAGConv(in_channels, hidden_channels), TAGConv(hidden_channels, out_channels)]
        super().__init__(layers, dropout)


class Cosines(Steps):
    """AGNN: attention by the cosine of rows, between two linear maps."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float
    ) -> None:
        super().__init__(
            [
                nn.Linear(in_channels, hidden_channels),
                AGNNConv(requires_grad=False),
                AGNNConv(requires_grad=True),
                nn.Linear(hidden_channels, out_channels),
            ],
            dropout,
        )


class Unified(Steps):
    """UniMP's layers: dot-product attention with a gate."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float
    ) -> None:
        layers = [
            TransformerConv(in_channels, hidden_channels // 2, heads=2, beta=True),
            TransformerConv(hidden_channels, out_channels, heads=2, concat=False, beta=True),
        ]
        super().__init__(layers, dropout)


class Initial(nn.Module):
    """GCNII: layers that read the first rows again."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, hidden_channels)
        self.last = nn.Linear(hidden_channels, out_channels)
        self.convs = nn.ModuleList(
            GCN2Conv(hidden_channels, 0.1, 0.5, place + 1, cached=False)
            for place in range(2 * num_layers)
        )
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (N, out_channels)."""
        x = start = self.first(functional.dropout(x, self.dropout, self.training)).relu()
        for conv in self.convs:
            x = functional.dropout(x, self.dropout, self.training)
            x = conv(x, start, edge_index).relu()
        return self.last(functional.dropout(x, self.dropout, self.training))


class Deep(nn.Module):
    """DeepGCN: residual layers of GENConv."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, hidden_channels)
        self.last = nn.Linear(hidden_channels, out_channels)
        self.layers = nn.ModuleList(
            DeepGCNLayer(
                GENConv(hidden_channels, hidden_channels, aggr="softmax", learn_t=True),
                nn.LayerNorm(hidden_channels),
                nn.ReLU(),
                block="res+",
                dropout=dropout,
            )
            for _ in range(2 * num_layers)
        )
        self.dropout = dropout

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (N, out_channels)."""
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        x = self.layers[0].act(self.layers[0].norm(x))
        return self.last(functional.dropout(x, self.dropout, self.training))


MODULES: dict[str, type[nn.Module]] = {
    "GCN": GCN,
    "GraphSAGE": GraphSAGE,
    "GAT": GAT,
    "GIN": GIN,
    "PNA": Norms,
    "EdgeCNN": EdgeCNN,
    "DeepGCN": Deep,
    "GCNII": Initial,
    "APPNP": Predicts,
    "SGC": Simple,
    "ARMA": Filters,
    "TAGCN": Powers,
    "AGNN": Cosines,
    "UniMP": Unified,
}
"""Name of a model in torch-geometric or a paper -> its class."""
