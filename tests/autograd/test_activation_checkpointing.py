"""Steps that keep few inputs for the backward pass."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hpcgnn.autograd import EdgeInputs, Step, run_steps
from hpcgnn.autograd.memory import HostTensors
from hpcgnn.autograd.messages import chain, edge_messages
from hpcgnn.comm import ProcessGrid, RowMap, RunPosition
from hpcgnn.messages import EdgeTable, MessageOperator
from hpcgnn.nn.edge_linear import EdgeLinear, EdgePerceptron
from hpcgnn.nn.perceptron import Perceptron
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import make_exchange
from hpcgnn.trace import TraceRecorder


class Storages:
    """Counts the tensors that exist at one time."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.most, self._storages = 0, list[StorageWeakRef]()

    def note(self, tensor: Tensor) -> None:
        self._storages.append(StorageWeakRef(tensor.untyped_storage()))
        there = {each.cdata for each in self._storages if not each.expired()}
        self.most = max(self.most, len(there))


class Layers(Storages):
    """Layers that count how often they run, and their large tensors."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
        self.runs = [0] * count
        self.steps = [
            Step(lambda *values, place=place: self.run(place, *values), layer)
            for place, layer in enumerate(self.layers)
        ]

    def run(self, place: int, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        self.runs[place] += 1
        # A sum does not save its result, the input of another one.
        x = x + torch.tanh(self.layers[place](x))
        if x.requires_grad:
            x.register_hook(self.note)
        self.note(x)
        return rows + x.sum(dim=1), x


def _inputs_of(num_layers: int) -> int:
    return next(most for most in range(9) if most * (most + 1) // 2 >= num_layers)


@pytest.mark.parametrize("num_layers", range(1, 21))
def test_few_inputs_wait_and_gradients_have_the_same_bits(num_layers: int) -> None:
    torch.manual_seed(1)
    layers, found = Layers(num_layers), []
    layers.layers[num_layers // 2].bias.requires_grad_(False)
    wanted = [each for each in layers.layers.parameters() if each.requires_grad]
    for again in (False, True):
        layers.begin()
        layers.runs = [0] * num_layers
        x = torch.linspace(-1, 1, 128).view(16, 8).requires_grad_()
        layers.note(x)
        rows, last = torch.zeros(16), x
        if again:
            rows, last = run_steps(layers.steps, [rows, last], RunPosition())
        else:
            for step in layers.steps:
                rows, last = step.run(rows, last)
        loss = rows.square().sum()
        del rows, last
        found.append(torch.autograd.grad(loss, [x, *wanted]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    inputs = _inputs_of(num_layers)
    # Inputs, a gradient and the gradient computed from it.
    assert layers.most <= inputs + 2
    assert max(layers.runs) <= 2
    assert sum(layers.runs) == 2 * num_layers - inputs


@pytest.mark.parametrize("fused", [True, False])
def test_gradients_of_states_take_the_place_of_the_last(
    monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    torch.manual_seed(1)
    num_layers, width, side = 10, 4, 40
    sources = np.arange(side)[:, None] + np.arange(1, 4)
    made, storages, found = HostTensors.empty, Storages(), []
    shape = (sources.size, width)

    def noted(memory: HostTensors, like: Tensor, of: tuple[int, ...]) -> Tensor:
        tensor = made(memory, like, of)
        if tuple(of) == shape:
            storages.note(tensor)
        return tensor

    monkeypatch.setattr(HostTensors, "empty", noted)
    # The arrays of a block are smaller.
    monkeypatch.setattr(chain, "BLOCK_BYTES", 1024)
    monkeypatch.setattr(chain, "KEPT_BYTES", 0)
    monkeypatch.setattr(edge_messages, "BLOCK_BYTES", 1024)
    if not fused:
        monkeypatch.setattr(chain.Chain, "fits", lambda _chain, _rows: False)
    with ProcessGrid.of_this_process() as grid:
        row_map, trace = RowMap(np.array([0, side]), 0), TraceRecorder.off()
        table = EdgeTable(np.empty((sources.size, 0), np.float32))
        indptr = np.arange(side + 1) * 3
        matrix = DistCSR.from_rows(row_map, indptr, sources.ravel() % side, table.numbers)
        exchange = make_exchange("aware", grid, matrix, trace)
        edges = EdgeInputs(MessageOperator(matrix, exchange, table))
        layers = nn.ModuleList(
            EdgePerceptron(
                EdgeLinear(width, width, width, width),
                Perceptron([width] * 2, "relu"),
                residual=True,
            )
            for _ in range(num_layers)
        ).double()

        def step(layer: EdgePerceptron) -> Step:
            def run(rows: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
                summed, new = layer.reduced(edges, rows, rows, states, "sum")
                return rows + summed, new

            return Step(run, layer)

        steps = [step(layer) for layer in layers]
        for again in (False, True):
            rows = torch.linspace(-1, 1, side * width).view(side, width).double().requires_grad_()
            states = torch.linspace(-1, 1, sources.size * width).view(shape).double()
            states.requires_grad_()
            storages.begin()
            storages.note(states)
            values = rows, states
            if again:
                values = run_steps(steps, values, RunPosition())
            else:
                for each in steps:
                    values = each.run(*values)
            loss = values[0].square().sum()
            del values
            found.append(torch.autograd.grad(loss, [rows, states, *layers.parameters()]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert storages.most == _inputs_of(num_layers) + 1


def test_layers_may_share_parameters_and_have_none_that_learn() -> None:
    torch.manual_seed(2)
    shared, frozen = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
    steps = [
        Step(lambda x, layer=layer: (torch.tanh(layer(x)),), layer)
        for layer in (shared, frozen, frozen, shared, shared, frozen)
    ]
    x = torch.ones(2, 3)

    def through(x: Tensor) -> Tensor:
        for step in steps:
            (x,) = step.run(x)
        return x

    expected = torch.autograd.grad(through(x).sum(), list(shared.parameters()))
    for saves in (True, False):
        (rows,) = run_steps(steps, [x], RunPosition(), saves=saves)
        found = torch.autograd.grad(rows.sum(), list(shared.parameters()))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_a_gradient_that_others_read_is_not_written_over() -> None:
    """A tensor that passes through a step unchanged belongs to the caller."""
    torch.manual_seed(2)
    layers, x = [nn.Linear(3, 3) for _ in range(3)], torch.ones(2, 3, requires_grad=True)
    steps = [Step(lambda x, layer=layer: (x + 0 * layer(x),), layer) for layer in layers]
    (rows,) = run_steps(steps, [x], RunPosition())
    given = torch.full((2, 3), 2.0)
    torch.autograd.grad(rows, [x], given)
    assert given.unique().tolist() == [2]


def test_a_second_backward_pass_is_refused() -> None:
    layer, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    (rows,) = run_steps([Step(lambda x: (layer(x),), layer)], [x], RunPosition())
    rows.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run it once"):
        rows.sum().backward()
