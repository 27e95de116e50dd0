"""Meshes that meshio reads: cell edges become edges of the graph, point data becomes fields.

Membership in groups (physical groups, sets of cells or points, integer tags of points) becomes node
features: a column of 0 and 1 for each group, since a point may be in several.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcgnn.console import report
from hpcgnn.convert.read.arrays import matrix_features
from hpcgnn.convert.read.edges import edge_spans
from hpcgnn.convert.read.meshes import MeshSteps, files_beside, read_meshes
from hpcgnn.convert.series import FieldArray, FieldSeries, join_fields
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    GraphSource,
    NodeArrays,
)
from hpcgnn.errors import InputError
from hpcgnn.typing import Array

_RING = ((0, 1), (1, 2), (2, 0))
_SQUARE = ((0, 1), (1, 2), (2, 3), (3, 0))
_EDGES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "vertex": (),
    "line": ((0, 1),),
    "triangle": _RING,
    "quad": _SQUARE,
    "tetra": (*_RING, (0, 3), (1, 3), (2, 3)),
    "pyramid": (*_SQUARE, (0, 4), (1, 4), (2, 4), (3, 4)),
    "wedge": (*_RING, (3, 4), (4, 5), (5, 3), (0, 3), (1, 4), (2, 5)),
    "hexahedron": (
        *_SQUARE,
        *((a + 4, b + 4) for a, b in _SQUARE),
        *((corner, corner + 4) for corner in range(4)),
    ),
}
"""Edges of each cell type between its corners, which also come first in higher-order cells."""

_OWN = "gmsh:"
_MOST_TAGS = 64


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the mesh `path`, or a time series that begins with it; raises `InputError`."""
    more = [Path(path) for path in options.take("more_inputs")]
    steps = read_meshes(path, more)
    mesh = steps.mesh
    count = len(mesh.points)
    cells = [(block.type, _edges_of(path, block), np.asarray(block.data)) for block in mesh.cells]
    used = np.zeros(count, np.bool_)
    for cell_type, pattern, corners in cells:
        if corners.size and not 0 <= corners.min() <= corners.max() < count:
            raise InputError(f"{path}: a {cell_type} has a point outside 0..{count - 1}")
        used[corners[:, np.unique(np.array(pattern, np.int64))]] = True
    used_points = np.flatnonzero(used)
    if not len(used_points):
        raise InputError(f"{path}: has no cell with an edge; a graph needs cells")
    if num_unused := count - len(used_points):
        report(f"{path}: {num_unused:,} points are no corner of a cell, and are left out")
    node = np.cumsum(used) - 1
    groups, features = _groups(mesh), None
    if groups:
        report(f"{path}: features are the groups {', '.join(groups)}")
        membership = np.zeros((len(used_points), len(groups)), np.uint8)
        for column, points in enumerate(groups.values()):
            membership[node[points[used[points]]], column] = 1
        features = matrix_features(membership, f"{path}: groups", names=tuple(groups))
    positions = _positions(mesh.points)[used_points]
    if copies := len(positions) - len(np.unique(positions, axis=0)):
        report(
            f"{path}: {copies:,} points lie where others do, and no edge joins them; if this is "
            "not meant, merge them first, in ParaView by Clean to Grid"
        )
    nodes = NodeArrays(
        features=features,
        original_id=used_points if num_unused else None,
        positions=positions,
        series=_series(steps, used_points),
    )
    return GraphSource(
        path=path,
        edges=partial(_stream, path, cells, node),
        inputs=tuple(file for mesh in (path, *more) for file in (mesh, *files_beside(mesh))),
        num_nodes=len(used_points),
        counted=True,
        undirected=True,
        nodes=nodes,
        ignored=tuple(f"data {name} of cells" for name in mesh.cell_data if ":" not in name),
    )


def _edges_of(path: Path, block: Any) -> Array:
    """Return the edges (e, 2) between the corners of a block's cells."""
    cell_type = str(block.type)
    pattern = _EDGES.get(cell_type.rstrip("0123456789"))
    if cell_type.startswith("polygon"):
        corners = np.arange(np.shape(block.data)[1])
        return np.stack([corners, np.roll(corners, -1)], axis=1)
    if pattern is None:
        raise InputError(
            f"{path}: cells of type {cell_type} are not read; known: {', '.join(_EDGES)}"
        )
    return np.array(pattern, np.int64).reshape(-1, 2)


def _stream(path: Path, cells: list[tuple[str, Array, Array]], node: Array) -> EdgeStream:
    for number, (cell_type, pattern, corners) in enumerate(cells):
        for span in edge_spans(len(corners) if len(pattern) else 0, len(pattern)):
            ends = node[corners[span]][:, pattern].reshape(-1, 2)
            where = f"{path}, block {number} of {cell_type}s"
            locate = partial(_locate, where, span.start, len(pattern))
            yield EdgeChunk(ends[:, 0], ends[:, 1], locate)


def _locate(where: str, first: int, edges: int, edge: int) -> str:
    return f"{where}, cell {first + edge // edges}"


def _positions(points: Array) -> NDArray[np.float64]:
    """Return coordinates, without the third axis if it is zero everywhere."""
    plane = points.shape[1] == 3 and not points[:, 2].any()
    return np.asarray(points[:, :2] if plane else points, np.float64)


def _groups(mesh: Any) -> dict[str, Array]:
    """Return the points of each group by its name, in sorted order."""
    groups: dict[str, list[Array]] = {}
    for name, points in _members(mesh):
        groups.setdefault(name, []).append(np.ravel(points).astype(np.int64))
    return {name: np.unique(np.concatenate(groups[name])) for name in sorted(groups)}


def _members(mesh: Any) -> Iterator[tuple[str, Array]]:
    """Yield (group name, points) pairs; a group may come several times."""
    tags = mesh.cell_data.get(f"{_OWN}physical")
    if tags is not None:
        names = {tuple(map(int, numbers[:2])): name for name, numbers in mesh.field_data.items()}
        for block, numbers in zip(mesh.cells, tags, strict=True):
            for tag in np.unique(numbers).tolist():
                name = names.get((tag, block.dim), f"{tag} of {block.dim} dimensions")
                yield name, block.data[numbers == tag]
    else:
        for name, sets in mesh.cell_sets.items():
            for block, cells in zip(mesh.cells, sets, strict=True):
                if cells is not None and len(cells):
                    yield name, block.data[np.asarray(cells)]
    for name, points in mesh.point_sets.items():
        yield name, np.asarray(points)
    for name, values in mesh.point_data.items():
        if _is_tag(name, values):
            for tag in np.unique(values).tolist():
                yield f"{name} {tag}", np.flatnonzero(values == tag)


def _is_tag(name: str, values: Array) -> bool:
    """Tell whether point data are group numbers, not a field."""
    whole = values.ndim == 1 and values.dtype.kind in "iub" and not name.startswith(_OWN)
    return whole and len(np.unique(values)) <= _MOST_TAGS


def _check_step(
    where: str, first: Mapping[str, Array], data: Mapping[str, Array], left_out: set[str]
) -> None:
    """Raise `InputError` if group numbers, which become features, differ from the first step's.

    Report what the first step lacks, and add it to `left_out`.
    """
    if later := sorted(data.keys() - first.keys() - left_out):
        left_out.update(later)
        report(f"{where}: left out, since step 0 lacks it: {', '.join(later)}")
    for name, values in first.items():
        if _is_tag(name, np.asarray(values)) and not np.array_equal(
            values, data.get(name, np.empty(0))
        ):
            raise InputError(
                f"{where}: the integers {name} differ from those of step 0, which are taken as "
                "groups of points; write a field as floats"
            )


def _series(steps: MeshSteps, kept: Array) -> FieldSeries | None:
    """Return the point data as fields."""
    first = steps.point_data(0)
    steps_read: dict[int, Mapping[str, Array]] = {0: first}
    left_out: set[str] = set()

    def read_step(name: str, step: int, start: int, stop: int) -> Array:
        if step not in steps_read:
            steps_read.clear()
            steps_read[step] = steps.point_data(step)
            _check_step(steps.where(step), first, steps_read[step], left_out)
        values = steps_read[step].get(name)
        if values is None or np.shape(values) != np.shape(first[name]):
            shape = "is missing" if values is None else f"has shape {np.shape(values)}"
            raise InputError(
                f"{steps.where(step)}: {name} {shape}, and at step 0 it has shape "
                f"{np.shape(first[name])}; give the same at every step"
            )
        return np.asarray(values)[kept[start:stop]]

    fields = []
    for name in sorted(first):
        values = np.asarray(first[name])
        if name.startswith(_OWN) or _is_tag(name, values):
            continue
        if values.ndim > 2 or values.dtype.kind == "V":
            values = values.reshape(len(values), -1)
        fields.append(
            FieldArray(
                name=name,
                shape=(steps.count, len(kept), *values.shape[1:]),
                dtype=values.dtype,
                read=partial(read_step, name),
                where=f"{steps.where(0)}: {name}",
            )
        )
    if not fields:
        for step in range(1, steps.count):
            _check_step(steps.where(step), first, steps.point_data(step), left_out)
        return None
    times = None if steps.times is None else np.array(steps.times)
    return join_fields(fields, times, where=steps.where(0).partition(", step")[0])
