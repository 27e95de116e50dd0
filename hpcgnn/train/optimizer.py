"""Optimisers, and the schedules of learning rates and evaluations."""

import math
from collections.abc import Iterator
from itertools import takewhile

import torch

from hpcgnn.config.training import TrainConfig
from hpcgnn.nn import TrainableModule


def make_optimizer(model: TrainableModule, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimiser of `config` over the parameters of `model`."""
    groups = _parameter_groups(model, config)
    rate = config.learning_rate
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, nesterov=config.nesterov)


def take_step(optimizer: torch.optim.Optimizer) -> bool:
    """Update the weights; return False where a rate or factor leaves the range of their type."""
    try:
        optimizer.step()
    except RuntimeError as error:
        if "without overflow" not in str(error):
            raise
        return False
    return True


def _parameter_groups(model: TrainableModule, config: TrainConfig) -> list[dict[str, object]]:
    decay = config.weight_decay
    if config.weight_decay_layers == "all":
        return [{"params": list(model.parameters()), "weight_decay": decay}]
    first = model.input_parameters()
    ids = {id(parameter) for parameter in first}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    groups: list[dict[str, object]] = [{"params": first, "weight_decay": decay}]
    if rest:
        groups.append({"params": rest, "weight_decay": 0.0})
    return groups


def learning_rate(config: TrainConfig, epoch: int, step: int) -> float:
    """Return the rate of `step`, which is in `epoch`; both are counted from 0, over the whole run.

    Warm-up rises linearly over `warmup_epochs`. "step" multiplies by gamma at each of
    `schedule_steps`; "linear", "exponential" and "cosine" fall to gamma times the rate at the last
    epoch, or where `decay_steps` is given, after so many steps, whatever epochs they make.
    """
    if epoch < config.warmup_epochs:
        return config.learning_rate * (epoch + 1) / (config.warmup_epochs + 1)
    last = max(config.epochs - 1 - config.warmup_epochs, 1)
    progress = min((epoch - config.warmup_epochs) / last, 1.0)
    if config.decay_steps:
        progress = min(step / config.decay_steps, 1.0)
    gamma = config.schedule_gamma
    factor: float = {
        "constant": 1.0,
        "step": gamma ** sum(epoch >= step for step in config.schedule_steps),
        "linear": 1 - (1 - gamma) * progress,
        "exponential": gamma**progress,
        "cosine": gamma + (1 - gamma) * 0.5 * (1 + math.cos(math.pi * progress)),
    }[config.schedule]
    return config.learning_rate * factor


def evaluation_is_due(config: TrainConfig, epochs: int) -> bool:
    """Tell whether the model is judged after so many epochs; it always is after the last.

    The first evaluation comes after `evaluate_every` epochs, and each gap is `evaluate_growth`
    times the one before, rounded up: early models change fast, late ones do not.
    """
    if epochs == config.epochs:
        return True
    if config.evaluate_growth == 1:
        return epochs % config.evaluate_every == 0
    return epochs in takewhile(lambda due: due <= epochs, _due(config))


def num_evaluations(config: TrainConfig) -> int:
    """Return how often a seed that trains to its last epoch is judged."""
    return sum(1 for _ in takewhile(lambda due: due < config.epochs, _due(config))) + 1


def _due(config: TrainConfig) -> Iterator[int]:
    gap, due = float(config.evaluate_every), config.evaluate_every
    while True:
        yield due
        gap *= config.evaluate_growth
        due += math.ceil(gap)
