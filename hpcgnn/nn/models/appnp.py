"""APPNP: predict then propagate (Gasteiger, Bojchevski and Günnemann, ICLR 2019)."""

from itertools import pairwise

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import ACTIVATIONS, DropoutKey, aggregate, blend, dropout, widened
from hpcgnn.nn.linear import Linear
from hpcgnn.nn.model import GraphView, Model, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class APPNP(Model):
    """A perceptron of ``num_layers`` maps, then personalised PageRank in ``hops`` steps.

    A step is ``Z ← (1 - t) Â Z + t H``, starting from the perceptron's rows ``Z = H``, which have
    the width of the logits; t is ``teleport``.
    """

    aggregations = (Aggregation.SYMMETRIC,)
    lacks = NOTHING
    default_hops = 10
    propagates_once = True
    takes_sparse = True
    options = frozenset({"activation", "hops", "teleport"})

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairwise(shape.widths()))

    @collective
    @override
    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        view = graph.layer(0, self.num_aggregations(self.shape))
        h_NC = self._perceptron(len(self.layers), graph, x_NF, key)
        share, z_NC = self.shape.teleport, h_NC
        for step in view.steps:
            z_NC = aggregate(step.operators[Aggregation.SYMMETRIC], z_NC)
            h_NC = step.own(h_NC)
            z_NC = blend(z_NC, h_NC, share)
        return widened(z_NC)

    @override
    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        return self._perceptron(len(self.layers) - 1, graph, x_NF, None)

    def _perceptron(
        self, num_maps: int, graph: GraphView, x_NF: Tensor, key: DropoutKey | None
    ) -> Tensor:
        ids, h_NH = graph.layer(0).node_ids, x_NF
        for index in range(num_maps):
            draw = key.at(index) if key is not None else None
            h_NH = dropout(h_NH, ids, draw, self.shape.dropout_before(index))
            h_NH = self.layers[index](h_NH)
            if index < len(self.layers) - 1:
                h_NH = ACTIVATIONS[self.shape.activation].whole(h_NH)
        return h_NH
