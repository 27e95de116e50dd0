"""MixHop (Abu-El-Haija et al., ICML 2019): every layer mixes several powers of the adjacency."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from hpcgnn.autograd import arithmetic
from hpcgnn.errors import InputError
from hpcgnn.nn.layered import LayeredModel
from hpcgnn.nn.linear import xavier_linear
from hpcgnn.nn.map_then_aggregate import powers_of
from hpcgnn.nn.model import LayerView, ModelShape
from hpcgnn.operator import Aggregation
from hpcgnn.spmd import collective
from hpcgnn.support import NOTHING


class MixHopLayer(nn.Module):
    """``[X W_0 | Â X W_1 | Â² X W_2 ...] + b``, or with `summed` the sum of the terms plus b.

    See `powers_of`. With `summed` each term has the whole width.
    """

    def __init__(self, in_width: int, out_width: int, hops: int, *, summed: bool) -> None:
        super().__init__()
        share, remainder = divmod(out_width, hops + 1)
        widths = [share + (power < remainder) for power in range(hops + 1)]
        self.summed = summed
        self.powers = nn.ModuleList(
            xavier_linear(in_width, out_width if summed else width) for width in widths
        )
        self.bias = nn.Parameter(torch.zeros(out_width))

    @collective
    def forward(self, view: LayerView, x: Tensor) -> Tensor:
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        targets = view.own(x)
        first, *maps = self.powers
        outputs = [first(targets), *powers_of(view, Aggregation.SYMMETRIC, x, maps)]
        bias = arithmetic().for_rows(self.bias, len(targets))
        if self.summed:
            return (torch.stack(outputs).sum(0) + bias).to(targets.dtype)
        return (torch.cat(outputs, dim=1) + bias).to(targets.dtype)


class MixHop(LayeredModel):
    """MixHop with the powers 0 to ``hops`` (default 2), side by side in hidden layers.

    The last layer, which has the width of the classes, adds its powers up.
    """

    aggregations = (Aggregation.SYMMETRIC,)
    lacks = NOTHING
    default_hops = 2
    aggregates_features = takes_sparse = True
    options = LayeredModel.options | {"hops"}
    maps_own_rows = True
    shift = "bias"

    @classmethod
    @override
    def check(cls, shape: ModelShape) -> None:
        powers = cls.steps_per_layer(shape) + 1
        if shape.hidden < powers:
            raise InputError(
                f"model.hidden = {shape.hidden}: the {powers} powers of mixhop share this width; "
                f"use at least {powers}, or lower model.hops"
            )

    @override
    def make_layer(self, index: int, in_width: int, out_width: int) -> MixHopLayer:
        summed = index >= self.shape.num_hidden_layers
        return MixHopLayer(in_width, out_width, self.steps_per_layer(self.shape), summed=summed)
