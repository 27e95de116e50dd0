"""How far predicted fields are from the truth, over nodes, samples and ranks.

With weights w, errors e in deviations s of what the model gives, truth y in physical units, and d
the truth of what the model gives, scaled (differences where these are predicted):

    loss = Σ w e² / Σ w                 rmse = sqrt(Σ w (s e)² / Σ w)
    rel_l2 = sqrt(Σ w (s e)² / Σ w y²)  r2 = 1 - Σ w e² / Σ w (d - mean d)²

R² is of a column, and then the mean over those that vary; 0 is as good as the mean. With fields of
nodes and of edges the loss is the mean of both, by the columns that each has.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpcgnn.autograd import arithmetic
from hpcgnn.operator import RankSums
from hpcgnn.spmd import collective
from hpcgnn.train.fields.frames import ByRows, Columns
from hpcgnn.typing import FloatArray

_SUMS = 5


@dataclass(frozen=True, eq=False)
class Judged:
    """What is compared of a predicted step, (rows, W) float64 each; see `Predicted`.

    `truth` are the targets without missing values, `scaled` the truth of what the model gives.
    """

    errors: Tensor
    weights: Tensor
    truth: Tensor
    scaled: Tensor


class FieldErrors:
    """Sums over what was predicted so far; `deviations` (W,) are of what the model gives."""

    def __init__(self, columns: Columns, deviations: ByRows[FloatArray]) -> None:
        widths = [rows.num_predicted for rows in columns.rows]
        self._fields, self._squares = columns.targets, np.square(np.concatenate(deviations))
        self._sums = np.zeros((_SUMS, sum(widths)))
        self._of_rows = np.split(np.arange(sum(widths)), [widths[0]])

    @collective
    def add(self, judged: ByRows[Judged], sums: RankSums) -> None:
        """Take one prediction of this rank's rows; `sums` adds over ranks."""
        for columns, rows in zip(self._of_rows, judged, strict=True):
            if len(columns):
                self._sums[:, columns] += self._summed(rows, sums)

    @collective
    def _summed(self, judged: Judged, sums: RankSums) -> FloatArray:
        weights, errors = judged.weights, judged.errors
        truth, scaled = judged.truth, judged.scaled
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
        flat = columns.reshape(len(columns), _SUMS * weights.shape[1])
        return arithmetic().sums_and_count(flat, sums)[:-1].reshape(_SUMS, weights.shape[1])

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name, ``rmse_FIELD`` and so on; {} where nothing counts.

        Of several fields ``rel_l2`` and ``r2`` without a name are the means over them.
        """
        weights, squared, true, *_ = self._sums
        if not weights.sum() > 0:
            return {}
        found = {"loss": 0.0}
        for columns in self._of_rows:
            if weights[columns].sum() > 0:
                share = len(columns) / len(weights)
                found["loss"] += share * float(squared[columns].sum() / weights[columns].sum())
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
            numbers = range(place.start, place.stop)
            every = [_explained(*self._sums[[0, 1, 3, 4], number]) for number in numbers]
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
