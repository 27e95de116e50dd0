"""Which settings may change between the starts of one run."""

import dataclasses
from pathlib import Path
from typing import Any

from hpcgnn.errors import InputError
from hpcgnn.train.config import Config

__all__ = ["check_same_run"]

_FREE_SECTIONS = ("exchange", "run", "trace")


def check_same_run(before: Config, now: Config, directory: Path) -> None:
    """See that `now` continues the run that `before` started.

    Not collective.

    Where and how it runs may change: the exchange, the run directory's settings, the trace, the
    place of the store, the device. A run of one seed may get more epochs where its schedule allows,
    and seeds may be appended.

    Raises
    ------
    InputError
        Naming the first other setting that differs.
    """
    for section in dataclasses.fields(Config):
        if section.name in _FREE_SECTIONS:
            continue
        old, new = getattr(before, section.name), getattr(now, section.name)
        for key in (each.name for each in dataclasses.fields(old)):
            values = getattr(old, key), getattr(new, key)
            if values[0] != values[1] and not _may_change(f"{section.name}.{key}", *values, before):
                raise InputError(
                    f"{section.name}.{key} = {values[1]!r}, but the run in {directory} has "
                    f"{values[0]!r}: set it back, use another run.dir, or run.resume=never to "
                    "start over"
                )


def _may_change(key: str, old: Any, new: Any, before: Config) -> bool:
    if key in ("graph.store", "train.device", "train.group_size"):
        return True
    if key == "train.seeds":
        return bool(new[: len(old)] == old)
    # Finished seeds stay as they are, so that only a lone seed can go on; the rates of its past
    # epochs must not depend on the number of epochs.
    lasting = before.train.schedule in ("constant", "step")
    return key == "train.epochs" and len(before.train.seeds) == 1 and lasting and new > old
