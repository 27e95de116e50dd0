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
from hpcgnn.spmd import collective
from hpcgnn.typing import FloatArray

_STEPS_OF_DEVIATION = 1 << 16
"""A mean is rounded to this fraction of its deviation: a scaled float32 shows no difference."""


class Moments:
    """Running weights, means and squared deviations of columns."""

    def __init__(self, width: int) -> None:
        self._sums = np.zeros((3, width))

    @property
    def weight(self) -> float:
        """The total weight of the values that were added."""
        return float(self._sums[0].sum())

    def add(self, rows: FloatArray, weights: FloatArray) -> None:
        """Add rows (n, width), NaN where missing, with weights (n,)."""
        values = rows.astype(np.float64)
        known = ~np.isnan(values)
        counts = known * weights[:, None]
        total = counts.sum(0)
        values[~known] = 0
        mean = (counts * values).sum(0) / np.where(total > 0, total, 1)
        values -= mean
        self._merge(np.stack([total, mean, (counts * np.square(values, out=values)).sum(0)]))

    def _merge(self, other: FloatArray) -> None:
        # Chan, Golub and LeVeque, 1979: squares about the common mean avoid cancellation.
        (count, mean, squares), (other_count, other_mean, other_squares) = self._sums, other
        total = count + other_count
        share = other_count / np.where(total > 0, total, 1)
        distance = other_mean - mean
        merged = mean + share * distance
        self._sums = np.stack(
            [total, merged, squares + other_squares + count * share * distance**2]
        )

    @collective
    def over(self, grid: ProcessGrid) -> "Scale":
        """Return the scale of the values that all ranks added."""
        whole = Moments(self._sums.shape[1])
        for sums in grid.layer.allgather(self._sums):
            whole._merge(sums)
        count, mean, squares = whole._sums
        return Scale.rounded(count, mean, np.sqrt(squares / np.where(count > 0, count, 1)))


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and deviation (width,) float64 of columns; the deviation of a constant one is 1."""

    mean: FloatArray
    deviation: FloatArray

    @classmethod
    def rounded(cls, count: FloatArray, mean: FloatArray, deviation: FloatArray) -> "Scale":
        """Return a scale without the digits that depend on the order of sums."""
        # A constant column has only the rounding errors of its sums as deviation. Overflow is no
        # constant.
        varies = (count > 0) & ~(deviation <= 1e-12 * np.abs(mean))
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
