"""The errors of predicted fields, over nodes, samples and ranks.

With weights w, errors e in units of the deviations s of the model's outputs, the truth y in
physical units, and the scaled truth d of the outputs (a difference if those are predicted):

    loss = Σ w e² / Σ w                 rmse = sqrt(Σ w (s e)² / Σ w)
    rel_l2 = sqrt(Σ w (s e)² / Σ w y²)  r2 = 1 - Σ w e² / Σ w (d - mean d)²

R² is computed by column, then averaged over the columns that vary; 0 is as good as predicting the
mean. With node and edge fields, the loss is the mean of both, weighted by their numbers of columns.
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
    """A predicted step compared with the truth, (rows, W) float64 each; see `Predicted`.

    `truth` holds the targets with missing values filled, `scaled` the true model outputs.
    """

    errors: Tensor
    weights: Tensor
    truth: Tensor
    scaled: Tensor


class FieldErrors:
    """Error sums over the predictions so far; `deviations` (W,) are those of model outputs."""

    def __init__(self, columns: Columns, deviations: ByRows[FloatArray]) -> None:
        widths = [rows.num_predicted for rows in columns.rows]
        self._fields, self._squares = columns.targets, np.square(np.concatenate(deviations))
        self._sums = np.zeros((_SUMS, sum(widths)))
        self._of_rows = np.split(np.arange(sum(widths)), [widths[0]])

    @collective
    def add(self, judged: ByRows[Judged], sums: RankSums) -> None:
        """Add one prediction of this rank's rows; `sums` adds over ranks."""
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
        """Return the metrics by name, ``rmse_FIELD`` and so on; {} if all weights are 0.

        ``rel_l2`` and ``r2`` without a field name are the means over the fields.
        """
        weights, squared, true, *_ = self._sums
        if not weights.sum() > 0:
            return {}
        values = {"loss": 0.0}
        for columns in self._of_rows:
            if weights[columns].sum() > 0:
                share = len(columns) / len(weights)
                values["loss"] += share * float(squared[columns].sum() / weights[columns].sum())
        explained: list[float] = []
        relative: list[float] = []
        start = 0
        for field in self._fields:
            columns_of_field = slice(start, start + field.num_columns)
            start = columns_of_field.stop
            weight = weights[columns_of_field].sum()
            if not weight > 0:
                continue
            error = float((squared * self._squares)[columns_of_field].sum())
            values[f"rmse_{field.name}"] = float(np.sqrt(error / weight))
            size = float(true[columns_of_field].sum())
            # No error is relative to a field that is 0 everywhere.
            relative_error = np.sqrt(error / size) if size > 0 else float(error > 0)
            values[f"rel_l2_{field.name}"] = float(relative_error)
            relative.append(float(relative_error))
            numbers = range(columns_of_field.start, columns_of_field.stop)
            r2s = [_explained(*self._sums[[0, 1, 3, 4], number]) for number in numbers]
            varying = [r2 for r2 in r2s if r2 is not None]
            values[f"r2_{field.name}"] = float(np.mean(varying)) if varying else 0.0
            explained.append(values[f"r2_{field.name}"])
        values["rel_l2"] = float(np.mean(relative))
        values["r2"] = float(np.mean(explained))
        return values


def _explained(weight: float, squared: float, total: float, squares: float) -> float | None:
    """Return R² of a column. A constant one has 1 if predicted exactly, else None."""
    if weight == 0:
        return None
    spread = squares - total**2 / weight
    # A constant column: only rounding errors are left.
    if spread <= 1e-12 * squares:
        return 1.0 if squared <= 1e-12 * weight else None
    return 1 - squared / spread
