"""Deep graph convolutions: first rows in every layer, maps near the identity (GCNII).

Chen, Wei, Huang, Ding and Li, "Simple and deep graph convolutional networks", ICML 2020.
"""

import math
from types import MappingProxyType

from torch import Tensor, nn

from hpcgnn.autograd import DropoutKey, aggregate, blend, dropout, widened
from hpcgnn.nn.layered import ACTIVATION_FUNCTIONS
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.model import GraphView, LayerView, Model, ModelShape
from hpcgnn.nn.norm import make_norm
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective


class GCNIILayer(nn.Module):
    """``Z ((1 - β) I + β W)`` of the rows ``Z = (1 - t) Â X + t X₀``.

    Parameters
    ----------
    width
        Columns of X, X₀ and the result.
    teleport
        The share t of the first rows.
    strength
        β, the share of the learned map.
    """

    def __init__(self, width: int, *, teleport: float, strength: float) -> None:
        super().__init__()
        self.teleport, self.strength = teleport, strength
        self.linear = xavier_linear(width, width)

    @collective
    def forward(self, view: LayerView, x: Tensor, first: Tensor) -> Tensor:
        """Return (output rows, width).

        Parameters
        ----------
        view
            With the symmetric matrix.
        x
            (input rows, width).
        first
            (output rows, width) X₀.
        """
        near = aggregate(view.operators[Aggregation.SYMMETRIC], x)
        mixed = blend(near, first, self.teleport)
        return blend(mixed, self.linear(mixed), self.strength)


class GCNII(Model):
    """``num_layers`` layers between a map of the features and one to the classes.

    Layer l has ``β = log(1 + θ / l)``, so that deep ones change little.
    """

    aggregations = (Aggregation.SYMMETRIC,)
    options = frozenset({"norm", "activation", "teleport"})
    own_options = MappingProxyType({"theta": 0.5})

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.input = Linear(shape.first_width, shape.hidden)
        theta = shape.own.get("theta", self.own_options["theta"])
        self.layers = nn.ModuleList(
            GCNIILayer(
                shape.hidden, teleport=shape.teleport, strength=math.log1p(theta / (place + 1))
            )
            for place in range(shape.num_layers)
        )
        norms = [make_norm(shape.norm, shape.hidden) for _ in self.layers]
        self.norms = nn.ModuleList(norm for norm in norms if norm is not None)
        self.output = Linear(shape.hidden, shape.num_classes)

    @collective
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits (N, C); see `Model.forward`."""
        last = len(self.layers)
        hidden = self._propagated(graph, x_NF, key)
        draw = None if key is None else key.at(last + 1)
        ids = graph.layer(last - 1).output_ids
        return widened(self.output(dropout(hidden, ids, draw, self.shape.dropout)))

    @collective
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        """Return the input of the map to the classes (N, H)."""
        return self._propagated(graph, x_NF, None)

    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the map of the features."""
        return list(self.input.parameters())

    def _propagated(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        activate, shape = ACTIVATION_FUNCTIONS[self.shape.activation], self.shape
        draw = None if key is None else key.at(0)
        x_NF = dropout(x_NF, graph.layer(0).node_ids, draw, shape.input_dropout)
        h_NH = first = activate(self.input(x_NF))
        for place, layer in enumerate(self.layers):
            view = graph.layer(place)
            draw = None if key is None else key.at(place + 1)
            first = view.own(first)
            h_NH = layer(view, dropout(h_NH, view.node_ids, draw, shape.dropout), first)
            if len(self.norms):
                h_NH = self.norms[place](h_NH, view.sums, training=key is not None)
            h_NH = activate(h_NH)
        return h_NH
