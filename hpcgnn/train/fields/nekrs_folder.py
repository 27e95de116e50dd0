"""Write rollouts as one file per nekRS rank, in the order of its points.

Copies of one point get the same value. Files are named as in the folder that was converted:
``fld_NAME_time_T_rank_R_size_P.bin``, or ``data_rank_R_size_P/NAME_step_K.bin``.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hpcgnn.convert.read.nekrs import NekPoints
from hpcgnn.errors import InputError
from hpcgnn.storage import FieldInfo, write_whole
from hpcgnn.storage.atomic import write_fault
from hpcgnn.typing import Array, FloatArray


class NekFolder:
    """A folder of rollout steps, on the points of the nekRS folder that was converted.

    Each file appears whole or not at all; one step is in memory at a time. `path` is the new
    folder, `like` the one that was converted; `fields` are in the order of the columns; `first` is
    the number of the first step in the store, and `times` (K,) are those of all steps.
    """

    def __init__(
        self,
        path: Path,
        like: Path,
        fields: Sequence[FieldInfo],
        first: int,
        times: FloatArray,
    ) -> None:
        self._path, self._points, self._fields = path, NekPoints.open(like), fields
        self._first, self._times = first, times

    def write_nodes(self, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Compare original ids with those of the points; raises `InputError` if they differ."""
        ids = np.concatenate([piece[0] for piece in pieces])
        if not np.array_equal(ids, self._points.copies.original_id):
            raise InputError(
                f"--like {self._points.path}: its points are not the nodes of the store; give the "
                "folder that the store was converted from"
            )

    def write_step(self, step: int, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Write the columns (m, W) of a step, counted from 0; rows are ordered by original id."""
        rows = np.concatenate([piece[0] for piece in pieces])
        points, column, time = self._points, 0, float(self._times[step])
        ranks = np.split(points.copies.node, points.starts[1:-1])
        for field in self._fields:
            values = rows[:, column : column + field.num_columns].astype(points.dtype)
            column += field.num_columns
            for rank, nodes in enumerate(ranks):
                number = self._first + step
                file = points.field_file(self._path, field.name, rank, number, time)
                try:
                    file.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise write_fault(file.parent, error) from error
                write_whole(file, values[nodes].tobytes())
