"""Batches with sampled neighbours of a graph divided among ranks equal those of one process."""

from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATv2Conv, GraphSAGE

import hpcgnn
from hpcgnn import InputError
from tests.support.pyg_convs import doubles


def make_data(num_nodes: int = 23, num_edges: int = 90) -> Data:
    """Return a graph with a hub, parallel edges, loops and nodes without edges."""
    rng = torch.Generator().manual_seed(5)
    ends = torch.randint(max(num_nodes - 2, 1), (2, num_edges), generator=rng)
    ends[1, : num_edges // 4] = 0
    return Data(
        x=torch.randn(num_nodes, 3, generator=rng, dtype=torch.float64),
        edge_index=torch.cat([ends, ends[:, :5]], 1),
        edge_attr=torch.randn(num_edges + min(5, num_edges), 2, generator=rng).double(),
        y=torch.arange(num_nodes) % 4,
        train_mask=torch.arange(num_nodes) % 3 != 1,
        grid=torch.randn(num_nodes, 2, 2, generator=rng),
        name="graph",
    )


class Net(nn.Module):
    """Attention that reads edge features."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATv2Conv(3, 4, edge_dim=2, heads=2)
        self.second = GATv2Conv(8, 4, edge_dim=2)

    def forward(self, data: Data) -> torch.Tensor:
        x = functional.elu(self.first(data.x, data.edge_index, data.edge_attr))
        return self.second(x, data.edge_index, data.edge_attr)


@pytest.mark.parametrize("sizes", [(23, 90), (23, 0), (2, 5)])
def test_with_all_neighbours_nodes_get_what_the_whole_graph_gives(
    comm: MPI.Intracomm, sizes: tuple[int, int]
) -> None:
    whole = make_data(*sizes)
    with doubles():
        torch.manual_seed(1)
        model = Net()
        data = hpcgnn.divide(whole, comm)
        loader = hpcgnn.NeighborLoader(data, [-1, -1], data.train_mask, batch_size=4, shuffle=True)
        expected, wanted = model(whole), whole.train_mask.nonzero()[:, 0]
        assert len(loader) == -(-len(wanted) // 4)
        for _ in range(2):
            seen = []
            for batch in loader:
                chosen = batch.n_id[: batch.batch_size]
                np.testing.assert_array_equal(chosen, wanted[batch.input_id])
                for key in ("x", "y", "grid"):
                    np.testing.assert_array_equal(batch[key], whole[key][batch.n_id])
                np.testing.assert_array_equal(batch.edge_attr, whole.edge_attr[batch.e_id])
                np.testing.assert_array_equal(
                    batch.n_id[batch.edge_index], whole.edge_index[:, batch.e_id]
                )
                out = model(batch)[: batch.batch_size]
                np.testing.assert_allclose(
                    out.detach(), expected[chosen].detach(), rtol=0, atol=1e-12
                )
                assert (batch.name, len(batch.n_id)) == ("graph", batch.num_nodes)
                seen += [node for part in comm.allgather(chosen.tolist()) for node in part]
            assert sorted(seen) == wanted.tolist()


def _losses(comm: MPI.Intracomm, whole: Data, rows: int, fan_outs: list[int]) -> list[Any]:
    """Train; return the losses, and the hits of the last epoch."""
    data = hpcgnn.divide(whole, comm)
    torch.manual_seed(2)
    model = GraphSAGE(3, 8, 2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = hpcgnn.NeighborLoader(
        data, fan_outs, data.train_mask, batch_size=rows, shuffle=True, seed=3
    )
    found = []
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            size = batch.batch_size
            out = model(batch.x, batch.edge_index)[:size]
            loss = functional.cross_entropy(out, batch.y[:size])
            found.append(float(hpcgnn.backward(loss, size, model).detach()))
            hits = (out.argmax(1) == batch.y[:size]).double().mean()
            found.append(float(hpcgnn.mean(hits, size)))
            optimizer.step()
    return found


@pytest.mark.several_ranks
@pytest.mark.parametrize("rows", [1, 5, 100])
def test_losses_are_those_of_one_process(comm: MPI.Intracomm, rows: int) -> None:
    whole = make_data()
    with doubles():
        ours = _losses(comm, whole, rows, [3, 3])
        alone = _losses(MPI.COMM_SELF, whole, rows, [3, 3]) if comm.rank == 0 else ours
    comm.Barrier()
    assert len(set(alone)) > 3
    np.testing.assert_allclose(ours, alone, rtol=1e-10)


def test_nodes_draw_some_of_their_neighbours(comm: MPI.Intracomm) -> None:
    whole = make_data()
    data = hpcgnn.divide(whole, comm)
    pairs = {tuple(each) for each in whole.edge_index.T.tolist()}
    drawn = set()
    for batch in hpcgnn.NeighborLoader(data, [3], batch_size=6):
        chosen = batch.n_id[: batch.batch_size].tolist()
        ends = batch.n_id[batch.edge_index].T.tolist()
        drawn |= {tuple(each) for each in ends}
        for node in chosen:
            sources = {source for source, target in ends if target == node}
            known = {source for source, target in pairs if target == node}
            assert sources <= known
            assert len(sources) == min(len(known), 3)
    everywhere = set().union(*comm.allgather(drawn))
    hub = [source for source, target in everywhere if target == 0]
    assert len(hub) == 3
    orders = [
        [batch.n_id[: batch.batch_size].tolist() for batch in loader]
        for loader in (
            hpcgnn.NeighborLoader(data, [2], batch_size=6, shuffle=True, seed=seed)
            for seed in (0, 0, 1)
        )
    ]
    every = [comm.allgather(each) for each in orders]
    assert every[0] == every[1] != every[2]


def test_what_a_loader_does_not_take(comm: MPI.Intracomm) -> None:
    whole = make_data()
    data = hpcgnn.divide(whole, comm)
    with pytest.raises(InputError, match=r"needs a graph of one type"):
        hpcgnn.NeighborLoader(whole, [2])
    typed = HeteroData()
    typed["a"].x = torch.ones(4, 2)
    typed["a", "to", "a"].edge_index = torch.arange(8).view(2, 4) % 4
    with pytest.raises(InputError, match=r"needs a graph of one type"):
        hpcgnn.NeighborLoader(hpcgnn.divide(typed, comm), [2])
    for wrong in ({"num_neighbors": []}, {"num_neighbors": [0]}, {"batch_size": 0}):
        with pytest.raises(InputError, match="give at least 1 of each"):
            hpcgnn.NeighborLoader(data, **{"num_neighbors": [2], **wrong})
    with pytest.raises(InputError, match="numbers outside of this rank's"):
        hpcgnn.NeighborLoader(data, [2], torch.tensor([99]))
