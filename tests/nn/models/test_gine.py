"""GINE equals its formula edge by edge, and PyG's layer in float64; in blocks of few edges."""

import numpy as np
import pytest
import torch
from torch import Tensor

from hpcgnn.autograd import EdgeInputs, reduce_messages
from hpcgnn.autograd.messages import edge_messages
from hpcgnn.comm import ProcessGrid
from hpcgnn.nn import GraphView
from hpcgnn.nn.models.gine import GINELayer
from hpcgnn.operator import Aggregation
from tests.support.message_edges import local_inputs

NUM_NODES, NUM_EDGES, WIDTH, EDGE_WIDTH = 17, 90, 6, 3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Seven edges each.
    monkeypatch.setattr(edge_messages, "BLOCK_BYTES", 7 * (WIDTH + EDGE_WIDTH) * 8)


def numbers(*shape: int) -> Tensor:
    rng = np.random.default_rng(sum(shape))
    return torch.from_numpy(rng.normal(size=shape)).requires_grad_()


def random_edges() -> Tensor:
    """Return (2, E) sources and targets; the last node has no edges, and one edge is repeated."""
    index = np.random.default_rng(2).integers(0, NUM_NODES - 1, (2, NUM_EDGES))
    index[:, 1] = index[:, 0]
    return torch.from_numpy(index[:, np.argsort(index[1])])


def inputs(grid: ProcessGrid, index: Tensor, features: Tensor) -> EdgeInputs:
    given = features.detach().numpy()
    edges, _, places = local_inputs(grid, index.numpy(), given, num_nodes=NUM_NODES)
    # The formula has the edges in another order.
    index[:], features.data = index[:, places].clone(), features.data[places]
    return edges


def compare(found: Tensor, expected: Tensor, *of: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    factors = numbers(*found.shape).detach()
    mine = torch.autograd.grad((found * factors).sum(), [one for one, _ in of])
    theirs = torch.autograd.grad((expected * factors).sum(), [other for _, other in of])
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_sums_are_those_of_the_formula() -> None:
    index, x, features = random_edges(), numbers(NUM_NODES, WIDTH), numbers(NUM_EDGES, EDGE_WIDTH)
    messages = GINELayer(WIDTH, 5, 4, EDGE_WIDTH).double().edges
    with ProcessGrid.of_this_process() as grid:
        edges = inputs(grid, index, features)
        found, _ = reduce_messages(edges, messages, sources=x, states=edges.features)
        inner = x[index[0]] + features.detach() @ messages.weight.T + messages.bias
        expected = torch.zeros_like(x).index_add(0, index[1], torch.relu(inner))
        compare(found, expected, *((each, each) for each in (x, messages.weight, messages.bias)))


def test_layer_equals_pyg() -> None:
    import torch_geometric.nn as pyg

    index, x, features = random_edges(), numbers(NUM_NODES, WIDTH), numbers(NUM_EDGES, EDGE_WIDTH)
    layer = GINELayer(WIDTH, 5, 4, EDGE_WIDTH).double()
    layer.epsilon.data.fill_(0.3)
    inner = torch.nn.Sequential(layer.first, torch.nn.ReLU(), layer.second)
    other = pyg.GINEConv(inner, train_eps=True, edge_dim=EDGE_WIDTH).double()
    other.eps.data.fill_(0.3)
    other.lin.load_state_dict(layer.edges.state_dict())
    with ProcessGrid.of_this_process() as grid:
        edges = inputs(grid, index, features)
        operators = {Aggregation.MESSAGES: edges.operator}
        view = GraphView(operators, np.arange(NUM_NODES), grid.sum_over_blocks).layer(0)
        pairs = [(x, x), (layer.edges.weight, other.lin.weight), (layer.edges.bias, other.lin.bias)]
        pairs += [(each, each) for each in inner.parameters()]
        compare(layer(view, x), other(x, index, features.detach()), *pairs)
        (mine,) = torch.autograd.grad(layer(view, x).sum(), [layer.epsilon])
        (its,) = torch.autograd.grad(other(x, index, features.detach()).sum(), [other.eps])
        torch.testing.assert_close(mine, its.reshape(()), rtol=1e-10, atol=1e-10)
