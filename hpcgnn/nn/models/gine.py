"""GINE: graph isomorphism network with edge features (Hu et al., ICLR 2020)."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from hpcgnn.autograd import add_share, arithmetic, reduce_messages, relu_, rematerialised
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.map_then_aggregate import dense_rows
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING, Trait


class _EdgeMessages(nn.Linear):
    """``relu(x_j + W_e e_ij + b_e)``."""

    # As a subclass, its weights have the names of a linear map's, in checkpoints too.
    def forward(  # type: ignore[override]
        self, _targets: None, sources: Tensor, states: Tensor
    ) -> Tensor:
        return functional.relu(arithmetic().linear(states, self.weight, self.bias) + sources)


class GINELayer(nn.Module):
    """``relu(Z W + b) W_2 + b_2`` with ``z_i = (1 + ε) x_i + Σ_j relu(x_j + W_e e_ij + b_e)``.

    `inner_width` is as in `GINLayer`.
    """

    def __init__(
        self, in_width: int, inner_width: int, out_width: int, num_edge_features: int
    ) -> None:
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.edges = _EdgeMessages(num_edge_features, in_width)
        self.first = Linear(in_width, inner_width)
        self.second = Linear(inner_width, out_width)

    @collective
    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        edges, x = view.edges, dense_rows(x)
        summed, _ = reduce_messages(edges, self.edges, sources=x, states=edges.stored)
        mixed = add_share(summed, view.own(x), 1 + self.epsilon)
        del summed
        inner = self.first(mixed)
        # To save memory, keep only the narrowest rows and recompute their map.
        again = (inner, lambda rows: functional.relu(self.first(rows)), mixed)
        with rematerialised(*((again,) if edges.operator.states_again else ())):
            return self.second(relu_(inner))


class GINE(LayeredModel):
    """GINE of any depth, over in-neighbours; with hubs use a ``norm``, as sums grow by degree."""

    aggregations = (Aggregation.ADDED_MESSAGES,)

    needs = frozenset({Trait.STORED_EDGE_FEATURES})
    lacks = NOTHING
    takes_sparse = maps_own_rows = True
    shift = "second.bias"

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> GINELayer:
        return GINELayer(in_width, self.shape.hidden, out_width, self.shape.num_edge_features)
