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
from hpcgnn.convert.series import FieldArray, FieldSeries, join_fields
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    GraphSource,
    NodeArrays,
)
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import Array, FloatArray

_TOLERANCE = 1e-6
"""Largest distance between copies of one point, relative to the extent of the mesh."""


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the folder `path`; raises `InputError`."""
    del options
    points = NekPoints.open(path)
    positions, box = _positions(points)
    nodes = NodeArrays(
        original_id=points.copies.original_id,
        positions=positions,
        box=box,
        series=_series(points),
    )
    return GraphSource(
        path=path,
        edges=partial(_edges, points),
        inputs=tuple(sorted(path.rglob("*.bin"))),
        num_nodes=len(points.copies.first),
        counted=True,
        undirected=True,
        nodes=nodes,
    )


def _positions(points: NekPoints) -> tuple[FloatArray, tuple[float, ...]]:
    """Return each node's position, the least of its copies', and the periods between copies."""
    first, copies = points.file("pos_node", 0), points.copies
    blocks = [
        read_numbers(points.file("pos_node", rank), points.dtype, 3 * count)
        for rank, count in enumerate(points.counts)
    ]
    positions = np.concatenate(blocks).reshape(-1, 3).astype(np.float64)
    if (point := first_true(~np.all(np.isfinite(positions), axis=1))) is not None:
        raise InputError(f"{first}: point {point} of all ranks has no finite position")
    apart = copies.spread(positions)
    near = _TOLERANCE * max(float(np.ptp(positions, axis=0).max()), np.finfo(float).tiny)
    periods = [float(axis.max(initial=0)) for axis in apart.T]
    box = tuple(period if period > near else 0.0 for period in periods)
    wrong = ((apart > near) & (np.abs(apart - periods) > near)).any(axis=1)
    if (node := first_true(wrong)) is not None:
        raise InputError(
            f"{first}: copies of the point with id {copies.original_id[node]} are "
            f"{apart[node]} apart, and the periods are {box}; only the periods of a box are "
            "read"
        )
    least = np.full((len(copies.first), 3), np.inf)
    np.minimum.at(least, copies.node, positions)
    return least, box


def _edges(points: NekPoints) -> EdgeStream:
    for rank in range(points.size):
        file = points.file("edge_index", rank)
        ends = read_numbers(file, np.dtype("<i4"))
        count, first = points.counts[rank], int(points.starts[rank])
        if len(ends) % 2 or (ends.size and not 0 <= ends.min() <= ends.max() < count):
            raise InputError(f"{file}: must hold pairs of points 0 to {count - 1}")
        pairs = ends.reshape(-1, 2)
        for span in edge_spans(len(pairs)):
            merged = points.copies.node[first + pairs[span].astype(np.int64)]
            # The plug-in also joins copies of one point.
            real = np.flatnonzero(merged[:, 0] != merged[:, 1])
            yield EdgeChunk(
                merged[real, 0],
                merged[real, 1],
                partial(_locate, file, span.start + real),
            )


def _locate(file: Path, edges: Array, edge: int) -> str:
    return f"{file}, edge {edges[edge]}"


def _series(points: NekPoints) -> FieldSeries | None:
    files = points.field_files()
    times: dict[str, list[float]] = {}
    for (name, rank), by_time in files.items():
        if sorted(by_time) != times.setdefault(name, sorted(by_time)):
            raise InputError(f"{points.path}: {name} has other times on rank {rank} than rank 0")
    names = sorted(times)
    for name in names:
        if times[name] != times[names[0]]:
            raise InputError(
                f"{points.path}: {names[0]} has {len(times[names[0]])} times, and {name} has "
                f"{len(times[name])} or others; give a folder in which all are the same"
            )
        if missing := [rank for rank in range(points.size) if (name, rank) not in files]:
            raise InputError(f"{points.path}: the field {name} of rank {missing[0]} is missing")
    if not names:
        return None
    shared_times = times[names[0]]
    fields = [
        _field(points, name, shared_times, [files[name, rank] for rank in range(points.size)])
        for name in names
    ]
    return join_fields(fields, np.array(shared_times), where=str(points.path))


def _field(
    points: NekPoints, name: str, times: Sequence[float], files: Sequence[Mapping[float, Path]]
) -> FieldArray:
    first, dtype = files[0][times[0]], points.dtype
    columns = first.stat().st_size // max(1, points.counts[0] * dtype.itemsize)
    for rank, by_time in enumerate(files):
        for file in by_time.values():
            size, count = file.stat().st_size, points.counts[rank]
            expected = columns * count * dtype.itemsize
            if size != expected or not columns:
                raise InputError(
                    f"{file}: has {size} bytes, and {expected} are expected: {columns} numbers "
                    f"for each of {count} points; copy the file again"
                )
    cache: dict[int, Array] = {}

    def read_step(step: int, start: int, stop: int) -> Array:
        if step not in cache:
            cache.clear()
            of_step = [by_time[times[step]] for by_time in files]
            cache[step] = _step(points, name, of_step, columns)
        return cache[step][start:stop]

    shape = (len(times), len(points.copies.first), columns)
    return FieldArray(name=name, shape=shape, dtype=dtype, read=read_step, where=str(first))


def _step(points: NekPoints, name: str, files: Sequence[Path], columns: int) -> Array:
    blocks = [
        read_numbers(file, points.dtype, columns * points.counts[rank])
        for rank, file in enumerate(files)
    ]
    values = np.concatenate(blocks).reshape(-1, columns)
    means, most = points.copies.mean(values)
    if most > _TOLERANCE * max(1.0, float(np.nan_to_num(np.abs(values)).max())):
        report(f"{files[0].name}: copies of a point differ by up to {most:g}; {name} is their mean")
    return means
