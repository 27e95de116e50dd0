"""Measure the scales of a series over its training steps."""

import numpy as np

from hpcgnn.comm import ProcessGrid, agree
from hpcgnn.errors import InputError
from hpcgnn.spmd import collective
from hpcgnn.train.fields.dynamics import RowScales, Scales
from hpcgnn.train.fields.frames import RowColumns
from hpcgnn.train.fields.samples import Series
from hpcgnn.train.fields.scales import Moments
from hpcgnn.typing import FloatArray, Mask


@collective
@np.errstate(over="ignore", invalid="ignore")
def measure(grid: ProcessGrid, series: Series, predict: str) -> Scales:
    """Return the scales of frames and of model outputs over ranks, rows and training steps.

    Each step is read once. Frames are measured on all rows, outputs on those that are not fixed.

    Raises `CollectiveInputError` if a step cannot be read, if there is no value to predict, or if
    values are too large.
    """
    sorts = series.columns.rows.map(
        lambda columns, weights, fixed: _Measured(
            columns, weights.numpy(), ~fixed.numpy(), predict
        ),
        series.weights,
        series.fixed,
    )
    with agree(grid.world):
        for span in series.windows.spans["train"]:
            for measured in sorts:
                measured.before = None
            for step in span:
                sorts.map(_Measured.add, series.reader.read(step))
    counted = grid.layer.allreduce(sum(rows.outputs.weight for rows in sorts))
    with agree(grid.world):
        if not counted > 0:
            names = ", ".join(field.name for field in series.columns.targets)
            raise InputError(
                f"fields: {names}: no value to train on: at all training steps each is missing, "
                "given (fields.fixed, fields.edge_fixed), or of a node of weight 0"
            )
    scales = sorts.map(lambda rows: RowScales(rows.frames.over(grid), rows.outputs.over(grid)))
    with agree(grid.world):
        for columns, rows in zip(series.columns.rows, scales, strict=True):
            for name, own in columns.slices.items():
                if not np.isfinite(rows.frames.deviation[own]).all():
                    raise InputError(
                        f"fields: {name}: values are too large to have a deviation in float64; "
                        "replace those that mark missing ones by NaN, or choose another unit"
                    )
    return scales


class _Measured:
    """The moments of the frames of nodes or edges, and of the model's outputs for them."""

    before: FloatArray | None = None

    def __init__(
        self, columns: RowColumns, weights: FloatArray, counts: Mask, predict: str
    ) -> None:
        self.frames, self.outputs = Moments(columns.width), Moments(columns.num_predicted)
        self._weights, self._counted = weights, weights * counts
        self._width, self._adds = columns.num_predicted, predict == "difference"

    def add(self, frame: FloatArray) -> None:
        """Add the frame of the next step."""
        self.frames.add(frame, self._weights)
        targets = frame[:, : self._width].astype(np.float64)
        if not self._adds:
            self.outputs.add(targets, self._counted)
        elif self.before is not None:
            self.outputs.add(targets - self.before, self._counted)
        self.before = targets
