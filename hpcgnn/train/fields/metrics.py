"""How far predicted fields are from the truth, over nodes, samples and ranks.

With weights w, errors e in deviations s of what the model gives, truth y in physical units, and d
the truth of what the model gives, scaled (differences where these are predicted):

    loss = Σ w e² / Σ w                 rmse = sqrt(Σ w (s e)² / Σ w)
    rel_l2 = sqrt(Σ w (s e)² / Σ w y²)  r2 = 1 - Σ w e² / Σ w (d - mean d)²

R² is of a column, and then the mean over those that vary; 0 is as good as the mean.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import arithmetic
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.storage import FieldInfo
from hpcgnn.typing import FloatArray

_SUMS = 5


class FieldErrors:
    """Sums over what was predicted so far; `deviations` (W,) are of what the model gives."""

    def __init__(self, fields: Sequence[FieldInfo], deviations: FloatArray) -> None:
        self._fields, self._squares = fields, np.square(deviations)
        self._sums = np.zeros((_SUMS, len(deviations)))

    @collective
    def add(
        self, weights: Tensor, errors: Tensor, truth: Tensor, scaled: Tensor, sums: RankSums
    ) -> None:
        """Take one prediction of this rank's nodes, all (n, W) float64; `sums` adds over ranks.

        `weights` are 0 where nothing counts, `truth` is in physical units without missing values,
        `scaled` is the truth of what the model gives.
        """
        columns = torch.stack(
            [
                weights,
                weights * errors.square(),
                weights * truth.square(),
                weights * scaled,
                weights * scaled.square(),
            ],
            dim=1,
        )
        flat = columns.reshape(len(columns), _SUMS * self._sums.shape[1])
        found = arithmetic().sums_and_count(flat, sums)[:-1]
        self._sums += found.reshape(self._sums.shape)

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name, ``rmse_FIELD`` and so on; {} where nothing counts.

        Of several fields ``rel_l2`` and ``r2`` without a name are the means over them.
        """
        weights, squared, true, *_ = self._sums
        if not weights.sum() > 0:
            return {}
        found = {"loss": float(squared.sum() / weights.sum())}
        explained: list[float] = []
        relative: list[float] = []
        start = 0
        for field in self._fields:
            place = slice(start, start + field.num_columns)
            start = place.stop
            weight = weights[place].sum()
            if not weight > 0:
                continue
            error = float((squared * self._squares)[place].sum())
            found[f"rmse_{field.name}"] = float(np.sqrt(error / weight))
            size = float(true[place].sum())
            # Of a field that is 0 everywhere nothing is relative.
            part = np.sqrt(error / size) if size > 0 else float(error > 0)
            found[f"rel_l2_{field.name}"] = float(part)
            relative.append(float(part))
            columns = range(place.start, place.stop)
            every = [_explained(*self._sums[[0, 1, 3, 4], column]) for column in columns]
            known = [each for each in every if each is not None]
            found[f"r2_{field.name}"] = float(np.mean(known)) if known else 0.0
            explained.append(found[f"r2_{field.name}"])
        found["rel_l2"] = float(np.mean(relative))
        found["r2"] = float(np.mean(explained))
        return found


def _explained(weight: float, squared: float, total: float, squares: float) -> float | None:
    """Return R² of a column; None where it does not vary, but a column that is hit."""
    if weight == 0:
        return None
    spread = squares - total**2 / weight
    # What rounding leaves of numbers that are all equal.
    if spread <= 1e-12 * squares:
        return 1.0 if squared <= 1e-12 * weight else None
    return 1 - squared / spread
