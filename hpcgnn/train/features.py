"""Features in the training dtype, scaled as the configuration says."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.comm import ProcessGrid, agree, allreduce_sum
from hpcgnn.errors import InputError
from hpcgnn.typing import FloatArray

__all__ = ["FeatureScale", "cast_features", "scale_features"]

_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, eq=False)
class FeatureScale:
    """Mean and deviation (F,) float64 of every feature; a model keeps those it was trained with."""

    mean: FloatArray
    deviation: FloatArray

    def tensors(self, name: str = "") -> dict[str, Tensor]:
        """Return it in the form that checkpoints hold, under the name of a node type."""
        prefix = f"{name}." if name else ""
        return {
            f"{prefix}mean": torch.from_numpy(self.mean),
            f"{prefix}deviation": torch.from_numpy(self.deviation),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "FeatureScale":
        """Return what `tensors` gave, without the name."""
        return cls(tensors["mean"].numpy(), tensors["deviation"].numpy())


def cast_features(grid: ProcessGrid, rows: FloatArray, dtype: str) -> FloatArray:
    """Return features (N, F) in the training dtype; the input itself where it has that already.

    Collective.

    Raises
    ------
    CollectiveInputError
        When a value is too large for `dtype`.
    """
    with np.errstate(over="ignore"):
        features = np.ascontiguousarray(rows, dtype=dtype)
    with agree(grid.world):
        if features.itemsize < rows.itemsize and not np.isfinite(features).all():
            raise InputError(
                f"a feature is too large for train.dtype = {dtype!r}: scale the features before "
                "converting them, or set train.dtype=float64"
            )
    return features


def scale_features(
    grid: ProcessGrid, kind: str, features: FloatArray, known: FeatureScale | None
) -> FeatureScale | None:
    """Scale `features` (N, F) in place; return the scale where it was taken from all nodes.

    Collective.

    Parameters
    ----------
    grid
        The ranks.
    kind
        ``graph.normalize_features``: none, row (sum of absolute values), l2 or standard.
    features
        Of the local nodes.
    known
        For standard, the scale of the graph that the model was trained on; None takes this one's.
    """
    if kind in ("row", "l2"):
        for block in _blocks(features):
            norms = np.linalg.norm(block.astype(np.float64), 1 if kind == "row" else 2, axis=1)
            block[:] = block / np.where(norms > 0, norms, 1)[:, None]
    if kind != "standard":
        return None
    scale = known or _measure(grid, features)
    divisor = np.where(scale.deviation > 0, scale.deviation, 1)
    for block in _blocks(features):
        block[:] = (block - scale.mean) / divisor
    return scale


def _measure(grid: ProcessGrid, features: FloatArray) -> FeatureScale:
    # Two passes, since E[x²] - E[x]² cancels.
    count = np.array([len(features)], np.float64)
    total = features.sum(axis=0, dtype=np.float64)
    allreduce_sum(grid.layer, count)
    allreduce_sum(grid.layer, total)
    # A node type may have no nodes.
    count = np.maximum(count, 1)
    mean = total / count
    squares = np.zeros_like(mean)
    for block in _blocks(features):
        squares += np.square(block - mean).sum(axis=0)
    allreduce_sum(grid.layer, squares)
    return FeatureScale(mean, np.sqrt(squares / count))


def _blocks(features: FloatArray) -> Iterator[FloatArray]:
    """Yield views of rows: float64 intermediates of all rows would triple the memory."""
    rows = max(1, _BLOCK_BYTES // max(1, 8 * features.shape[1]))
    for start in range(0, len(features), rows):
        yield features[start : start + rows]
