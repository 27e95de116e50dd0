"""In-memory graphs with several node types: HeteroConv and to_hetero give one process's results."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import HeteroData
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GATv2Conv,
    HANConv,
    HeteroConv,
    SAGEConv,
    to_hetero,
)

import hpcgnn
from hpcgnn import InputError
from tests.support.pyg_convs import doubles

COUNTS = {"author": 40, "paper": 30, "venue": 3}
KINDS = {
    ("author", "writes", "paper"): 100,
    ("paper", "by", "author"): 90,
    ("author", "knows", "author"): 60,
    ("venue", "of", "author"): 20,
    ("paper", "in", "venue"): 25,
    ("venue", "near", "venue"): 0,
}


def make_data() -> HeteroData:
    rng = torch.Generator().manual_seed(1)
    data = HeteroData()
    for width, (name, count) in enumerate(COUNTS.items(), 2):
        data[name].x = torch.randn(count, width, generator=rng)
    data["author"].y = torch.randint(3, (COUNTS["author"],), generator=rng)
    data["author"].train_mask = torch.rand(COUNTS["author"], generator=rng) < 0.4
    for kind, count in KINDS.items():
        ends = [torch.randint(COUNTS[each], (count,), generator=rng) for each in kind[::2]]
        data[kind].edge_index = torch.stack(ends)
        data[kind].edge_attr = torch.randn(count, 2, generator=rng)
    return data


class Layers(nn.Module):
    """Layers for each type of edges, norms for each type of nodes."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.first, self.second = HeteroConv(self._convs()), HeteroConv(self._convs(), "mean")
        self.norms = nn.ModuleDict({name: BatchNorm(8) for name in COUNTS})
        self.last = nn.Linear(8, 3)

    def _convs(self) -> dict[Any, nn.Module]:
        sage, gat = partial(SAGEConv, (-1, -1), 8), partial(GATConv, (-1, -1), 8, edge_dim=2)
        own = {"add_self_loops": False, "dropout": self.dropout}
        return {kind: sage() if kind[1] == "by" else gat(**own) for kind in KINDS}

    def forward(self, x: Any, edges: Any, attributes: Any) -> Tensor:
        given = {kind: each for kind, each in attributes.items() if kind[1] != "by"}
        x = self.first(x, edges, edge_attr_dict=given)
        x = {name: self.norms[name](each).relu() for name, each in x.items()}
        x = {
            name: functional.dropout(each, self.dropout, self.training) for name, each in x.items()
        }
        found: Tensor = self.last(self.second(x, edges, edge_attr_dict=given)["author"])
        return found


class Homogeneous(nn.Module):
    """A module that to_hetero accepts."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = GATv2Conv((-1, -1), 8, add_self_loops=False, dropout=dropout)
        self.dropout, self.second = nn.Dropout(dropout), SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        found: Tensor = self.second(self.dropout(self.first(x, edge_index).relu()), edge_index)
        return found


class Transformed(nn.Module):
    """A module for one node type, used for all."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.module = to_hetero(Homogeneous(dropout), (list(COUNTS), list(KINDS)))

    def forward(self, x: Any, edges: Any, _attributes: Any) -> Tensor:
        found: Tensor = self.module(x, edges)["author"]
        return found


class Attends(nn.Module):
    """Attention over the results of edge types, which averages over all nodes."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = HANConv(-1, 3, (list(COUNTS), list(KINDS)), dropout=dropout)

    def forward(self, x: Any, edges: Any, _attributes: Any) -> Tensor:
        found: Tensor = self.layer(x, edges)["author"]
        return found


MODULES: Mapping[str, Callable[[float], nn.Module]] = {
    "HeteroConv": Layers,
    "to_hetero": Transformed,
    "HANConv": Attends,
}


def learn(make: Callable[[float], nn.Module], dropout: float, comm: MPI.Intracomm | None) -> Any:
    """Return three losses and the last gradients; without `comm`, those of one process."""
    whole = make_data()
    data = whole if comm is None else hpcgnn.divide(whole, comm)
    torch.manual_seed(1)
    module = make(dropout)
    with torch.no_grad():
        module.eval()(whole.x_dict, whole.edge_index_dict, whole.edge_attr_dict)
    module.train()
    module = module if comm is None else hpcgnn.distribute(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    rows, losses = data["author"].train_mask, []
    for _ in range(3):
        optimizer.zero_grad()
        out = module(data.x_dict, data.edge_index_dict, data.edge_attr_dict)
        loss = functional.cross_entropy(out[rows], data["author"].y[rows])
        if comm is None:
            loss.backward()
        else:
            loss = hpcgnn.backward(loss, rows, module)
        optimizer.step()
        losses.append(loss.item())
    # A missing gradient, of a parameter that is not read, is zero; sums that cancel may round.
    return losses, [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]


@pytest.mark.parametrize("name", MODULES)
def test_modules_learn_what_one_process_learns(comm: MPI.Intracomm, name: str) -> None:
    with doubles():
        found = {dropout: [learn(MODULES[name], dropout, comm)] for dropout in (0.0, 0.4)}
        if comm.rank == 0:
            for dropout, results in found.items():
                results.append(learn(MODULES[name], dropout, MPI.COMM_SELF))
            found[0.0].append(learn(MODULES[name], 0.0, None))
    comm.Barrier()
    for first, *others in found.values():
        for losses, gradients in others:
            np.testing.assert_allclose(losses, first[0], rtol=1e-10)
            assert sum(bool(each.abs().max() > 1e-9) for each in gradients) > 3
            for ours, theirs in zip(gradients, first[1], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11)
    assert found[0.0][0][0] != found[0.4][0][0]


def test_shares_make_up_the_graph(comm: MPI.Intracomm) -> None:
    whole = make_data()
    data = hpcgnn.divide(whole, comm)
    assert type(data) is HeteroData
    ids = {}
    for name, count in COUNTS.items():
        np.testing.assert_array_equal(data[name].x, whole[name].x[data[name].n_id])
        ids[name] = np.concatenate(comm.allgather(data[name].n_id.numpy()))
        np.testing.assert_array_equal(np.sort(ids[name]), np.arange(count))
    before = dict(zip(COUNTS, np.cumsum([0, *COUNTS.values()]), strict=False))
    for kind, count in KINDS.items():
        own = data[kind]
        np.testing.assert_array_equal(own.edge_attr, whole[kind].edge_attr[own.e_id])
        share = own.edge_index.share
        sources = share.ids[share.numbers[0].numpy()] - before[kind[0]]
        targets = share.node_ids[share.numbers[1].numpy()] - before[kind[2]]
        np.testing.assert_array_equal(
            np.stack([sources, targets]), whole[kind].edge_index[:, own.e_id]
        )
        every = np.concatenate(comm.allgather(own.e_id.numpy()))
        np.testing.assert_array_equal(np.sort(every), np.arange(count))


class Mixes(nn.Module):
    def forward(self, x: Any, _edges: Any) -> Tensor:
        return torch.cat([x["author"][:, :2], x["paper"][:, :2]])


class Crosses(nn.Module):
    def forward(self, x: Any, edges: Any) -> Tensor:
        found: Tensor = x["paper"][edges["author", "writes", "paper"][0]]
        return found


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Mixes(), "torch.cat: it joins rows of nodes of several types"),
        (Crosses(), "is indexed by the sources of edges: it has no row for each"),
    ],
)
def test_types_are_not_taken_for_each_other(
    comm: MPI.Intracomm, module: nn.Module, message: str
) -> None:
    data = hpcgnn.divide(make_data(), comm)
    with pytest.raises(InputError, match=message):
        hpcgnn.distribute(module)(data.x_dict, data.edge_index_dict)
    wrong = make_data()
    wrong["author", "writes", "paper"].edge_index[1, 0] = COUNTS["paper"]
    with pytest.raises(InputError, match=r"writes.*edge_index has numbers outside of its 30 nodes"):
        hpcgnn.divide(wrong, comm)
    unknown = make_data()
    unknown["author", "likes", "thing"].edge_index = torch.zeros((2, 1), dtype=torch.long)
    with pytest.raises(InputError, match=r"likes.*no node type 'thing'; set its num_nodes"):
        hpcgnn.divide(unknown, comm)
