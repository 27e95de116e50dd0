"""Segments of layers, of which only the inputs wait for the backward pass."""

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hpcgnn.autograd import Segment, run_segments, segments_of
from hpcgnn.comm import Moment


@pytest.mark.parametrize(
    ("num_layers", "lengths"),
    [(1, [1]), (2, [1, 1]), (4, [2, 1, 1]), (8, [1, 3, 2, 1, 1]), (15, [4, 4, 3, 2, 1, 1])],
)
def test_segments_get_shorter(num_layers: int, lengths: list[int]) -> None:
    parts = segments_of(num_layers)
    assert [len(part) for part in parts] == lengths
    assert [place for part in parts for place in part] == list(range(num_layers))


class Layers:
    """Layers that count the large tensors which are there whenever one of them has run."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(15))
        self.most, self._storages = 0, list[StorageWeakRef]()

    def run(self, rows: Tensor, x: Tensor, part: range) -> tuple[Tensor, Tensor]:
        for place in part:
            x = torch.tanh(self.layers[place](x))
            rows = rows + x.sum(dim=1)
            if x.requires_grad:
                x.register_hook(self.note)
            self.note(x)
        return rows, x

    def note(self, tensor: Tensor) -> None:
        self._storages.append(StorageWeakRef(tensor.untyped_storage()))
        there = {each.cdata for each in self._storages if not each.expired()}
        self.most = max(self.most, len(there))

    def segment(self, part: range) -> Segment:
        layers = [self.layers[place] for place in part]
        return Segment(lambda *values: self.run(*values, part), layers, runs_again=len(part) > 1)


def test_gradients_have_the_same_bits_and_less_waits() -> None:
    found, most = [], []
    torch.manual_seed(1)
    layers = Layers()
    layers.layers[3].bias.requires_grad_(False)
    wanted = [each for each in layers.layers.parameters() if each.requires_grad]
    for again in (False, True):
        layers.most = 0
        x = torch.linspace(-1, 1, 4096).view(512, 8).requires_grad_()
        if again:
            segments = [layers.segment(part) for part in segments_of(15)]
            rows, _ = run_segments(segments, [torch.zeros(512), x], Moment())
        else:
            rows, _ = layers.run(torch.zeros(512), x, range(15))
        loss = rows.square().sum()
        del rows, _
        found.append(torch.autograd.grad(loss, [x, *wanted]))
        most.append(layers.most)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    # All 15 and a gradient; or inputs of segments and what one of them saves, five together, a
    # gradient and its successor.
    assert most == [16, 7]


def test_layers_may_share_parameters_and_have_none_that_learn() -> None:
    torch.manual_seed(2)
    shared, frozen = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
    segments = [
        Segment(lambda x, layer=layer: (torch.tanh(layer(x)),), [layer], runs_again=again)
        for layer in (shared, frozen)
        for again in (True, False)
    ]
    x = torch.ones(2, 3)

    def through(x: Tensor) -> Tensor:
        for segment in segments:
            (x,) = segment.run(x)
        return x

    (rows,) = run_segments(segments, [x], Moment())
    found = torch.autograd.grad(rows.sum(), list(shared.parameters()))
    expected = torch.autograd.grad(through(x).sum(), list(shared.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_second_backward_pass_is_refused() -> None:
    layer, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    (rows,) = run_segments([Segment(lambda x: (layer(x),), [layer])], [x], Moment())
    rows.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="run it once"):
        rows.sum().backward()
