"""Stores with node types as HeteroData over ranks equal the same graph in one process."""

from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv

import hpcgnn
from hpcgnn.comm import CollectiveInputError, agree
from hpcgnn.gallery import planted_types
from hpcgnn.partition import read_pattern
from hpcgnn.partition.permute import write_partitioned
from hpcgnn.storage import EdgeData, GraphArrays, GraphStore, store_from_arrays
from tests.support.pyg_convs import doubles
from tests.support.training import PARTITIONERS

GALLERY = planted_types(70, 3, 4, 5)


def write(comm: MPI.Intracomm, folder: Path, method: str) -> Path:
    """Write the graph in as many parts as ranks, the last relation with attributes."""
    path = folder / "parts.h5"
    with agree(comm):
        if comm.rank == 0:
            count = len(GALLERY.edges["knows"][0])
            known = EdgeData(features=np.arange(count, dtype=np.float32)[:, None])
            store_from_arrays(
                folder / "whole.h5",
                GraphArrays(
                    name="types",
                    num_nodes=GALLERY.num_nodes,
                    edges=GALLERY.edges,
                    edge_data={"knows": known},
                    types=GALLERY.types,
                    type_features=GALLERY.type_features,
                    labels=GALLERY.labels,
                    split=GALLERY.split,
                ),
            )
            with GraphStore.open(folder / "whole.h5") as opened:
                partition = PARTITIONERS[method](read_pattern(opened), max(comm.size, 2))
                write_partitioned(opened, path, partition, method=method, seed=0)
    return path


def whole_graph() -> HeteroData:
    """Return the graph in torch_geometric's form; nodes are numbered within their types."""
    data, types = HeteroData(), GALLERY.types
    assert types is not None
    names = list(GALLERY.type_features or {})
    starts = np.searchsorted(types, np.arange(len(names)))
    for number, (name, x) in enumerate((GALLERY.type_features or {}).items()):
        data[name].num_nodes = int((types == number).sum())
        if x is not None:
            data[name].x = torch.from_numpy(x)
    for relation, ends in GALLERY.edges.items():
        kinds = [int(types[each[0]]) for each in ends[:2]]
        index = np.stack([each - starts[kind] for each, kind in zip(ends[:2], kinds, strict=True)])
        key = names[kinds[0]], relation, names[kinds[1]]
        data[key].edge_index = torch.from_numpy(index.astype(np.int64))
    return data


class Net(nn.Module):
    """A layer for each edge type whose ends have features."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = HeteroConv(
            {
                ("item", "follows", "item"): SAGEConv((4, 4), 5),
                ("user", "rates", "item"): SAGEConv((3, 4), 5),
                ("user", "knows", "user"): SAGEConv((3, 3), 5),
            }
        )

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> Tensor:
        found: Tensor = self.convs(x, edges)["item"]
        return found


@pytest.mark.parametrize("method", ["random", "empty second"])
def test_rows_and_gradients_are_those_of_the_whole_graph(
    comm: MPI.Intracomm, comm_tmp_path: Path, method: str
) -> None:
    data = hpcgnn.divide(write(comm, comm_tmp_path, method), comm)
    whole = whole_graph()
    starts = np.searchsorted(GALLERY.types, np.arange(3))
    assert data.node_types == whole.node_types
    for name, start in zip(data.node_types, starts, strict=True):
        places = data[name].n_id - int(start)
        every = np.concatenate(comm.allgather(places.numpy()))
        assert sorted(every.tolist()) == list(range(whole[name].num_nodes))
        if name == "tag":
            assert "x" not in data[name]
        else:
            np.testing.assert_array_equal(data[name].x, whole[name].x[places])
    np.testing.assert_array_equal(data["item"].y, GALLERY.labels[data["item"].n_id])
    np.testing.assert_array_equal(data["item"].train_mask, GALLERY.split[data["item"].n_id] == 1)
    results = []
    with doubles():
        for given in (whole, data):
            torch.manual_seed(1)
            model = Net()
            model = hpcgnn.distribute(model) if given is data else model
            x = {name: each.double() for name, each in given.x_dict.items()}
            out = model(x, given.edge_index_dict)
            weights = torch.arange(out.shape[1]).double() + 1
            loss = (out.square() @ weights).sum()
            loss.backward()
            grads = [
                np.zeros(each.shape) if each.grad is None else each.grad.numpy().copy()
                for each in model.parameters()
            ]
            if given is data:
                grads = [comm.allreduce(each) for each in grads]
            total = float(loss.detach())
            total = comm.allreduce(total) if given is data else total
            results.append((out.detach(), total, grads))
    (theirs, whole_loss, expected), (ours, loss_found, gradients) = results
    np.testing.assert_allclose(ours, theirs[data["item"].n_id], atol=1e-12)
    np.testing.assert_allclose(loss_found, whole_loss, rtol=1e-12)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)
    # Attributes stayed with their edges.
    share = data["user", "knows", "user"].edge_index.share
    sources, targets = share.numbers.numpy()
    ends = np.stack([share.ids[sources], share.node_ids[targets]])
    attributes = data["user", "knows", "user"].edge_attr[:, 0].long().numpy()
    np.testing.assert_array_equal(ends, np.stack(GALLERY.edges["knows"][:2])[:, attributes])


def test_stores_without_types_are_refused(comm: MPI.Intracomm, comm_tmp_path: Path) -> None:
    path = comm_tmp_path / "one.h5"
    with agree(comm):
        if comm.rank == 0:
            ends = np.array([0]), np.array([1])
            store_from_arrays(path, GraphArrays(name="one", num_nodes=2, edges={"": ends}))
    with pytest.raises(CollectiveInputError, match="has no node types: open it with"):
        hpcgnn.divide(str(path), comm)
