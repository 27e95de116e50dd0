"""Convert a PyG graph to a store, train on it, and get probabilities as a tensor.

python examples/from_pyg.py    (on a small PyG graph; call `to_store` and `train` with your own)
"""

from pathlib import Path

import numpy as np
import torch
from torch_geometric.datasets import FakeDataset
from torch_geometric.transforms import RandomNodeSplit

import hpcgnn
from hpcgnn.partition import metis, read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import GraphArrays, GraphStore, Split, store_from_arrays


def to_store(data, path, parts=4):
    """Write a `torch_geometric.data.Data` with masks as a store; for one process."""
    masks = [data.train_mask, data.val_mask, data.test_mask]
    split = np.select([mask.numpy() for mask in masks], list(Split)[1:], Split.NONE)
    plain = Path(path).with_suffix(".plain.h5")
    store_from_arrays(
        plain,
        GraphArrays(
            name="from-pyg",
            num_nodes=data.num_nodes,
            edges={"": tuple(data.edge_index.numpy())},
            features=data.x.numpy(),
            labels=data.y.numpy(),
            split=split.astype(np.uint8),
        ),
    )
    with GraphStore.open(plain) as store:
        partition = metis(seed=1)(read_pattern(store), parts)
        write_partitioned(store, Path(path), partition, method="metis", seed=1)


def train(store, comm=None, epochs=20, **sections):
    """Return probabilities (nodes, classes) in PyG's order on rank 0, None on other ranks."""
    with hpcgnn.open_graph(comm, store, **sections) as graph:
        model = graph.make_model(seed=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            for loss_of in graph.steps(seed=1, epoch=epoch):
                optimizer.zero_grad()
                loss_of(model).backward()
                hpcgnn.sum_gradients(graph, model)
                optimizer.step()
        pieces = graph.grid.layer.gather(hpcgnn.predict(graph, model).values, root=0)
        return None if pieces is None else torch.from_numpy(np.concatenate(pieces))


if __name__ == "__main__":
    graph = RandomNodeSplit()(FakeDataset(num_graphs=1, task="node")[0])
    to_store(graph, "from_pyg.h5")
    graph.probabilities = train("from_pyg.h5")
    print(graph)
