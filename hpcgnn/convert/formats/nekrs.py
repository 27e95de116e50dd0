"""Folders written by the plug-in `gnn` of nekRS-ML: points of spectral elements, one set per rank.

Fields are one file for each name, rank and time, or files of steps in a folder for each rank.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hpcgnn.console import report
from hpcgnn.convert.read.edges import edge_spans
from hpcgnn.convert.read.nekrs import NekPoints, read_numbers
from hpcgnn.convert.series import FieldArray, join_fields
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    GraphSource,
    Nodes,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import Array, FloatArray

_TOLERANCE = 1e-6
"""Largest distance between copies of one point, relative to the extent of the mesh."""


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the folder `path`; raises `InputError`."""
    del options
    return _Folder(path).read()


def _locate(file: Path, edges: Array, edge: int) -> str:
    return f"{file}, edge {edges[edge]}"


class _Folder:
    def __init__(self, path: Path) -> None:
        self._path, self._points = path, NekPoints.open(path)
        self._size, self._copies = self._points.size, self._points.copies
        self._dtype = self._points.dtype

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

    def _positions(self) -> tuple[FloatArray, tuple[float, ...]]:
        """Return each node's position, the least of its copies', and the periods between copies."""
        first = self._points.file("pos_node", 0)
        blocks = [
            read_numbers(self._points.file("pos_node", rank), self._dtype, 3 * count)
            for rank, count in enumerate(self._points.counts)
        ]
        points = np.concatenate(blocks).reshape(-1, 3).astype(np.float64)
        if (point := first_true(~np.all(np.isfinite(points), axis=1))) is not None:
            raise InputError(f"{first}: point {point} of all ranks has no finite position")
        apart = self._copies.spread(points)
        near = _TOLERANCE * max(float(np.ptp(points, axis=0).max()), np.finfo(float).tiny)
        periods = [float(axis.max(initial=0)) for axis in apart.T]
        box = tuple(period if period > near else 0.0 for period in periods)
        wrong = ((apart > near) & (np.abs(apart - periods) > near)).any(axis=1)
        if (node := first_true(wrong)) is not None:
            raise InputError(
                f"{first}: copies of the point with id {self._copies.original_id[node]} are "
                f"{apart[node]} apart, and the periods are {box}; only the periods of a box are "
                "read"
            )
        least = np.full((len(self._copies.first), 3), np.inf)
        np.minimum.at(least, self._copies.node, points)
        return least, box

    def _edges(self) -> EdgeStream:
        for rank in range(self._size):
            file = self._points.file("edge_index", rank)
            ends = read_numbers(file, np.dtype("<i4"))
            points, first = self._points.counts[rank], int(self._points.starts[rank])
            if len(ends) % 2 or (ends.size and not 0 <= ends.min() <= ends.max() < points):
                raise InputError(f"{file}: must hold pairs of points 0 to {points - 1}")
            pairs = ends.reshape(-1, 2)
            for span in edge_spans(len(pairs)):
                merged = self._copies.node[first + pairs[span].astype(np.int64)]
                # The plug-in also joins copies of one point.
                real = np.flatnonzero(merged[:, 0] != merged[:, 1])
                yield EdgeChunk(
                    merged[real, 0],
                    merged[real, 1],
                    partial(_locate, file, span.start + real),
                )

    def _fields(self) -> list[FieldArray]:
        """Return the fields, and set `self._times`, which all of them share."""
        files = self._points.field_files()
        times: dict[str, list[float]] = {}
        for (name, rank), by_time in files.items():
            if sorted(by_time) != times.setdefault(name, sorted(by_time)):
                raise InputError(f"{self._path}: {name} has other times on rank {rank} than rank 0")
        names = sorted(times)
        for name in names:
            if times[name] != times[names[0]]:
                raise InputError(
                    f"{self._path}: {names[0]} has {len(times[names[0]])} times, and {name} has "
                    f"{len(times[name])} or others; give a folder in which all are the same"
                )
            if missing := [rank for rank in range(self._size) if (name, rank) not in files]:
                raise InputError(f"{self._path}: the field {name} of rank {missing[0]} is missing")
        if not names:
            return []
        self._times = np.array(times[names[0]])
        return [self._field(name, [files[name, r] for r in range(self._size)]) for name in names]

    def _field(self, name: str, files: Sequence[Mapping[float, Path]]) -> FieldArray:
        first = files[0][float(self._times[0])]
        columns = first.stat().st_size // max(1, self._points.counts[0] * self._dtype.itemsize)
        for rank, by_time in enumerate(files):
            for file in by_time.values():
                size, points = file.stat().st_size, self._points.counts[rank]
                expected = columns * points * self._dtype.itemsize
                if size != expected or not columns:
                    raise InputError(
                        f"{file}: has {size} bytes, and {expected} are expected: {columns} numbers "
                        f"for each of {points} points; copy the file again"
                    )
        cache: dict[int, Array] = {}

        def read_step(step: int, start: int, stop: int) -> Array:
            if step not in cache:
                cache.clear()
                time = float(self._times[step])
                cache[step] = self._step(name, [by_time[time] for by_time in files], columns)
            return cache[step][start:stop]

        shape = (len(self._times), len(self._copies.first), columns)
        return FieldArray(
            name=name, shape=shape, dtype=self._dtype, read=read_step, where=str(first)
        )

    def _step(self, name: str, files: Sequence[Path], columns: int) -> Array:
        blocks = [
            read_numbers(file, self._dtype, columns * self._points.counts[rank])
            for rank, file in enumerate(files)
        ]
        values = np.concatenate(blocks).reshape(-1, columns)
        means, most = self._copies.mean(values)
        if most > _TOLERANCE * max(1.0, float(np.nan_to_num(np.abs(values)).max())):
            report(
                f"{files[0].name}: copies of a point differ by up to {most:g}; {name} is their mean"
            )
        return means
