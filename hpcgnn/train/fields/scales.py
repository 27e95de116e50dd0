"""Means and deviations of fields over nodes, steps and ranks.

They are weighted by the nodes' weights, skip missing values, and are the same for any number of
ranks: float64 sums differ only in their last digits, which are rounded off.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid
from hpcgnn.graph.inputs import ROUNDING
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray

_STEPS_OF_DEVIATION = 1 << 16
"""A mean is rounded to this fraction of its deviation: a scaled float32 shows no difference."""


class Moments:
    """Running weights, means and squared deviations of columns.

    Means are from a value near them: sums of many rows would round off small deviations.
    """

    def __init__(self, width: int) -> None:
        self._sums, self._near = np.zeros((3, width)), np.full(width, np.nan)

    @property
    def weight(self) -> float:
        """The total weight of the values that were added."""
        return float(self._sums[0].sum())

    def add(self, rows: FloatArray, weights: FloatArray) -> None:
        """Add rows (n, width), NaN where missing, with weights (n,)."""
        values = rows.astype(np.float64)
        known = ~np.isnan(values)
        counts = known * weights[:, None]
        total, near = counts.sum(0), self._near
        if len(values):
            firsts = values[known.argmax(0), np.arange(values.shape[1])]
            near = np.where(np.isnan(near), firsts, near)
        values = np.where(known, values - near, 0)
        mean = (counts * values).sum(0) / np.where(total > 0, total, 1)
        values -= mean
        squares = (counts * np.square(values, out=values)).sum(0)
        self._merge(near, np.stack([total, mean, squares]))

    def _merge(self, near: FloatArray, other: FloatArray) -> None:
        self._near = np.where(np.isnan(self._near), near, self._near)
        # Chan, Golub and LeVeque, 1979: squares about the common mean avoid cancellation.
        (count, mean, squares), (other_count, other_mean, other_squares) = self._sums, other
        total = count + other_count
        share = other_count / np.where(total > 0, total, 1)
        distance = other_mean - mean + np.nan_to_num(near - self._near)
        merged = mean + share * distance
        self._sums = np.stack(
            [total, merged, squares + other_squares + count * share * distance**2]
        )

    @collective
    def over(self, grid: ProcessGrid) -> "Scale":
        """Return the scale of the values that all ranks added."""
        whole = Moments(self._sums.shape[1])
        for near, sums in grid.layer.allgather((self._near, self._sums)):
            whole._merge(near, sums)
        count, mean, squares = whole._sums
        deviation = np.sqrt(squares / np.where(count > 0, count, 1))
        return Scale.rounded(count, np.nan_to_num(whole._near) + mean, deviation)


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and deviation (width,) float64 of columns; the deviation of a constant one is 1."""

    mean: FloatArray
    deviation: FloatArray

    @classmethod
    def rounded(cls, count: FloatArray, mean: FloatArray, deviation: FloatArray) -> "Scale":
        """Return a scale without the digits that depend on the order of sums."""
        # A constant that was computed has rounding errors as deviation. Overflow is no constant.
        varies = (count > 0) & ~(deviation <= ROUNDING * np.finfo(np.float64).eps * np.abs(mean))
        size = np.where(varies, deviation, 1)
        size = np.array([float(f"{value:.5e}") for value in size.tolist()]).reshape(size.shape)
        grain = size / _STEPS_OF_DEVIATION
        return cls(np.round(mean / grain) * grain, size)

    @classmethod
    def unit(cls, width: int) -> "Scale":
        """Return the scale with mean 0 and deviation 1."""
        return cls(np.zeros(width), np.ones(width))

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return mean and deviation as checkpoints hold them."""
        fields = {"mean": self.mean, "deviation": self.deviation}
        return {f"{name}/{key}": torch.from_numpy(values) for key, values in fields.items()}

    @classmethod
    def from_tensors(cls, name: str, tensors: Mapping[str, Tensor]) -> "Scale":
        """Return the scale that `tensors` wrote under a name."""
        return cls(tensors[f"{name}/mean"].numpy(), tensors[f"{name}/deviation"].numpy())
