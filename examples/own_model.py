"""Your own model; start the command in the directory of this file.

mpiexec -n 4 hpcgnn train CONFIG.toml model.name=own_model:Damped model.options.share=0.2
"""

from torch import nn

from hpcgnn import Aggregation
from hpcgnn.autograd import aggregate
from hpcgnn.nn import LayeredModel, Linear


class DampedLayer(nn.Module):
    """``(1 - s) X W + s M X W'`` with the means M X over in-neighbours."""

    def __init__(self, in_width, out_width, share):
        super().__init__()
        self.own, self.far = Linear(in_width, out_width), Linear(in_width, out_width)
        self.share = share

    def forward(self, view, x):
        """Return (output rows, out_width) for `x` (input rows, in_width)."""
        means = aggregate(view.operators[Aggregation.MEAN_IN], x)
        return (1 - self.share) * self.own(view.own(x)) + self.share * self.far(means)


class Damped(LayeredModel):
    """A model in which neighbours have a fixed share of each layer's result."""

    aggregations = (Aggregation.MEAN_IN,)
    own_options = {"share": 0.5}

    def make_layer(self, _place, in_width, out_width):
        """Return a layer with the share from the configuration."""
        return DampedLayer(in_width, out_width, self.shape.own["share"])
