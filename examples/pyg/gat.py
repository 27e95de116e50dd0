"""Attention on a random community graph: a script of torch_geometric for one process.

docs/pyg.md has the patch that distributes it over ranks.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GATConv
from torch_geometric.transforms import RandomNodeSplit
from torch_geometric.utils import stochastic_blockmodel_graph


def make_data() -> Data:
    """Return a random graph of four communities, which are the classes."""
    seed_everything(1)
    y = torch.arange(4).repeat_interleave(75)
    edges = stochastic_blockmodel_graph([75] * 4, 0.01 + 0.07 * torch.eye(4))
    x = functional.one_hot(y, 16) + torch.randn(300, 16)
    data = Data(x, edges, y=y)
    return RandomNodeSplit(num_val=0.1, num_test=0.3)(data)


class Net(nn.Module):
    """Two layers."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.first = GATConv(in_channels, 8, heads=4, dropout=dropout)
        self.second = GATConv(32, out_channels, dropout=dropout)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return logits (N, out_channels)."""
        x = functional.dropout(x, self.dropout, self.training)
        x = functional.elu(self.first(x, edge_index))
        x = functional.dropout(x, self.dropout, self.training)
        return self.second(x, edge_index)


def main(epochs: int = 20, dropout: float = 0.5) -> list[float]:
    """Train, and return the loss of each epoch."""
    data = make_data()
    model = Net(data.num_features, 4, dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)
        loss = functional.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    hits = (model(data.x, data.edge_index).argmax(1) == data.y)[data.test_mask]
    accuracy = hits.float().mean()
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.3f}")
    return losses


if __name__ == "__main__":
    main()
