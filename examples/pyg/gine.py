"""Messages with edge features: a script of torch_geometric for one process.

docs/pyg.md has the patch that distributes it over ranks.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GINEConv
from torch_geometric.transforms import RandomNodeSplit
from torch_geometric.utils import stochastic_blockmodel_graph


def make_data() -> Data:
    """Return a random graph of four communities, which are the classes."""
    seed_everything(1)
    y = torch.arange(4).repeat_interleave(75)
    edges = stochastic_blockmodel_graph([75] * 4, 0.01 + 0.07 * torch.eye(4))
    x = functional.one_hot(y, 16) + torch.randn(300, 16)
    data = Data(x, edges, y=y, edge_attr=torch.randn(edges.shape[1], 5))
    return RandomNodeSplit(num_val=0.1, num_test=0.3)(data)


class Net(nn.Module):
    """Two layers."""

    def __init__(self, in_channels: int, out_channels: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        first = nn.Sequential(nn.Linear(in_channels, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.first = GINEConv(first, edge_dim=5)
        self.second = GINEConv(nn.Linear(16, out_channels), train_eps=True, edge_dim=5)

    def forward(self, data: Data) -> Tensor:
        """Return logits (N, out_channels)."""
        x = self.first(data.x, data.edge_index, data.edge_attr)
        x = functional.dropout(x, self.dropout, self.training)
        return self.second(x, data.edge_index, data.edge_attr)


def main(epochs: int = 20, dropout: float = 0.5) -> list[float]:
    """Train, and return the loss of each epoch."""
    data = make_data()
    model = Net(data.num_features, 4, dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(data)
        loss = functional.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    hits = (model(data).argmax(1) == data.y)[data.test_mask]
    accuracy = hits.float().mean()
    print(f"loss {losses[-1]:.3f}, accuracy {accuracy:.3f}")
    return losses


if __name__ == "__main__":
    main()
