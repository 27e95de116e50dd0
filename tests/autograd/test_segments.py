"""Segments of layers, of which only the inputs wait for the backward pass."""

import pytest
import torch
from torch import Tensor, nn

from hpcgnn.autograd import run_segment, segments_of
from hpcgnn.comm import Moment


@pytest.mark.parametrize(
    ("num_layers", "lengths"),
    [(1, [1]), (2, [1, 1]), (3, [2, 1]), (8, [2, 3, 2, 1]), (15, [5, 4, 3, 2, 1])],
)
def test_segments_get_shorter(num_layers: int, lengths: list[int]) -> None:
    parts = segments_of(num_layers)
    assert [len(part) for part in parts] == lengths
    assert [place for part in parts for place in part] == list(range(num_layers))


def test_gradients_have_the_same_bits_and_less_waits() -> None:
    layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(15))
    layers[3].bias.requires_grad_(False)
    found, waiting = [], []

    def run(x: Tensor, part: range) -> tuple[Tensor, Tensor]:
        for place in part:
            x = torch.tanh(layers[place](x))
        return x, 2 * x

    for again in (False, True):
        saved: dict[int, int] = {}

        def note(each: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[each.data_ptr()] = each.numel()
            return each

        x = torch.linspace(-1, 1, 4096).view(512, 8).requires_grad_()
        rows = x
        with torch.autograd.graph.saved_tensors_hooks(note, lambda each: each):
            for part in segments_of(15):
                if again:
                    some = [layers[place] for place in part]
                    rows, _ = run_segment(lambda y, part=part: run(y, part), [rows], some, Moment())
                else:
                    rows, _ = run(rows, part)
        wanted = [each for each in layers.parameters() if each.requires_grad]
        found.append(torch.autograd.grad(rows.square().sum(), [x, *wanted]))
        waiting.append(sum(size for size in saved.values() if size == x.numel()))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert waiting[1] <= waiting[0] * 6 / 15
