"""Configurations of several tasks with one encoder, and of each of these tasks."""

from dataclasses import replace

from hpcgnn.config.config import Config, CorrectAndSmoothConfig
from hpcgnn.errors import InputError

OF_PAIRS = ("links", "edges")
"""Tasks on pairs of nodes, with a section that sets the width of embeddings."""


def width_of(config: Config) -> int:
    """Return the width of the embeddings that all tasks read.

    Raises `InputError` if two tasks have different widths.
    """
    widths = {
        f"{task}.width": getattr(config, task).width
        for task in config.train.tasks
        if task in OF_PAIRS and getattr(config, task).width
    }
    if len({*widths.values()}) > 1:
        shown = " and ".join(f"{key} = {width}" for key, width in widths.items())
        raise InputError(f"{shown}: train.task = {config.train.task!r} has one encoder; give one")
    return next(iter(widths.values()), config.model.hidden)


def with_one_width(config: Config) -> Config:
    """Return the configuration with the embedding width of `width_of` in all tasks."""
    width = width_of(config)
    sections = {task: getattr(config, task) for task in config.train.tasks if task in OF_PAIRS}
    return replace(config, **{name: replace(part, width=width) for name, part in sections.items()})


def of_task(config: Config, name: str) -> Config:
    """Return the configuration of one of the tasks, without options that only others have."""
    config = with_one_width(config)
    train = replace(config.train, task=name, task_weights=(), metric="")
    if name not in OF_PAIRS:
        return replace(config, train=train)
    return replace(
        config,
        train=replace(train, label_smoothing=0.0, splits=(), threshold="valid"),
        graph=replace(config.graph, targets=""),
        correct_and_smooth=CorrectAndSmoothConfig(),
    )
