"""GCNII: deep graph convolutions with initial residuals and maps near the identity.

Chen, Wei, Huang, Ding and Li, "Simple and deep graph convolutional networks", ICML 2020.
"""

import math
from types import MappingProxyType

from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import DropoutKey, aggregate, blend
from hpcgnn.nn.equal_width import EqualWidthModel
from hpcgnn.nn.linear import xavier_linear
from hpcgnn.nn.model import LayerView
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class GCNIILayer(nn.Module):
    """``Z ((1 - β) I + β W)`` with the rows ``Z = (1 - t) Â X + t X₀``.

    `teleport` is t, the share of the first rows; `strength` is β, the share of the learned map.
    """

    def __init__(self, width: int, *, teleport: float, strength: float) -> None:
        super().__init__()
        self.teleport, self.strength = teleport, strength
        self.linear = xavier_linear(width, width)

    @collective
    def forward(self, view: LayerView, x: Tensor, first: Tensor) -> Tensor:
        """Return (output rows, width) for `x` (input rows, width) and `first`, X₀ (output rows)."""
        near = aggregate(view.operators[Aggregation.SYMMETRIC], x)
        mixed = blend(near, first, self.teleport)
        return blend(mixed, self.linear(mixed), self.strength)


class GCNII(EqualWidthModel):
    """``num_layers`` layers between a map of the features and a map to the classes.

    Layer l has ``β = log(1 + θ / l)``, so that deep layers change little.
    """

    aggregations = (Aggregation.SYMMETRIC,)
    lacks = NOTHING
    takes_sparse = True
    options = EqualWidthModel.options | {"teleport"}
    own_options = MappingProxyType({"theta": 0.5})

    @override
    def make_layer(self, index: int) -> GCNIILayer:
        shape = self.shape
        theta = shape.own.get("theta", self.own_options["theta"])
        strength = math.log1p(theta / (index + 1))
        return GCNIILayer(shape.hidden, teleport=shape.teleport, strength=strength)

    @collective
    @override
    def first_carried(self, view: LayerView, first: Tensor) -> Tensor:
        return first

    @collective
    @override
    def run_layer(
        self, index: int, view: LayerView, x: Tensor, carried: Tensor, draw: DropoutKey | None
    ) -> tuple[Tensor, Tensor]:
        first = view.own(carried)
        return self.layers[index](view, x, first), first
