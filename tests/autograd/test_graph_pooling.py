"""Read-outs and their gradients equal an oracle on any ranks: split graphs, ties, no nodes."""

from collections.abc import Callable

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcgnn.autograd import (
    GraphMembers,
    max_of_graphs,
    mean_of_graphs,
    softmax_of_graphs,
    sum_of_graphs,
)
from hpcgnn.comm import ProcessGrid
from hpcgnn.config.file import config_from_tables
from hpcgnn.graph.context import Context
from hpcgnn.graph.labels import find_members

NUM_NODES, WIDTH = 37, 5
NUMBERS = np.array([2, 3, 7, 40, 41, 1000])

Reduce = Callable[[Tensor, GraphMembers], Tensor]


def by_attention(x: Tensor, members: GraphMembers) -> Tensor:
    return softmax_of_graphs(x, 300 * x[:, :1], members)


REDUCERS: dict[str, Reduce] = {
    "sum": sum_of_graphs,
    "mean": mean_of_graphs,
    "max": max_of_graphs,
    "attention": by_attention,
}


def oracle(name: str, x: Tensor) -> Tensor:
    """Return the read-out of the nodes of one graph."""
    if name == "attention":
        return ((300 * x[:, :1]).softmax(0) * x).sum(0)
    return {"sum": x.sum(0), "mean": x.mean(0), "max": x.amax(0)}[name]


def problem() -> tuple[np.ndarray, Tensor, Tensor]:
    """Return the graphs of nodes, rows with many ties, and weights of a loss of the graphs."""
    rng = np.random.default_rng(5)
    graph = NUMBERS[rng.integers(0, len(NUMBERS), NUM_NODES)]
    # One of them has a single node.
    graph[graph == NUMBERS[1]] = NUMBERS[2]
    graph[3] = NUMBERS[1]
    x = torch.from_numpy(rng.integers(-2, 3, (NUM_NODES, WIDTH)).astype(np.float64))
    return graph, x, torch.from_numpy(rng.normal(size=(NUMBERS[-1] + 1, WIDTH)))


def of_rank(comm: MPI.Intracomm) -> np.ndarray:
    """Return the nodes of this rank; the second has none."""
    ranks = np.random.default_rng(7).integers(0, comm.size, NUM_NODES)
    if comm.size > 2:
        ranks[ranks == 1] = 2
    return np.flatnonzero(ranks == comm.rank)


def members_of(grid: ProcessGrid, graph: np.ndarray) -> tuple[GraphMembers, np.ndarray]:
    config = config_from_tables({"graph": {"store": "none"}, "run": {"dir": "none"}})
    return find_members(Context(grid, config), graph)


@pytest.mark.parametrize("name", REDUCERS)
def test_readouts_equal_the_oracle(comm: MPI.Intracomm, name: str) -> None:
    graph, everything, weights = problem()
    whole = everything.clone().requires_grad_()
    expected = {g: oracle(name, whole[torch.from_numpy(graph == g)]) for g in np.unique(graph)}
    sum((value * weights[g]).sum() for g, value in expected.items()).backward()
    mine = of_rank(comm)
    with ProcessGrid(comm) as grid:
        members, ids = members_of(grid, graph[mine])
        x = everything[mine].clone().requires_grad_()
        found = REDUCERS[name](x, members)
        (found * weights[ids]).sum().backward()
    everywhere = np.sort(np.concatenate(comm.allgather(ids)))
    np.testing.assert_array_equal(everywhere, np.unique(graph))
    for number, row in zip(ids.tolist(), found, strict=True):
        torch.testing.assert_close(row, expected[number], rtol=1e-13, atol=1e-13)
        if name == "max":
            assert torch.equal(row, expected[number])
    torch.testing.assert_close(x.grad, whole.grad[mine], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", REDUCERS)
def test_graphs_without_nodes_have_rows_of_zeros(comm: MPI.Intracomm, name: str) -> None:
    graph, everything, weights = problem()
    mine = of_rank(comm)
    chosen = np.isin(graph[mine], NUMBERS[:3])
    with ProcessGrid(comm) as grid:
        members, ids = members_of(grid, graph[mine])
        full = REDUCERS[name](everything[mine], members)
        x = everything[mine][torch.from_numpy(chosen)].requires_grad_()
        some = REDUCERS[name](x, members.of_nodes(chosen))
        (some * weights[ids]).sum().backward()
    held = torch.from_numpy(np.isin(ids, NUMBERS[:3]))
    torch.testing.assert_close(some[held], full[held], rtol=1e-13, atol=1e-13)
    assert not some[~held].any()
    assert x.grad.isfinite().all()


def test_values_of_graphs_come_to_their_nodes(comm: MPI.Intracomm) -> None:
    graph, *_ = problem()
    mine = of_rank(comm)
    with ProcessGrid(comm) as grid:
        members, ids = members_of(grid, graph[mine])
        np.testing.assert_array_equal(members.at_nodes(ids * 3), graph[mine] * 3)


@pytest.mark.parametrize("name", REDUCERS)
def test_readouts_equal_those_of_pyg(comm: MPI.Intracomm, name: str) -> None:
    import torch_geometric.nn as nn

    graph, everything, weights = problem()
    batch = torch.from_numpy(np.unique(graph, return_inverse=True)[1])
    # torch's scatter_reduce also gives a share of the gradient of a maximum of 0 to its initial 0.
    everything += 0.5
    theirs, ours = everything.clone().requires_grad_(), everything.clone().requires_grad_()
    if name == "attention":
        expected = nn.AttentionalAggregation(lambda x: 300 * x[:, :1])(theirs, batch)
    else:
        pool = {"sum": nn.global_add_pool, "mean": nn.global_mean_pool, "max": nn.global_max_pool}
        expected = pool[name](theirs, batch)
    alone = comm.Split(comm.rank)
    with ProcessGrid(alone) as grid:
        members, ids = members_of(grid, graph)
        found = REDUCERS[name](ours, members)
        for each in (expected, found):
            (each * weights[ids]).sum().backward()
    alone.Free()
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-10)
