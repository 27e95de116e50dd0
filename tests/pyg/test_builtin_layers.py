"""torch_geometric's layers on operators of this package: the same results and gradients."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

from mpi4py import MPI

import pytest
import torch
import torch_geometric.nn as geometric
from torch import nn

import hpcgnn
from hpcgnn.comm import ProcessGrid
from hpcgnn.errors import InputError
from hpcgnn.operator import Aggregation
from hpcgnn.pyg.builtin_layers import OWN
from tests.support.pyg_convs import (
    TYPES,
    WIDTH,
    A,
    Case,
    E,
    T,
    W,
    call,
    differences,
    doubles,
    make_problem,
    mlp,
)


class Two(nn.Module):
    """Two layers, so that gradients pass through the second one's input."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor, *edges: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, *edges).tanh(), *edges)


class Fewer(nn.Module):
    """A layer that is called with a subset of the edges."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.layer(x, edges[:, :3])


CASES: Mapping[str, Case] = {
    "GCNConv": (lambda g: Two(g.GCNConv(WIDTH, 7), g.GCNConv(7, 5, cached=True, bias=False)), E),
    "SAGEConv": (
        lambda g: Two(
            g.SAGEConv(WIDTH, 7, project=True, normalize=True), g.SAGEConv(7, 5, root_weight=False)
        ),
        E,
    ),
    "GINConv": (
        lambda g: Two(g.GINConv(mlp(WIDTH, 7, norm=True), train_eps=True), g.GINConv(mlp(7))),
        E,
    ),
    "GATConv": (
        lambda g: Two(
            g.GATConv(WIDTH, 4, heads=2, residual=True),
            g.GATConv(8, 5, heads=3, concat=False, bias=False, negative_slope=0.1),
        ),
        E,
    ),
    "GATv2Conv": (
        lambda g: Two(
            g.GATv2Conv(WIDTH, 4, heads=2, residual=True, share_weights=True),
            g.GATv2Conv(8, 5, heads=3, concat=False),
        ),
        E,
    ),
    "GATv2Conv bare": (lambda g: g.GATv2Conv(WIDTH, 5, bias=False), E),
    "TransformerConv": (
        lambda g: Two(
            g.TransformerConv(WIDTH, 4, heads=2, beta=True),
            g.TransformerConv(8, 5, heads=3, concat=False),
        ),
        E,
    ),
    "TransformerConv bare": (lambda g: g.TransformerConv(WIDTH, 5, root_weight=False), E),
    "RGCNConv": (
        lambda g: Two(g.RGCNConv(WIDTH, 7, TYPES), g.RGCNConv(7, 5, TYPES, num_bases=3)),
        T,
    ),
    "FastRGCNConv": (lambda g: g.FastRGCNConv(WIDTH, 5, TYPES, root_weight=False, bias=False), T),
    "mixed": (lambda g: Two(g.EdgeConv(mlp(2 * WIDTH, 7)), g.GCNConv(7, 5)), E),
}


def kind_of(name: str) -> Aggregation:
    """Return the aggregation of a case."""
    return OWN[name.partition(" ")[0]].kind if name != "mixed" else Aggregation.SYMMETRIC


EXCHANGES: Mapping[str, Mapping[str, Any]] = {
    name: {"method": name}
    for name in ("aware", "joint", "push", "oblivious", "hierarchical", "hierarchical_joint")
} | {"sequential": {"method": "joint", "schedule": "sequential", "prefetch": 1}}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_layers_equal_their_own_functions(comm: MPI.Intracomm, exchange: str) -> None:
    taken = partial(hpcgnn.distribute, kernels=True, exchange=EXCHANGES[exchange])
    with ProcessGrid(comm) as grid, doubles():
        problem = make_problem(grid)
        found = {
            name: differences(problem, partial(make, geometric), words, taken)
            for name, (make, words) in CASES.items()
            # Attention pushes states, which a host cannot add up.
            if exchange != "hierarchical_joint" or not kind_of(name).attends
        }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert {name.partition(" ")[0] for name in CASES} >= OWN.keys()


REFUSED: Mapping[str, Case] = {
    "GCNConv .module.: improved = True has no equal": (
        lambda g: g.GCNConv(WIDTH, 5, improved=True),
        E,
    ),
    "SAGEConv .module.: aggr = max": (lambda g: g.SAGEConv(WIDTH, 5, aggr="max"), E),
    "GINConv .0.: flow = target_to_source": (
        lambda g: nn.Sequential(g.GINConv(mlp(WIDTH), flow="target_to_source")),
        E,
    ),
    "GATConv .module.: edge_dim = 3": (lambda g: g.GATConv(WIDTH, 5, edge_dim=3), A),
    "RGCNConv .module.: num_blocks = 2": (lambda g: g.RGCNConv(WIDTH, 4, 2, num_blocks=2), T),
    "GCNConv: on operators of hpcgnn it takes no edge_weight": (lambda g: g.GCNConv(WIDTH, 5), W),
    "SAGEConv: .* it takes rows": (lambda g: g.SAGEConv((WIDTH, WIDTH), 5), "pair edges"),
    "kernels=True: none of the layers of EdgeConv": (lambda g: g.EdgeConv(mlp(2 * WIDTH)), E),
    "SAGEConv .module. has no sizes": (lambda g: g.SAGEConv(-1, 5), E),
    "edge_type: a layer of 1 relations": (lambda g: g.RGCNConv(WIDTH, 5, 1), T),
    "takes the edge_index of hpcgnn.divide": (
        lambda g: Fewer(g.GCNConv(WIDTH, 5)),
        E,
    ),
}


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_coefficients_are_dropped_by_edge(comm: MPI.Intracomm, name: str) -> None:
    outputs: list[list[torch.Tensor]] = []
    rows = slice(None)
    with doubles():
        for each in (comm, MPI.COMM_SELF):
            with ProcessGrid(each) as grid:
                problem = make_problem(grid)
                torch.manual_seed(1)
                layer = getattr(geometric, name)(WIDTH, 5, heads=2, dropout=0.5)
                module = hpcgnn.distribute(layer, kernels=True)
                x, edges = problem.own["x"], problem.own["edges"]
                drawn = [module(x, edges).detach() for _ in range(2)]
                copied = copy.deepcopy(module.eval())(x, edges).detach()
                torch.testing.assert_close(copied, module(x, edges).detach(), rtol=0, atol=0)
                if name == "GATv2Conv":
                    # Values consist of the bias of sources only, which are dropped, too.
                    with torch.no_grad():
                        layer.lin_l.weight.zero_()
                        layer.lin_l.bias.fill_(1.0)
                    drawn.append(module.train()(x, edges).detach())
                outputs.append([*drawn, copied])
                rows = problem.rows if each is comm else rows
    for ours, alone in zip(*outputs, strict=True):
        torch.testing.assert_close(ours, alone[rows], rtol=1e-10, atol=1e-10)
    dropped, other, *_ = outputs[1]
    assert not torch.equal(dropped, other)
    if name == "GATv2Conv":
        assert outputs[1][2].std() > 0.1


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_equal_is_refused(message: str) -> None:
    make, words = REFUSED[message]
    with ProcessGrid(MPI.COMM_SELF) as grid, doubles():
        problem = make_problem(grid)
        with pytest.raises(InputError, match=message):
            call(hpcgnn.distribute(make(geometric), kernels=True), words, problem.own)


def test_keys_of_the_exchange_are_checked() -> None:
    for message, exchange in (
        ("exchange.replication = 2.*one copy of its rows", {"replication": 2}),
        ("exchange.method = 'auto'.*gets its graph when it is called", {"method": "auto"}),
        ("attention pushed in 2 bits", {"wire": "int2"}),
        ("manner", {"manner": "joint"}),
    ):
        with pytest.raises(InputError, match=message):
            hpcgnn.distribute(geometric.GATConv(WIDTH, 5), kernels=True, exchange=exchange)
    with pytest.raises(InputError, match="only with kernels=True"):
        hpcgnn.distribute(geometric.GCNConv(WIDTH, 5), exchange={"method": "joint"})
