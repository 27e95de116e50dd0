"""Hyper-parameters drawn at random, for searches as an array of jobs."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

__all__ = ["LARGE_BATCH", "RANGES", "sample_overrides"]

RANGES: Mapping[str, Sequence[object]] = MappingProxyType(
    {
        "train.optimizer": ("sgd",),
        "train.schedule": ("linear",),
        "train.learning_rate": (0.03, 0.1, 0.3, 1.0, 3.0),
        "train.decay_steps": (100_000, 300_000),
        "train.schedule_gamma": (0.1, 1.0),
        "train.momentum": (0.3, 0.5, 0.7, 0.9, 0.95, 0.97),
        "train.nesterov": (False, True),
        "train.clip_norm": (0.003, 0.01, 0.1, 0.3),
        "train.weight_decay": (0.1, 1e-6, 1e-5, 1e-4, 1e-3),
        "train.label_smoothing": (0.0, 0.005, 0.05),
        "programs.dropout": (0.4, 0.3, 0.2, 0.1),
    }
)
"""The values of the dense-hardware paper's Appendix E."""

LARGE_BATCH: Mapping[str, Sequence[object]] = MappingProxyType(
    {
        "train.learning_rate": (1.0, 3.0, 7.0, 10.0, 30.0),
        "train.decay_steps": (500, 1000, 5000, 10_000),
    }
)
"""What Appendix E draws from instead where many supergraphs make a step: the paper has no rule that
scales rates with the batch, it searches anew for each size."""


def sample_overrides(seed: int, *, large_batch: bool = False) -> list[str]:
    """Return ``section.key=value`` for each key of `RANGES`, drawn by `seed`.

    Not collective.

    Parameters
    ----------
    seed
        The same seed draws the same values.
    large_batch
        Draw from `LARGE_BATCH` where it has the key.
    """
    rng = np.random.default_rng(seed)
    ranges = {**RANGES, **(LARGE_BATCH if large_batch else {})}
    drawn = {key: values[int(rng.integers(len(values)))] for key, values in ranges.items()}
    return [f"{key}={json.dumps(value)}" for key, value in drawn.items()]
