"""A distributed script of torch_geometric: attention on the nodes of a graph.

mpiexec -n 2 python -m mpi4py pyg_script.py mine.4.h5
"""

import sys
from typing import Any

import torch
from torch import nn
from torch_geometric.nn import GATConv

import hpcgnn


class Net(nn.Module):
    """Two layers, as in a script for one process."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = GATConv(in_channels, 8, heads=4, dropout=0.2)
        self.second = GATConv(32, out_channels)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Return logits (N, out_channels)."""
        x = nn.functional.dropout(x, 0.2, self.training)
        x = nn.functional.elu(self.first(x, edge_index))
        return self.second(x, edge_index)


def main(store: str, comm: Any = None, *, epochs: int = 20, **sections: Any) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    losses = []
    with hpcgnn.open_graph(comm, store, aggregations=["messages"], **sections) as graph:
        data = graph.data
        torch.manual_seed(1)
        num_classes = graph.local.facts.num_classes
        model = hpcgnn.distribute(Net(data.x.shape[1], num_classes))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(epochs):
            optimizer.zero_grad()
            loss = graph.loss(model(data.x, data.edge_index))
            loss.backward()
            hpcgnn.sum_gradients(graph, model)
            optimizer.step()
            losses.append(graph.total(loss))
    return losses


if __name__ == "__main__":
    print(f"loss {main(sys.argv[1])[-1]:.3f}")
