"""Means and deviations of fields over nodes, steps and ranks.

They are weighted by the nodes' weights, leave missing values out, and are the same at any number
of ranks: sums in float64 differ in their last digits only, which are rounded off.
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
"""Into which a mean is rounded: finer than float32 tells a scaled number."""


class Moments:
    """Running weights, means and squared deviations of columns."""

    def __init__(self, width: int) -> None:
        self._sums = np.zeros((3, width))

    @property
    def weight(self) -> float:
        """The weight of all that was taken."""
        return float(self._sums[0].sum())

    def add(self, rows: FloatArray, weights: FloatArray) -> None:
        """Take rows (n, width), NaN where missing, of nodes with weights (n,)."""
        values = rows.astype(np.float64)
        known = ~np.isnan(values)
        counts = known * weights[:, None]
        total = counts.sum(0)
        values[~known] = 0
        mean = (counts * values).sum(0) / np.where(total > 0, total, 1)
        values -= mean
        self._merge(np.stack([total, mean, (counts * np.square(values, out=values)).sum(0)]))

    def _merge(self, other: FloatArray) -> None:
        # Chan, Golub and LeVeque, 1979: sums of squares about the common mean do not cancel.
        (count, mean, squares), (more, their_mean, their_squares) = self._sums, other
        total = count + more
        share = more / np.where(total > 0, total, 1)
        distance = their_mean - mean
        merged = mean + share * distance
        self._sums = np.stack(
            [total, merged, squares + their_squares + count * share * distance**2]
        )

    @collective
    def over(self, grid: ProcessGrid) -> "Scale":
        """Return the scale of what all ranks have taken."""
        whole = Moments(self._sums.shape[1])
        for sums in grid.layer.allgather(self._sums):
            whole._merge(sums)
        count, mean, squares = whole._sums
        return Scale.rounded(count, mean, np.sqrt(squares / np.where(count > 0, count, 1)))


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean and deviation (width,) float64 of columns; 1 for one that does not vary."""

    mean: FloatArray
    deviation: FloatArray

    @classmethod
    def rounded(cls, count: FloatArray, mean: FloatArray, deviation: FloatArray) -> "Scale":
        """Return it of some columns, without the digits that depend on the order of sums."""
        # What does not vary leaves the rounding of its sums.
        varies = (count > 0) & (deviation > 1e-12 * np.abs(mean))
        size = np.where(varies, deviation, 1)
        size = np.array([float(f"{each:.5e}") for each in size.tolist()]).reshape(size.shape)
        grain = size / _STEPS_OF_DEVIATION
        return cls(np.round(mean / grain) * grain, size)

    @classmethod
    def unit(cls, width: int) -> "Scale":
        """Return that of columns of mean 0 and deviation 1."""
        return cls(np.zeros(width), np.ones(width))

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return it in the form that checkpoints hold."""
        fields = {"mean": self.mean, "deviation": self.deviation}
        return {f"{name}/{key}": torch.from_numpy(each) for key, each in fields.items()}

    @classmethod
    def from_tensors(cls, name: str, tensors: Mapping[str, Tensor]) -> "Scale":
        """Return what `tensors` gave."""
        return cls(tensors[f"{name}/mean"].numpy(), tensors[f"{name}/deviation"].numpy())
