"""Common parts of models with several attention heads."""

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import DropoutKey
from hpcgnn.errors import InputError
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import Linear, xavier_linear
from hpcgnn.nn.model import LayerView, ModelShape
from hpcgnn.spmd import collective


def require_heads(shape: ModelShape) -> None:
    """Raise an `InputError` if the heads do not divide the width of hidden layers."""
    if shape.hidden % shape.heads:
        raise InputError(
            f"model.heads = {shape.heads}: they do not divide model.hidden = {shape.hidden}"
        )


class HeadsLayer(nn.Module):
    """A layer of several heads; `width` is the number of columns of each.

    `out_width` is the number of columns of all heads side by side, which `heads` must divide, or of
    each head if they are averaged, as in a last layer. With `num_edge_features` above 0 the layer
    reads edge features, which are part of the pattern.
    """

    def __init__(
        self, out_width: int, *, heads: int, average: bool, num_edge_features: int = 0
    ) -> None:
        super().__init__()
        self.heads, self.average = heads, average
        self.width = out_width if average else out_width // heads
        self.edges: Linear | None = None
        if num_edge_features:
            self.edges = xavier_linear(num_edge_features, heads * self.width)


class HeadsModel(LayeredModel):
    """Layers of any depth; hidden layers concatenate their heads, the last one averages them.

    `hidden` is the width of all heads together.
    """

    options = LayeredModel.options | {
        "heads", "attention_dropout", "edge_dropout", "edge_features"
    }  # fmt: skip
    layers_save_results = True

    @classmethod
    @override
    def check(cls, shape: ModelShape) -> None:
        if shape.num_hidden_layers:
            require_heads(shape)

    @abstractmethod
    def heads_layer(self, in_width: int, out_width: int, **how: Any) -> HeadsLayer:
        """Return a layer; `how` are the keyword arguments of `HeadsLayer`."""

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> HeadsLayer:
        return self.heads_layer(
            in_width,
            out_width,
            heads=self.shape.heads,
            average=index >= self.shape.num_hidden_layers,
            num_edge_features=self.shape.num_edge_features,
        )

    @collective
    @override
    def run_layer(self, index: int, view: LayerView, x: Tensor, draw: DropoutKey | None) -> Tensor:
        return self.layers[index](view, x, self.edges_left_out(draw))
