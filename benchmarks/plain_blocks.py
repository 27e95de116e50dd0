"""A block of MeshGraphNet as a torch-geometric user would write it, for comparison with ours."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing


class PlainBlock(MessagePassing):
    """``e += edge [x_i, x_j, e]``, then ``x += node [x, sum of e]``, with two given networks."""

    def __init__(self, edge: nn.Module, node: nn.Module) -> None:
        super().__init__(aggr="sum")
        self.edge, self.node = edge, node

    def forward(self, x: Tensor, index: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new rows and states."""
        states = self.edge_updater(index, x=x, states=states)
        summed = self.propagate(index, states=states, size=(len(x), len(x)))
        return x + self.node(torch.cat([x, summed], dim=1)), states

    def edge_update(self, x_i: Tensor, x_j: Tensor, states: Tensor) -> Tensor:
        """Return the new states of edges."""
        return states + self.edge(torch.cat([x_i, x_j, states], dim=1))

    def message(self, states: Tensor) -> Tensor:
        """Return the messages to sum."""
        return states
