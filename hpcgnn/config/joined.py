"""What joins tasks of one encoder: the width of the embeddings that all of them read."""

from dataclasses import replace

from hpcgnn.config.config import Config
from hpcgnn.errors import InputError

_WITH_WIDTHS = ("links", "edges")


def width_of(config: Config) -> int:
    """Return the width of the embeddings that all objectives read.

    Raises `InputError` where two of them are given other widths.
    """
    given = {
        f"{task}.width": getattr(config, task).width
        for task in config.train.tasks
        if task in _WITH_WIDTHS and getattr(config, task).width
    }
    if len({*given.values()}) > 1:
        shown = " and ".join(f"{key} = {width}" for key, width in given.items())
        raise InputError(f"{shown}: train.task = {config.train.task!r} has one encoder; give one")
    return next(iter(given.values()), config.model.hidden)


def with_one_width(config: Config) -> Config:
    """Return the configuration in which all objectives read embeddings of that width."""
    width = width_of(config)
    sections = {task: getattr(config, task) for task in config.train.tasks if task in _WITH_WIDTHS}
    return replace(config, **{name: replace(each, width=width) for name, each in sections.items()})
