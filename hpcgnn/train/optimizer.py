"""Optimisers, and the schedules of learning rates and evaluations."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd
from typing_extensions import override

from hpcgnn.config.training import TrainConfig
from hpcgnn.errors import InputError
from hpcgnn.nn import TrainableModule

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8


class Optimizer(ABC):
    """Updates the parameters of a model, and keeps state tensors of each between steps.

    It calls torch's optimiser functions, not its classes, which would load torch's compiler: that
    takes 70 MiB and a second on every rank. `rate` is that of the next step. `state` has each
    parameter's tensors and numbers by name, and no entry before its first gradient; `keys` are
    these names.
    """

    keys: tuple[str, ...]

    def __init__(self, model: TrainableModule, config: TrainConfig) -> None:
        self.rate, self._config = config.learning_rate, config
        self.state: dict[Tensor, dict[str, Any]] = {}
        self._groups = _decay_groups(model, config)
        self._in_order = all(parameter.is_contiguous() for parameter in model.parameters())

    @torch.no_grad()
    def step(self) -> bool:
        """Update the weights; return False if a rate or factor overflows their dtype.

        Parameters without a gradient stay unchanged.
        """
        for decay, group in self._groups:
            parameters = [parameter for parameter in group if parameter.grad is not None]
            if not parameters:
                continue
            try:
                self.update(parameters, decay)
            except RuntimeError as error:
                if "without overflow" not in str(error):
                    raise
                return False
        return True

    @abstractmethod
    def update(self, parameters: list[Tensor], decay: float) -> None:
        """Update parameters that have gradients; `decay` is their weight decay."""


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015), or AdamW with decoupled decay (Loshchilov, ICLR 2019)."""

    keys = ("step", "exp_avg", "exp_avg_sq")

    @override
    def update(self, parameters: list[Tensor], decay: float) -> None:
        for parameter in parameters:
            if parameter not in self.state:
                moments = (torch.zeros_like(parameter) for _ in range(2))
                self.state[parameter] = dict(zip(self.keys, (0.0, *moments), strict=True))
        states = [self.state[parameter] for parameter in parameters]
        # After a restart they are tensors.
        counts = [float(state["step"]) for state in states]
        for state, count in zip(states, counts, strict=True):
            state["step"] = count + 1
        decoupled, gradients = self._config.optimizer == "adamw", _gradients(parameters)
        means, squares = ([state[key] for state in states] for key in self.keys[1:])
        largest_squares: list[Tensor] = []
        tensors = parameters, gradients, means, squares, largest_squares
        numbers: dict[str, Any] = {
            "amsgrad": False,
            "beta1": _BETA1,
            "beta2": _BETA2,
            "lr": self.rate,
            "weight_decay": decay,
            "eps": _EPS,
            "maximize": False,
        }
        number = partial(parameters[0].new_full, (), dtype=torch.float32)
        # One pass reads arrays in order, and rounds some numbers by their place in them.
        if self._in_order and not self._config.reproducible:
            # Without torch's function around it, which sorts tensors by device and dtype, and
            # counts the steps of each: together they take longer than small models.
            update = torch._fused_adamw_ if decoupled else torch._fused_adam_
            steps = {count: number(count + 1) for count in set(counts)}
            update(*tensors, [steps[count] for count in counts], **numbers)
        else:
            steps_before = [number(count) for count in counts]
            adam(*tensors, steps_before, decoupled_weight_decay=decoupled, foreach=True, **numbers)


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if that is not 0."""

    keys = ("momentum_buffer",)

    @override
    def update(self, parameters: list[Tensor], decay: float) -> None:
        key, momentum = self.keys[0], self._config.momentum
        buffers = [self.state.get(parameter, {}).get(key) for parameter in parameters]
        sgd(
            parameters,
            _gradients(parameters),
            buffers,
            weight_decay=decay,
            momentum=momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=self._config.nesterov,
            maximize=False,
        )
        for parameter, buffer in zip(parameters, buffers, strict=True):
            if buffer is not None:
                self.state[parameter] = {key: buffer}


def make_optimizer(model: TrainableModule, config: TrainConfig) -> Optimizer:
    """Return the optimiser of `config` over the parameters of `model`."""
    return (SGD if config.optimizer == "sgd" else Adam)(model, config)


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    gradients = (parameter.grad for parameter in parameters)
    return [gradient.contiguous() for gradient in gradients if gradient is not None]


def _decay_groups(model: TrainableModule, config: TrainConfig) -> list[tuple[float, list[Tensor]]]:
    """Return the weight decays, and the parameters of each.

    Raises `InputError` for a pattern that fits no name.
    """
    decays = {name: config.weight_decay for name, _ in model.named_parameters()}
    for pattern, decay in config.decays:
        # Heads and input layers of node types come before the names of a model's own weights.
        named = [name for name in decays if fnmatchcase(f".{name}", f"*.{pattern}")]
        if not named:
            names = ", ".join(decays)
            raise InputError(f"train.weight_decays: {pattern} fits none of the weights {names}")
        decays.update(dict.fromkeys(named, decay))
    groups: dict[float, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(decays[name], []).append(parameter)
    return list(groups.items())


def learning_rate(config: TrainConfig, epoch: int, step: int) -> float:
    """Return the rate of `step` in `epoch`; both are counted from 0 over the whole run.

    The rate rises linearly over `warmup_epochs`. "step" multiplies it by gamma at each of
    `schedule_steps`; "linear", "exponential" and "cosine" fall to gamma times the rate at the last
    epoch, or after `decay_steps` steps if that is set.
    """
    if epoch < config.warmup_epochs:
        return config.learning_rate * (epoch + 1) / (config.warmup_epochs + 1)
    last = max(config.epochs - 1 - config.warmup_epochs, 1)
    progress = min((epoch - config.warmup_epochs) / last, 1.0)
    if config.decay_steps:
        progress = min(step / config.decay_steps, 1.0)
    gamma = config.schedule_gamma
    factor = 1.0
    match config.schedule:
        case "step":
            factor = gamma ** sum(epoch >= step for step in config.schedule_steps)
        case "linear":
            factor = 1 - (1 - gamma) * progress
        case "exponential":
            factor = gamma**progress
        case "cosine":
            factor = gamma + (1 - gamma) * 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * factor


def evaluation_is_due(config: TrainConfig, epochs: int) -> bool:
    """Return whether to evaluate the model after `epochs` epochs; it always is after the last.

    The first evaluation comes after `evaluate_every` epochs, and each gap is `evaluate_growth`
    times the one before, rounded up: models change faster early than late.
    """
    if epochs == config.epochs:
        return True
    if config.evaluate_growth == 1:
        return epochs % config.evaluate_every == 0
    return epochs in takewhile(lambda due: due <= epochs, _due(config))


def num_evaluations(config: TrainConfig) -> int:
    """Return the number of evaluations of a seed that trains to its last epoch."""
    return sum(1 for _ in takewhile(lambda due: due < config.epochs, _due(config))) + 1


def _due(config: TrainConfig) -> Iterator[int]:
    gap, due = float(config.evaluate_every), config.evaluate_every
    while True:
        yield due
        gap *= config.evaluate_growth
        due += math.ceil(gap)
