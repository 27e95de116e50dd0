"""Folders that the plug-in `gnn` of nekRS-ML writes: points of spectral elements, by its ranks.

Points of neighbouring elements that coincide, or that a period makes one, share a positive id, and
become one node; points with the id 0 (gslib's: nobody has a copy) are nodes of their own. Fields
are one file for a time, a rank and a name, or files of steps in a folder of each rank.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.console import report
from hpcgnn.convert.read.files import read_error
from hpcgnn.convert.series import FieldArray, join_fields
from hpcgnn.convert.source import (
    CHUNK_EDGES,
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    GraphSource,
    Nodes,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true, require_file
from hpcgnn.typing import Array, FloatArray, GlobalIndices

_RANK = r"_rank_(\d+)_size_(\d+)"
_SNAPSHOT = re.compile(rf"fld_(?P<name>.+)_time_(?P<time>.+){_RANK}\.bin")
_STEP = re.compile(r"(?P<name>.+)_step_(?P<time>\d+)\.bin")
_SAME = 1e-6
"""How far apart copies of one point may be, in extents of the mesh."""


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the folder `path`; raises `InputError`."""
    del options
    return _Folder(path).read()


@dataclass(frozen=True, eq=False)
class _Copies:
    """Which node each point is: `node` (points,); `first` and `counts` (n,) are of the nodes."""

    node: GlobalIndices
    first: GlobalIndices
    counts: Array
    original_id: GlobalIndices

    @classmethod
    def of(cls, ids: GlobalIndices) -> "_Copies":
        # Points without copies come behind all others, in their order.
        alone = ids == 0
        keys = ids.copy()
        keys[alone] = ids.max(initial=0) + 1 + np.arange(np.count_nonzero(alone))
        original, first, node, counts = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
        return cls(node, first, counts, original)

    def spread(self, values: Array) -> FloatArray:
        """Return (n, F) how far apart the copies of each node are."""
        shape = (len(self.first), values.shape[1])
        low, high = np.full(shape, np.inf), np.full(shape, -np.inf)
        np.minimum.at(low, self.node, values)
        np.maximum.at(high, self.node, values)
        return high - low

    def mean(self, values: Array) -> tuple[Array, float]:
        """Return the means (n, F) of copies, and the most by which one differs from the first.

        Where all are equal the mean is what they are, to the bit.
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


def _locate(file: Path, places: Array, edge: int) -> str:
    return f"{file}, edge {places[edge]}"


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path = path
        found = [re.fullmatch(rf"pos_node{_RANK}\.bin", file.name) for file in path.iterdir()]
        sizes = {int(match[2]) for match in found if match}
        if len(sizes) != 1:
            raise InputError(
                f"{path}: has files pos_node_rank_R_size_P.bin for P = {sorted(sizes)}; give a "
                "folder that one run has written"
            )
        (self._size,) = sizes
        ids = [self._ids(rank) for rank in range(self._size)]
        self._starts = np.concatenate([[0], np.cumsum([len(each) for each in ids])])
        self._copies = _Copies.of(np.concatenate(ids))
        self._dtype: np.dtype[Any] = np.dtype(np.float64)

    def read(self) -> GraphSource:
        """Return the graph."""
        positions, box = self._positions()
        num_nodes = len(self._copies.first)
        series = self._fields()
        nodes = Nodes(
            original_id=self._copies.original_id,
            positions=positions,
            box=box,
            series=None if not series else join_fields(series, self._times, where=str(self._path)),
        )
        return GraphSource(
            path=self._path,
            edges=self._edges,
            inputs=tuple(sorted(self._path.rglob("*.bin"))),
            num_nodes=num_nodes,
            counted=True,
            undirected=True,
            nodes=nodes,
        )

    def _file(self, name: str, rank: int) -> Path:
        return self._path / f"{name}_rank_{rank}_size_{self._size}.bin"

    def _ids(self, rank: int) -> GlobalIndices:
        file = self._file("global_ids", rank)
        ids = self._numbers(file, np.dtype("<i8"))
        if (point := first_true(ids < 0)) is not None:
            raise InputError(f"{file}: point {point} has the id {ids[point]}; ids are at least 0")
        return ids

    def _numbers(self, file: Path, dtype: np.dtype[Any], count: int | None = None) -> Array:
        """Return the numbers of a file, which are `count`."""
        require_file(file)
        try:
            numbers = np.fromfile(file, dtype)
            size = file.stat().st_size
        except OSError as error:
            raise read_error(file, error) from error
        due = size // dtype.itemsize if count is None else count
        if size != due * dtype.itemsize:
            raise InputError(
                f"{file}: has {size} bytes, and {due} numbers of {dtype.itemsize} are due; copy "
                "the file again"
            )
        return numbers

    def _points(self, rank: int) -> int:
        return int(self._starts[rank + 1] - self._starts[rank])

    def _positions(self) -> tuple[FloatArray, tuple[float, ...]]:
        """Return the least copy of each node's position, and the periods that copies tell."""
        first = self._file("pos_node", 0)
        if require_file(first).stat().st_size == 12 * self._points(0):
            self._dtype = np.dtype(np.float32)
        blocks = [
            self._numbers(self._file("pos_node", rank), self._dtype, 3 * self._points(rank))
            for rank in range(self._size)
        ]
        points = np.concatenate(blocks).reshape(-1, 3).astype(np.float64)
        if (point := first_true(~np.all(np.isfinite(points), axis=1))) is not None:
            raise InputError(f"{first}: and other ranks': point {point} has no finite position")
        apart = self._copies.spread(points)
        near = _SAME * max(float(np.ptp(points, axis=0).max()), np.finfo(float).tiny)
        periods = [float(axis.max(initial=0)) for axis in apart.T]
        box = tuple(period if period > near else 0.0 for period in periods)
        wrong = ((apart > near) & (np.abs(apart - periods) > near)).any(axis=1)
        if (node := first_true(wrong)) is not None:
            raise InputError(
                f"{first}: copies of the point with id {self._copies.original_id[node]} are "
                f"{apart[node]} apart, and the periods are {box}; other periods than those of a "
                "box are not read"
            )
        least = np.full((len(self._copies.first), 3), np.inf)
        np.minimum.at(least, self._copies.node, points)
        return least, box

    def _edges(self) -> EdgeStream:
        for rank in range(self._size):
            file = self._file("edge_index", rank)
            ends = self._numbers(file, np.dtype("<i4"))
            points, first = self._points(rank), int(self._starts[rank])
            if len(ends) % 2 or (ends.size and not 0 <= ends.min() <= ends.max() < points):
                raise InputError(f"{file}: must hold pairs of points 0 to {points - 1}")
            pairs = ends.reshape(-1, 2)
            for low in range(0, len(pairs), CHUNK_EDGES):
                merged = self._copies.node[first + pairs[low : low + CHUNK_EDGES].astype(np.int64)]
                # Copies of one point are joined, too.
                real = np.flatnonzero(merged[:, 0] != merged[:, 1])
                yield EdgeChunk(
                    merged[real, 0],
                    merged[real, 1],
                    partial(_locate, file, low + real),
                )

    def _fields(self) -> list[FieldArray]:
        """Return the fields, and set the times that all of them have."""
        files = self._field_files()
        times: dict[str, list[float]] = {}
        for (name, rank), by_time in files.items():
            if sorted(by_time) != times.setdefault(name, sorted(by_time)):
                raise InputError(f"{self._path}: rank {rank} has other times of {name} than rank 0")
        names = sorted(times)
        for name in names:
            if times[name] != times[names[0]]:
                raise InputError(
                    f"{self._path}: {names[0]} is there at {len(times[names[0]])} times, {name} at "
                    f"{len(times[name])}, or at others; give a folder with the same"
                )
            if missing := [rank for rank in range(self._size) if (name, rank) not in files]:
                raise InputError(f"{self._path}: has no field {name} of rank {missing[0]}")
        if not names:
            return []
        self._times = np.array(times[names[0]])
        return [self._field(name, [files[name, r] for r in range(self._size)]) for name in names]

    def _field_files(self) -> dict[tuple[str, int], dict[float, Path]]:
        """Return the files of each name and rank by time."""
        files: dict[tuple[str, int], dict[float, Path]] = {}
        for rank in range(self._size):
            of_rank = self._path / f"data_rank_{rank}_size_{self._size}"
            for file, pattern in (
                *((each, _SNAPSHOT) for each in self._path.glob(f"fld_*_rank_{rank}_size_*.bin")),
                *((each, _STEP) for each in of_rank.glob("*_step_*.bin")),
            ):
                match = pattern.fullmatch(file.name)
                try:
                    time = float(match["time"]) if match else None
                except ValueError:
                    time = None
                if match is None or time is None:
                    raise InputError(f"{file}: its name tells no field and time; rename it")
                files.setdefault((match["name"], rank), {})[time] = file
        return files

    def _field(self, name: str, files: Sequence[Mapping[float, Path]]) -> FieldArray:
        first = files[0][float(self._times[0])]
        columns = first.stat().st_size // max(1, self._points(0) * self._dtype.itemsize)
        for rank, by_time in enumerate(files):
            for file in by_time.values():
                size, due = file.stat().st_size, columns * self._points(rank) * self._dtype.itemsize
                if size != due or not columns:
                    raise InputError(
                        f"{file}: has {size} bytes, and {due} are due: {columns} numbers of each "
                        f"of {self._points(rank)} points; copy the file again"
                    )
        held: dict[int, Array] = {}

        def read_step(step: int, start: int, stop: int) -> Array:
            if step not in held:
                held.clear()
                held[step] = self._step(
                    name, [by[float(self._times[step])] for by in files], columns
                )
            return held[step][start:stop]

        shape = (len(self._times), len(self._copies.first), columns)
        return FieldArray(
            name=name, shape=shape, dtype=self._dtype, read=read_step, where=str(first)
        )

    def _step(self, name: str, files: Sequence[Path], columns: int) -> Array:
        blocks = [
            self._numbers(file, self._dtype, columns * self._points(rank))
            for rank, file in enumerate(files)
        ]
        values = np.concatenate(blocks).reshape(-1, columns)
        means, most = self._copies.mean(values)
        if most > _SAME * max(1.0, float(np.nan_to_num(np.abs(values)).max())):
            report(
                f"{files[0].name}: copies of a point differ by up to {most:g}; {name} is their mean"
            )
        return means
