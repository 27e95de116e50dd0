"""Your own MeshGraphNet, on a store with edge features.

mpiexec -n 4 hpcgnn train CONFIG.toml model.name=own_meshgraphnet:MeshNet
"""

import torch
from torch import nn

from hpcgnn import EdgeResult
from hpcgnn.autograd import layer_norm
from hpcgnn.nn import EdgeLinear, EdgeNetwork, EdgeStateModel, Linear
from hpcgnn.support import NOT_WRITTEN


class Edges(EdgeNetwork):
    """``e_ij + V relu(W [x_i, x_j, e_ij] + b)``: the message, and the new state of the edge."""

    def __init__(self, width):
        super().__init__(EdgeLinear(width, width, width, width))
        self.second = Linear(width, width)

    def forward(self, targets, sources, states):
        """Return (edges, width) messages and states."""
        states = states + self.second(torch.relu(self.first(targets, sources, states)))
        return EdgeResult(states, states=states)


class Block(nn.Module):
    """The edges, then ``x_i + W [x_i, sum of messages]``, normalised."""

    def __init__(self, width):
        super().__init__()
        self.edges, self.nodes = Edges(width), Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, view, x, states):
        """Return the new rows and states."""
        own = view.own(x)
        summed, states = self.edges.reduced(view.edges, own, x, states, "sum")
        rows = own + self.nodes(torch.cat([own, summed], dim=1))
        return layer_norm(rows, self.norm), states


class MeshNet(EdgeStateModel):
    """`num_layers` blocks, with linear maps of node and edge features before and of rows after."""

    # `Linear` and `layer_norm` have reproducible bits; other libraries lack this model.
    lacks = NOT_WRITTEN

    def make_layer(self, _place):
        """Return a block."""
        return Block(self.shape.hidden)
