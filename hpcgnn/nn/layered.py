"""The body that layer-by-layer models share: dropout, layer, activation, up to the logits."""

from torch import Tensor, nn
from torch.nn import functional

from hpcgnn.autograd import DropoutKey, dropout
from hpcgnn.nn.model import GraphView, Model, ModelShape

__all__ = ["LayeredModel"]


class LayeredModel(Model):
    """A stack of graph layers, each called as ``layer(view, x)``, with ReLU between them.

    Subclasses fill `layers` in their constructor.
    """

    def __init__(self, shape: ModelShape, *, directed: bool) -> None:
        super().__init__(shape, directed=directed)
        self.layers = nn.ModuleList()

    def forward(self, graph: GraphView, x_NF: Tensor, key: DropoutKey | None) -> Tensor:
        """Return logits (N, C); see `Model.forward`.

        Collective.
        """
        return self._through(len(self.layers), graph, x_NF, key)

    def embed(self, graph: GraphView, x_NF: Tensor) -> Tensor:
        """Return the input of the last layer (N, H); for one layer, the features.

        Collective.
        """
        return self._through(len(self.layers) - 1, graph, x_NF, None)

    def input_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the first layer."""
        return list(self.layers[0].parameters())

    def _through(
        self, num_layers: int, graph: GraphView, x_NF: Tensor, key: DropoutKey | None
    ) -> Tensor:
        h_NH = x_NF
        for place in range(num_layers):
            view = graph.layer(place)
            draw = key.at(place) if key is not None else None
            h_NH = dropout(h_NH, view.node_ids, draw, self.shape.dropout_before(place))
            h_NH = self.layers[place](view, h_NH)
            if place < len(self.layers) - 1:
                h_NH = functional.relu(h_NH)
        return h_NH
