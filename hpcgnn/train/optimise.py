"""Optimisers, schedules of rates and evaluations, and the sum of gradients over ranks."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from hpcgnn.comm import ProcessGrid, allreduce_sum
from hpcgnn.nn import TrainableModule
from hpcgnn.train.config import TrainConfig

__all__ = [
    "clip_gradients",
    "evaluation_is_due",
    "learning_rate",
    "make_optimizer",
    "sum_gradients",
]


def make_optimizer(model: TrainableModule, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimiser of `config` over the parameters of `model`.

    Not collective.
    """
    groups = _parameter_groups(model, config)
    rate = config.learning_rate
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, lr=rate)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, nesterov=config.nesterov)


def _parameter_groups(model: TrainableModule, config: TrainConfig) -> list[dict[str, object]]:
    decay = config.weight_decay
    if config.weight_decay_layers == "all":
        return [{"params": list(model.parameters()), "weight_decay": decay}]
    first = model.input_parameters()
    chosen = {id(parameter) for parameter in first}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    groups: list[dict[str, object]] = [{"params": first, "weight_decay": decay}]
    if rest:
        groups.append({"params": rest, "weight_decay": 0.0})
    return groups


def learning_rate(config: TrainConfig, epoch: int, step: int) -> float:
    """Return the rate of `step`, which is in `epoch`; both are counted from 0, over the whole run.

    Not collective.

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

    Not collective.

    The first evaluation comes after `evaluate_every` epochs, and each gap is `evaluate_growth`
    times the one before, rounded up: early models change fast, late ones do not.
    """
    gap, due = float(config.evaluate_every), config.evaluate_every
    while due < epochs:
        gap *= config.evaluate_growth
        due += math.ceil(gap)
    return due == epochs or epochs == config.epochs


def sum_gradients(grid: ProcessGrid, parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its sum over the block rows, in one message.

    Collective.

    Replicas of a block row hold equal gradients and are not added. A parameter without a gradient
    (none of its rows is here) contributes zero.
    """
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in chosen:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in chosen if parameter.grad is not None]
    mine = torch.cat([gradient.reshape(-1) for gradient in gradients])
    host = mine.cpu()
    allreduce_sum(grid.layer, host.numpy())
    flat = host.to(mine.device)
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def clip_gradients(
    grid: ProcessGrid,
    shared: Sequence[nn.Parameter],
    own: Sequence[nn.Parameter],
    max_norm: float,
) -> None:
    """Scale gradients so that their common norm is at most `max_norm`; 0 leaves them.

    Collective where there are `own` parameters.

    Parameters
    ----------
    grid
        The ranks.
    shared
        With summed gradients, equal on all ranks.
    own
        With rows of this rank's nodes.
    max_norm
        Not negative.
    """
    if max_norm == 0:
        return
    norm = _norm(shared)
    if own:
        squares = _norm(own).double().square().cpu().reshape(1)
        allreduce_sum(grid.layer, squares.numpy())
        norm = (norm.double().square() + squares[0].to(norm.device)).sqrt().to(norm.dtype)
    torch.nn.utils.clip_grads_with_norm_([*shared, *own], max_norm, norm)


def _norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    return torch.nn.utils.get_total_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )
