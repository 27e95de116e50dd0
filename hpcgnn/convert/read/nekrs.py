"""The points in folders that nekRS-ML writes: which points are one node, and the file names.

Points of neighbouring elements that coincide, also across a periodic boundary, share a positive id.
Points inside an element have the id 0 (gslib's mark for points without copies); each is a node.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.convert.read.files import read_error
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true, require_file
from hpcgnn.typing import Array, FloatArray, GlobalIndices, Offsets

_RANK = r"_rank_(\d+)_size_(\d+)"
_SNAPSHOT = re.compile(rf"fld_(?P<name>.+)_time_(?P<time>.+){_RANK}\.bin")
_STEP = re.compile(r"(?P<name>.+)_step_(?P<time>\d+)\.bin")


@dataclass(frozen=True, eq=False)
class Copies:
    """The node (points,) of each point, and the first point and number of points (n,) of nodes."""

    node: GlobalIndices
    first: GlobalIndices
    counts: Array
    original_id: GlobalIndices

    @classmethod
    def of(cls, ids: GlobalIndices) -> "Copies":
        """Group points by their ids, which are at least 0."""
        # Points without copies come after all others, in their order.
        alone = ids == 0
        keys = ids.copy()
        keys[alone] = ids.max(initial=0) + 1 + np.arange(np.count_nonzero(alone))
        original, first, node, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        return cls(node, first, counts, original)

    def spread(self, values: Array) -> FloatArray:
        """Return the range (n, F) of the values of each node's copies."""
        shape = (len(self.first), values.shape[1])
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        np.minimum.at(low, self.node, values)
        np.maximum.at(high, self.node, values)
        return high - low

    def mean(self, values: Array) -> tuple[Array, float]:
        """Return the means (n, F) over copies, and the largest difference from the first copy.

        If all copies are equal, the means are bitwise equal to them.
        """
        firsts = values[self.first]
        with np.errstate(invalid="ignore"):
            difference = np.abs(values - firsts[self.node])
        difference[np.isnan(values) & np.isnan(firsts[self.node])] = 0
        if not difference.any():
            return firsts, 0.0
        most = float(np.nan_to_num(difference).max())
        columns = [np.bincount(self.node, column) / self.counts for column in values.T]
        return np.stack(columns, axis=1).astype(values.dtype), most


@dataclass(frozen=True, eq=False)
class NekPoints:
    """The points in a folder written by `size` ranks.

    `starts` (size + 1,) int64 are the numbers of points before each rank; `copies` maps points to
    nodes, which are ordered by original id.
    """

    path: Path
    size: int
    starts: Offsets
    copies: Copies

    @classmethod
    def open(cls, path: Path) -> "NekPoints":
        """Read the ids of all points; raises `InputError`."""
        try:
            names = [file.name for file in path.iterdir()]
        except OSError as error:
            raise read_error(path, error) from error
        matches = [re.fullmatch(rf"pos_node{_RANK}\.bin", name) for name in names]
        sizes = {int(match[2]) for match in matches if match}
        if len(sizes) != 1:
            raise InputError(
                f"{path}: has files pos_node_rank_R_size_P.bin for P = {sorted(sizes)}; give a "
                "folder that one run has written"
            )
        (size,) = sizes
        ids = [_ids(path / f"global_ids_rank_{rank}_size_{size}.bin") for rank in range(size)]
        starts = np.concatenate([[0], np.cumsum([len(rows) for rows in ids])]).astype(np.int64)
        return cls(path, size, starts, Copies.of(np.concatenate(ids)))

    def file(self, name: str, rank: int) -> Path:
        """Return the file with rank `rank`'s part of `name`."""
        return self.path / f"{name}_rank_{rank}_size_{self.size}.bin"

    @cached_property
    def step_numbers(self) -> list[int]:
        """The numbers K of ``NAME_step_K.bin``, sorted; empty if files are named by times."""
        names = [file.name for file in self.path.glob("data_rank_*_size_*/*_step_*.bin")]
        return sorted({int(match["time"]) for name in names if (match := _STEP.fullmatch(name))})

    def field_file(self, folder: Path, name: str, rank: int, step: int, time: float) -> Path:
        """Return the file in another folder for a rank's values of a field at a step.

        Numbers beyond the last step continue with the distance between the last two.
        """
        end, known = f"rank_{rank}_size_{self.size}", self.step_numbers
        if not known:
            return folder / f"fld_{name}_time_{time!r}_{end}.bin"
        beyond = max(step - len(known) + 1, 0)
        apart = known[-1] - known[-2] if len(known) > 1 else 1
        number = known[min(step, len(known) - 1)] + beyond * apart
        return folder / f"data_{end}" / f"{name}_step_{number}.bin"

    @property
    def counts(self) -> list[int]:
        """The number of points of each rank."""
        counts: list[int] = np.diff(self.starts).tolist()
        return counts

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of positions and fields."""
        first = self.file("pos_node", 0)
        narrow = require_file(first).stat().st_size == 12 * self.counts[0]
        return np.dtype(np.float32 if narrow else np.float64)

    def field_files(self) -> dict[tuple[str, int], dict[float, Path]]:
        """Return the files of each field name and rank by time; raises `InputError`."""
        files: dict[tuple[str, int], dict[float, Path]] = {}
        for rank in range(self.size):
            of_rank = self.path / f"data_rank_{rank}_size_{self.size}"
            for file, pattern in (
                *((file, _SNAPSHOT) for file in self.path.glob(f"fld_*_rank_{rank}_size_*.bin")),
                *((file, _STEP) for file in of_rank.glob("*_step_*.bin")),
            ):
                match = pattern.fullmatch(file.name)
                try:
                    time = float(match["time"]) if match else None
                except ValueError:
                    time = None
                if match is None or time is None:
                    raise InputError(f"{file}: its name has no field and time; rename it")
                files.setdefault((match["name"], rank), {})[time] = file
        return files


def _ids(file: Path) -> GlobalIndices:
    ids = read_numbers(file, np.dtype("<i8"))
    if (point := first_true(ids < 0)) is not None:
        raise InputError(f"{file}: point {point} has the id {ids[point]}; ids are at least 0")
    return ids


def read_numbers(file: Path, dtype: np.dtype[Any], count: int | None = None) -> Array:
    """Return the numbers in a file; raises `InputError` unless there are `count`."""
    require_file(file)
    try:
        numbers = np.fromfile(file, dtype)
        size = file.stat().st_size
    except OSError as error:
        raise read_error(file, error) from error
    expected = size // dtype.itemsize if count is None else count
    if size != expected * dtype.itemsize:
        raise InputError(
            f"{file}: has {size} bytes, and {expected} numbers of {dtype.itemsize} bytes are "
            "expected; copy the file again"
        )
    return numbers
