"""MeshGraphNet: perceptrons on edges and nodes of a mesh (Pfaff et al., ICLR 2021)."""

from types import MappingProxyType

from torch import Tensor
from typing_extensions import override

from hpcgnn.nn.edge_linear import EdgeLinear, EdgePerceptron
from hpcgnn.nn.edge_states import EdgeStateLayer, EdgeStateModel
from hpcgnn.nn.perceptron import Perceptron
from hpcgnn.support import NOTHING, Trait


class Processor(EdgeStateLayer):
    """``e_ij += MLP [x_i, x_j, e_ij]``, then ``x_i += MLP [x_i, Σ_j e_ij]``, all of `width`."""

    def __init__(self, width: int, num_maps: int, activation: str) -> None:
        super().__init__()
        rest = Perceptron([width] * num_maps, activation)
        self.edges = EdgePerceptron(EdgeLinear(width, width, width, width), rest, residual=True)
        self.nodes = Perceptron([2 * width, *[width] * num_maps], activation, residual=True)

    @override
    def updated(self, own: Tensor, summed: Tensor) -> Tensor:
        return self.nodes(own, summed)


class MeshGraphNet(EdgeStateModel):
    """An encoder, `num_layers` processors and a decoder: perceptrons of ``options.maps`` maps."""

    own_options = MappingProxyType({"maps": 3})
    needs = frozenset({Trait.STORED_EDGE_FEATURES, Trait.EDGE_STATES})
    lacks = NOTHING
    takes_sparse = True

    @override
    def make_map(self, in_width: int, out_width: int, *, is_last: bool = False) -> Perceptron:
        inner = [self.shape.hidden] * (self.shape.own["maps"] - 1)
        return Perceptron([in_width, *inner, out_width], self.shape.activation, normed=not is_last)

    @override
    def make_layer(self, index: int) -> Processor:
        return Processor(self.shape.hidden, self.shape.own["maps"], self.shape.activation)
