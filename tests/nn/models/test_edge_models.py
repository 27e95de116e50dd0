"""Layers that compute messages of edges equal PyG's, or plain torch, at any number of ranks."""

from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from hpcgnn.autograd import EdgeInputs, rematerialised
from hpcgnn.autograd.messages import chain, edge_messages
from hpcgnn.comm import ProcessGrid
from hpcgnn.nn import GraphView, ModelShape, make_model
from hpcgnn.nn.edge_linear import EdgeLinear
from hpcgnn.nn.models.gatedgcn import GatedLayer
from hpcgnn.nn.models.meshgraphnet import Processor
from hpcgnn.nn.models.nnconv import NNConvLayer
from hpcgnn.nn.models.pna import PNALayer
from hpcgnn.operator import Aggregation
from hpcgnn.spmm import RESIDENT, Schedule
from tests.support.message_edges import FETCHING, NUM_NODES, local_inputs, make_edges

WIDTH, OUT, FEATURES = 6, 5, 3
Whole = Callable[[nn.Module, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
"""(layer, x, index (2, E) of sources and targets, states) -> rows, and new states."""


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).normal(size=shape))


def perceptron(module: Any, rows: Tensor, first: Any = None) -> Tensor:
    maps = [*([] if first is None else [first]), *module.maps]
    for number, linear in enumerate(maps):
        rows = functional.linear(functional.relu(rows) if number else rows, *linear.parameters())
    return functional.layer_norm(rows, rows.shape[1:], module.norm.weight, module.norm.bias)


def added(rows: Tensor, index: Tensor) -> Tensor:
    return rows.new_zeros(NUM_NODES, rows.shape[1]).index_add(0, index[1], rows)


def processor(layer: Any, x: Tensor, index: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    joined = torch.cat([x[index[1]], x[index[0]], states], dim=1)
    states = states + perceptron(layer.edges.rest, joined, layer.edges.first)
    return x + perceptron(layer.nodes, torch.cat([x, added(states, index)], dim=1)), states


def gated(layer: Any, x: Tensor, index: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    edges, (sources, targets) = layer.edges, index
    joined = torch.cat([x[targets], x[sources], states], dim=1)
    inner = functional.linear(joined, edges.first.weight, edges.first.bias)
    gate, value = torch.sigmoid(inner), functional.linear(x, *edges.value.parameters())
    mean = added(gate * value[sources], index) / (added(gate, index) + 1e-6)
    rows = functional.linear(x, *layer.own.parameters()) + mean
    norms = edges.norm, layer.norm
    new = [
        functional.relu(functional.layer_norm(each, (WIDTH,), norm.weight, norm.bias))
        for each, norm in zip((inner, rows), norms, strict=True)
    ]
    return x + new[1], states + new[0]


def pna(layer: Any, x: Tensor, index: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    import torch_geometric.nn as pyg

    degrees, first = torch.bincount(index[1], minlength=NUM_NODES), layer.messages.first
    scalers = ["identity", "amplification", "attenuation"]
    given = ["mean", "min", "max", "std"], scalers, torch.bincount(degrees)
    other = pyg.PNAConv(WIDTH, OUT, *given, edge_dim=FEATURES).double()
    other.aggr_module.avg_deg_log.fill_(float(torch.log1p(degrees.double()).mean()))
    # Maps without anything between them are one map in our model.
    of_nodes, of_edges = first.weight.split([2 * WIDTH, FEATURES], dim=1)
    weights = {
        "edge_encoder.weight": of_edges,
        "edge_encoder.bias": torch.zeros(WIDTH).double(),
        "pre_nns.0.0.weight": torch.cat([of_nodes, torch.eye(WIDTH)], dim=1),
        "pre_nns.0.0.bias": first.bias,
        "post_nns.0.0.weight": layer.out.weight,
        "post_nns.0.0.bias": layer.out.bias,
        "lin.weight": torch.eye(OUT).double(),
        "lin.bias": torch.zeros(OUT).double(),
    }
    return (functional_call(other, weights, (x, index, states)),)


def nnconv(layer: Any, x: Tensor, index: Tensor, states: Tensor) -> tuple[Tensor, ...]:
    import torch_geometric.nn as pyg

    maps = layer.messages
    network = nn.Sequential(maps.first, nn.ReLU(), maps.second)
    other = pyg.NNConv(WIDTH, OUT, network, aggr="mean").double()
    weights = {"lin.weight": layer.own.weight, "bias": layer.own.bias}
    return (functional_call(other, weights, (x, index, states)),)


CASES: Mapping[str, tuple[Callable[[], nn.Module], Whole, int]] = {
    "meshgraphnet": (lambda: Processor(WIDTH, 3, "relu"), processor, WIDTH),
    "gatedgcn": (lambda: GatedLayer(WIDTH, "relu"), gated, WIDTH),
    "pna": (lambda: PNALayer(WIDTH, OUT, FEATURES), pna, FEATURES),
    "nnconv": (lambda: NNConvLayer(WIDTH, OUT, 4, FEATURES), nnconv,
               FEATURES),
}  # fmt: skip


TRAVEL = [
    *((name, RESIDENT, 5) for name in FETCHING),
    *(
        (name, Schedule(sequential=True, prefetch=ahead), 5)
        for name in FETCHING
        for ahead in (0, 1)
    ),
    ("aware", RESIDENT, 1),
    ("aware", RESIDENT, 1000),
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("exchange", "schedule", "block"), TRAVEL)
def test_layers_equal_a_whole_graph_of_plain_torch(
    comm: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    exchange: str,
    schedule: Schedule,
    block: int,
) -> None:
    monkeypatch.setattr(edge_messages, "BLOCK_BYTES", block * 3 * WIDTH * 8)
    if block < 1000:
        # The results of maps are recomputed, as for large graphs.
        monkeypatch.setattr(chain, "KEPT_BYTES", 0)
    make, whole, num_states = CASES[name]
    torch.manual_seed(4)
    layer, ends = make().double(), make_edges()
    x, states = numbers(NUM_NODES, WIDTH).requires_grad_(), numbers(ends.shape[1], num_states)
    carries = num_states == WIDTH
    states.requires_grad_(carries)
    expected = whole(layer, x, torch.from_numpy(ends), states)
    factors = [numbers(*each.shape) for each in expected]
    leaves, weights = [x, *[states] * carries], list(layer.parameters())
    right = torch.autograd.grad(_loss(expected, factors), [*leaves, *weights])
    with ProcessGrid(comm) as grid:
        edges, rows, chosen = local_inputs(
            grid, ends, states.detach().numpy(), exchange=exchange, schedule=schedule
        )
        own = x.detach()[rows].requires_grad_()
        given = states.detach()[torch.from_numpy(chosen)].requires_grad_(carries)
        found = _run(layer, grid, edges, own, given, carries=carries)
        parts = rows, torch.from_numpy(chosen)
        for mine, theirs, part in zip(found, expected, parts, strict=False):
            torch.testing.assert_close(mine, theirs[part], rtol=1e-10, atol=1e-10)
        mine = [each[part] for each, part in zip(factors, parts, strict=False)]
        left = torch.autograd.grad(_loss(found, mine), [own, *[given] * carries, *weights])
    for one, other, part in zip(left, right, parts[: 1 + carries], strict=False):
        torch.testing.assert_close(one, other[part], rtol=1e-10, atol=1e-10)
    for one, other in zip(left[-len(weights) :], right[-len(weights) :], strict=True):
        total = torch.from_numpy(comm.allreduce(one.numpy()))
        torch.testing.assert_close(total, other, rtol=1e-10, atol=1e-10)


def _loss(found: tuple[Tensor, ...], factors: list[Tensor]) -> Tensor:
    return sum((one * by).sum() for one, by in zip(found, factors, strict=True))


def _run(
    layer: nn.Module, grid: ProcessGrid, edges: EdgeInputs, x: Tensor, states: Tensor, *,
    carries: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    operators = {Aggregation.MESSAGES: edges.operator}
    view = GraphView(operators, np.arange(len(x)), grid.sum_over_blocks).layer(0)
    return layer(view, x, states) if carries else (layer(view, x),)


@pytest.mark.parametrize("name", CASES)
def test_weights_learn_of_rows_that_are_computed_again(name: str) -> None:
    make, _, num_states = CASES[name]
    torch.manual_seed(4)
    layer, ends, found = make().double(), make_edges(), []
    x, states = numbers(NUM_NODES, WIDTH).requires_grad_(), numbers(ends.shape[1], num_states)
    with ProcessGrid.of_this_process() as grid:
        edges, _, chosen = local_inputs(grid, ends, states.numpy())
        given, carries = states[torch.from_numpy(chosen)], num_states == WIDTH
        for again in (None, x.detach):
            with rematerialised((x, again)):
                rows, *_ = _run(layer, grid, edges, x, given, carries=carries)
            loss = (rows * numbers(*rows.shape)).sum()
            found.append(torch.autograd.grad(loss, list(layer.parameters()), allow_unused=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_maps_of_rows_do_not_wait_where_states_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    make, _, num_states = CASES["meshgraphnet"]
    layer, ends = make().double(), make_edges()
    x, states = numbers(NUM_NODES, WIDTH).requires_grad_(), numbers(ends.shape[1], num_states)
    maps: list[StorageWeakRef] = []

    def noted(linear: EdgeLinear, rows: Tensor, columns: slice) -> Tensor:
        made = mapped(linear, rows, columns)
        maps.append(StorageWeakRef(made.untyped_storage()))
        return made

    mapped = EdgeLinear._map
    monkeypatch.setattr(EdgeLinear, "_map", noted)
    waiting, gradients = [], []
    with ProcessGrid.of_this_process() as grid:
        edges, _, chosen = local_inputs(grid, ends, states.numpy())
        for again in (False, True):
            edges.operator.states_again = again
            maps.clear()
            rows, new = _run(layer, grid, edges, x, states[torch.from_numpy(chosen)], carries=True)
            waiting.append(sum(not storage.expired() for storage in maps))
            loss = (rows * numbers(*rows.shape)).sum() + new.square().sum()
            gradients.append(torch.autograd.grad(loss, [x, *layer.parameters()]))
    assert waiting == [2, 0]
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", CASES)
def test_rows_of_16_bits_give_nearly_the_same(comm: MPI.Intracomm, name: str) -> None:
    make, _, num_states = CASES[name]
    torch.manual_seed(4)
    layer, ends, found = make(), make_edges(), []
    carries = num_states == WIDTH
    with ProcessGrid(comm) as grid:
        states = numbers(ends.shape[1], num_states).float()
        edges, rows, chosen = local_inputs(grid, ends, states.numpy(), wire="bfloat16")
        for dtype in (torch.float32, torch.bfloat16):
            x = numbers(NUM_NODES, WIDTH)[rows].to(dtype).requires_grad_()
            given = states[torch.from_numpy(chosen)].to(dtype)
            results = _run(layer, grid, edges, x, given, carries=carries)
            assert {each.dtype for each in results} == {dtype}
            loss = sum((each.float() ** 2).sum() for each in results)
            of_weights = torch.autograd.grad(loss, [x, *layer.parameters()], allow_unused=True)
            gradients = [each for each in of_weights if each is not None]
            found.append([each.detach().float() for each in (*results, *gradients)])
    for one, other in zip(*found, strict=True):
        # A rank may have no rows.
        atol = 0.03 * float(one.abs().max()) if one.numel() else 0.0
        torch.testing.assert_close(other, one, rtol=0.05, atol=atol)


@pytest.mark.parametrize("out_width", [3, 9])
def test_three_maps_are_one_of_the_rows_side_by_side(out_width: int) -> None:
    linear = EdgeLinear(4, 6, 2, out_width).double()
    targets, sources, states = numbers(7, 4), numbers(7, 6), numbers(7, 2)
    fetched = linear.of_sources(sources)
    assert fetched.shape[1] == min(6, out_width)
    found = linear(linear.of_targets(targets), linear.arrived(fetched), states)
    whole = functional.linear(
        torch.cat([targets, sources, states], dim=1), linear.weight, linear.bias
    )
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


def test_a_model_that_predicts_edges_alone_has_no_columns_for_nodes() -> None:
    shape = ModelShape(num_features=FEATURES, num_classes=0, hidden=WIDTH, num_layers=1)
    model: Any = make_model("gcnii", shape, directed=False, seed=1, dtype=torch.float64)
    assert model.output(numbers(NUM_NODES, WIDTH)).shape == (NUM_NODES, 0)
