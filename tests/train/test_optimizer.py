"""A step of the optimiser is right for any order in memory, and exact if that is required."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hpcgnn.config.training import TrainConfig
from hpcgnn.nn import TrainableModule
from hpcgnn.train.gradients import weights_are_finite
from hpcgnn.train.optimizer import make_optimizer

STEPS = 5


class Weights(TrainableModule):
    """A model that consists of matrices."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.matrices = nn.ParameterList(torch.randn(*shape, generator=draw) for shape in shapes)


def trained(model: Weights, config: TrainConfig, gradients: list[list[torch.Tensor]]) -> Weights:
    optimizer = make_optimizer(model, config)
    for step in gradients:
        for parameter, gradient in zip(model.matrices, step, strict=True):
            parameter.grad = gradient
        assert optimizer.step()
    return model


def adam(weights: np.ndarray, gradients: list[np.ndarray], config: TrainConfig) -> np.ndarray:
    """Return weights after steps of Adam (Kingma and Ba, algorithm 1) in float64."""
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for number, raw in enumerate(gradients, start=1):
        gradient = raw + config.weight_decay * weights
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        step = (mean / (1 - 0.9**number)) / (np.sqrt(square / (1 - 0.999**number)) + 1e-8)
        weights = weights - config.learning_rate * step
    return weights


@pytest.mark.parametrize("reproducible", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_adam_equals_its_definition(turned: bool, reproducible: bool) -> None:
    config = TrainConfig(learning_rate=0.05, weight_decay=0.01, reproducible=reproducible)
    model = Weights((30, 17), (5,), (0, 4))
    draw = torch.Generator().manual_seed(2)
    steps = []
    for _ in range(STEPS):
        first = torch.randn(17, 30, generator=draw).t() if turned else torch.randn(30, 17)
        steps.append([first, torch.randn(5, generator=draw), torch.zeros(0, 4)])
    expected = [
        adam(
            each.detach().double().numpy(), [step[place].double().numpy() for step in steps], config
        )
        for place, each in enumerate(model.matrices)
    ]
    trained(model, config, steps)
    for found, wanted in zip(model.matrices, expected, strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_reproducible_bits_do_not_depend_on_the_place_in_an_array() -> None:
    config = TrainConfig(reproducible=True)
    whole = Weights((1027, 1))
    cuts = (1, 4, 300, 722)
    parts = Weights(*((size, 1) for size in cuts))
    with torch.no_grad():
        for part, rows in zip(parts.matrices, whole.matrices[0].split(cuts), strict=True):
            part.copy_(rows)
    draw = torch.Generator().manual_seed(3)
    steps = [torch.randn(1027, 1, generator=draw) for _ in range(STEPS)]
    trained(whole, config, [[step] for step in steps])
    trained(parts, config, [[*map(torch.clone, step.split(cuts))] for step in steps])
    assert torch.equal(torch.cat(list(parts.matrices)), whole.matrices[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_seen(bad: float) -> None:
    model = Weights((30, 17), (0, 4), (5,))
    assert weights_are_finite(model.parameters())
    assert weights_are_finite([])
    for number, index in ((0, (29, 16)), (2, (0,))):
        broken = copy.deepcopy(model)
        broken.matrices[number].data[index] = bad
        assert not weights_are_finite(broken.parameters())
