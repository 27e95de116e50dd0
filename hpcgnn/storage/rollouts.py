"""Files of rollouts: predicted fields, step after step, with rows in order of original ids.

    /node_id      int64[n]
    /positions    float64[n, D], where the nodes have them
    /times        float64[K]
    /values/NAME  float32[K, n, F], or float64; attributes `unit`, `components`

and, where fields of edges are predicted, sorted by source and target:

    /edge_id           int64[m, 2] original ids of sources and targets
    /edge_values/NAME  float32[K, m, F], or float64; the same attributes

Attributes record the run, the store, the last step that the model read, and the means that it read
where a target was missing. An `.xdmf` next to the file describes it to ParaView: fields at each
time on a point cloud, or on cells. For ParaView the file also has views of each step, and the cells
as rows of nodes:

    /steps/NAME/K  a virtual dataset, step K of NAME
    /cells         int64[m, k]; cells of several kinds in one row, each after the number of its
                   kind; int64[n, 1] for a point cloud, which two of ParaView's three readers need
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import write_whole
from hpcgnn.storage.datasets import text_type
from hpcgnn.storage.files import HDF5Writer, open_file
from hpcgnn.storage.graph.fields import FieldInfo, field_chunk
from hpcgnn.storage.graph.schema import link_name, name_of
from hpcgnn.typing import Array, FloatArray

FORMAT = "hpcgnn rollout"
FORMAT_VERSION = 1
_REMEDY = "write one with hpcgnn predict --rollout"

ROLLOUT_FORMATS = ("h5", "xdmf")
"""By file suffix; the values of NAME.xdmf are next to it, in NAME.h5."""

_SHAPES: Mapping[str, tuple[str, int]] = {
    "line": ("Polyline", 2),
    "triangle": ("Triangle", 4),
    "quad": ("Quadrilateral", 5),
    "tetra": ("Tetrahedron", 6),
    "pyramid": ("Pyramid", 7),
    "wedge": ("Wedge", 8),
    "hexahedron": ("Hexahedron", 9),
}
"""XDMF's names and numbers of cell kinds, by meshio's names."""


@dataclass(frozen=True, eq=False)
class CellMesh:
    """Mesh cells to show a rollout on.

    `path` is their file, for messages. `points` are (n, D) coordinates; `cells` has by kind (a key
    of `_SHAPES`) the corners (m, k) int64, which are indices of points.
    """

    path: Path
    points: FloatArray
    cells: Mapping[str, Array]

    def of_nodes(self, ids: Array, positions: Array | None) -> dict[str, Array]:
        """Return the corners (m, k) as rows of the nodes with increasing original `ids` (n,).

        Raises `InputError` if a node is not a point of the mesh, or lies elsewhere.
        """
        fits = positions is not None and ids[-1] < len(self.points)
        if fits and positions is not None:
            axes = positions.shape[1]
            fits = np.array_equal(self.points[ids, :axes].astype(positions.dtype), positions)
        rows = {shape: np.searchsorted(ids, corners) for shape, corners in self.cells.items()}
        for shape, corners in rows.items():
            fits = fits and np.array_equal(
                ids[np.minimum(corners, len(ids) - 1)], self.cells[shape]
            )
        if not fits:
            raise InputError(
                f"--like {self.path}: its points are not the nodes of the store; give the mesh "
                "that the store was converted from"
            )
        return rows


class RolloutFile(HDF5Writer):
    """Write predicted steps to a file as described in the module, whole or not at all.

    `path` is the .h5 file, or the .xdmf file to write next to it; `fields` are the predicted ones,
    in the order of the columns; `times` are (K,) float64; `num_rows` count the nodes and edges of
    the whole graph; `attributes` describe the rollout's origin; `cells` are those to show in an
    .xdmf, None for a point cloud.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fields: Sequence[FieldInfo],
        times: FloatArray,
        num_rows: tuple[int, int],
        attributes: Mapping[str, str | int],
        cells: CellMesh | None = None,
    ) -> None:
        output = Path(path)
        super().__init__(output.with_suffix(".h5") if output.suffix == ".xdmf" else output)
        self._xdmf = output if output.suffix == ".xdmf" else None
        self._fields, self._times, self._num_rows = fields, times, num_rows
        self._num_nodes = num_rows[0]
        self._attributes = {"format": FORMAT, "format_version": FORMAT_VERSION, **attributes}
        self._axes, self._cells = 0, cells
        self._topology = self._topology_of(
            "Polyvertex", (self._num_nodes, 1), 'NodesPerElement="1" '
        )

    def _begin(self) -> None:
        super()._begin()
        self._file.create_dataset("times", data=self._times)
        for field in self._fields:
            shape = (len(self._times), self._num_rows[field.of_edges], field.num_columns)
            dtype = value_type(field)
            chunk = (1, *field_chunk(shape[1:], dtype))
            dataset = self._file.create_dataset(
                _path(field), shape=shape, dtype=dtype, chunks=chunk, fletcher32=True
            )
            for key, text in field.attributes.items():
                dataset.attrs.create(key, text.encode(), dtype=text_type(text))

    def write_nodes(self, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Write pieces of original ids (m,), each followed by positions (m, D) if there are any."""
        start = 0
        for ids, *positions in pieces:
            for name, rows in zip(("node_id", "positions"), (ids, *positions), strict=False):
                if name not in self._file:
                    shape = (self._num_nodes, *rows.shape[1:])
                    self._file.create_dataset(name, shape=shape, dtype=rows.dtype)
                self._file[name][start : start + len(rows)] = rows
                self._axes = rows.shape[1] if name == "positions" else 0
            if self._xdmf is not None and self._cells is None:
                self._write_cloud(start, len(ids))
            start += len(ids)
        if self._cells is not None:
            known = self._file["positions"][...] if "positions" in self._file else None
            self._write_cells(self._cells.of_nodes(self._file["node_id"][...], known))
        self._output.raise_on_error()

    def write_edges(self, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Write pieces of the original ids (m, 2) of sources and targets."""
        shape, start = (self._num_rows[True], 2), 0
        dataset = self._file.create_dataset("edge_id", shape=shape, dtype=np.int64)
        for (ids,) in pieces:
            dataset[start : start + len(ids)] = ids
            start += len(ids)
        self._output.raise_on_error()

    def _write_cells(self, cells: Mapping[str, Array]) -> None:
        count = sum(map(len, cells.values()))
        if len(cells) == 1:
            ((shape, rows),) = cells.items()
            corners = f'NodesPerElement="{rows.shape[1]}" ' if shape == "line" else ""
            name = _SHAPES[shape][0]
        else:
            name, corners = "Mixed", ""
            rows = np.concatenate(
                [
                    np.insert(rows, 0, _SHAPES[shape][1], axis=1).ravel()
                    for shape, rows in cells.items()
                ]
            )
        self._file.create_dataset("cells", data=rows.astype(np.int64))
        self._topology = self._topology_of(name, rows.shape, corners, count)

    def _write_cloud(self, start: int, count: int) -> None:
        if "cells" not in self._file:
            packed = {"chunks": True, "shuffle": True, "compression": 1}
            shape = self._num_nodes, 1
            self._file.create_dataset("cells", shape=shape, dtype=np.int64, **packed)
        self._file["cells"][start : start + count, 0] = np.arange(start, start + count)

    def _topology_of(
        self, name: str, shape: tuple[int, ...], corners: str, count: int | None = None
    ) -> str:
        item, count = self._item("cells", shape, 8, "Int"), shape[0] if count is None else count
        return f'TopologyType="{name}" {corners}NumberOfElements="{count}">{item}</Topology>'

    def write_step(self, step: int, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Write a step, counted from 0: predicted columns (m, W) in order of original ids."""
        self._write_fields(step, pieces, of_edges=False)

    def write_edge_step(self, step: int, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Write a step of the fields of edges, sorted by source and target."""
        self._write_fields(step, pieces, of_edges=True)

    def _write_fields(
        self, step: int, pieces: Iterable[tuple[Array, ...]], *, of_edges: bool
    ) -> None:
        start, fields = 0, [field for field in self._fields if field.of_edges == of_edges]
        for (rows,) in pieces:
            column = 0
            for field in fields:
                columns = rows[:, column : column + field.num_columns]
                dataset = self._file[_path(field)]
                dataset[step, start : start + len(rows)] = columns
                column += field.num_columns
            start += len(rows)
        self._output.raise_on_error()

    def _finish(self) -> None:
        self._set_attributes(self._file, self._attributes)
        if self._xdmf is None:
            return
        if self._axes not in (2, 3):
            raise InputError(
                f"{self._xdmf}: nodes have no positions of 2 or 3 axes to show; write .h5"
            )
        for field in self._fields:
            values = self._file[_path(field)]
            # HDF5 takes single percent signs for formats.
            escaped = values.name.replace("%", "%%")
            source = h5py.VirtualSource(".", escaped, values.shape, values.dtype)
            for step in range(len(self._times)):
                layout = h5py.VirtualLayout(source.shape[1:], source.dtype)
                layout[:] = source[step]
                self._file.create_virtual_dataset(_step_path(field, step), layout)

    def _publish(self) -> None:
        super()._publish()
        if self._xdmf is not None:
            write_whole(self._xdmf, self._described().encode())

    def _described(self) -> str:
        """Return the text of the .xdmf."""
        count, geometry_type = self._num_nodes, "XYZ" if self._axes == 3 else "XY"
        grids = []
        for step, time in enumerate(self._times.tolist()):
            attributes = "".join(self._attribute(step, field) for field in self._fields)
            geometry = self._item("positions", (count, self._axes), 8)
            grids.append(
                f'<Grid Name="step {step}" GridType="Uniform"><Time Value="{time!r}"/>'
                f"<Topology {self._topology}"
                f'<Geometry GeometryType="{geometry_type}">{geometry}</Geometry>{attributes}</Grid>'
            )
        series = "\n".join(grids)
        return (
            '<?xml version="1.0"?>\n<Xdmf Version="3.0"><Domain>\n'
            '<Grid Name="rollout" GridType="Collection" CollectionType="Temporal">\n'
            f"{series}\n</Grid>\n</Domain></Xdmf>\n"
        )

    def _attribute(self, step: int, field: FieldInfo) -> str:
        count, width, size = self._num_nodes, field.num_columns, value_type(field).itemsize
        layout = {1: "Scalar", 3: "Vector"}.get(width, "Matrix")
        item = self._item(_step_path(field, step), (count, width), size)
        name = escape(field.name)
        return f'<Attribute Name="{name}" AttributeType="{layout}" Center="Node">{item}</Attribute>'

    def _item(
        self, dataset: str, shape: tuple[int, ...], precision: int, number: str = "Float"
    ) -> str:
        dimensions = " ".join(map(str, shape))
        return (
            f'<DataItem Dimensions="{dimensions}" NumberType="{number}" Precision="{precision}" '
            f'Format="HDF">{escape(f"{self.path.name}:/{dataset}")}</DataItem>'
        )


def _path(field: FieldInfo) -> str:
    return field.path.removeprefix("/fields/")


def _step_path(field: FieldInfo, step: int) -> str:
    return f"steps/{link_name(field.name)}/{step}"


def value_type(field: FieldInfo) -> np.dtype[Any]:
    """Return the type in which predicted values of a field are written."""
    return np.dtype(np.float64 if np.dtype(field.dtype).itemsize > 4 else np.float32)


class Rollout:
    """A file that `RolloutFile` wrote, open for reading; a context manager.

    Raises `InputError` if there is no such file or it is not a rollout. `times` are (K,) float64,
    `node_id` (n,) int64 original ids, `positions` (n, D) float64 or None; `edge_id` (m, 2) int64
    are original ids of sources and targets, (0, 2) without fields of edges. `names` and
    `edge_names` are those of the fields of nodes and of edges; `attributes` tell the rollout's
    origin.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, open_file(path, None, _REMEDY)
        self.attributes = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in self._file.attrs.items()
        }
        if self.attributes.get("format") != FORMAT:
            self._file.close()
            raise InputError(f"{path}: is not a rollout; {_REMEDY}")
        self.times: FloatArray = self._file["times"][...]
        self.node_id = self._file["node_id"][...]
        has_positions = "positions" in self._file
        self.positions: FloatArray | None = self._file["positions"][...] if has_positions else None
        self.names, self.edge_names = (
            tuple(map(name_of, self._file.get(group, ()))) for group in ("values", "edge_values")
        )
        self.edge_id = self._file["edge_id"][...] if self.edge_names else np.empty((0, 2), np.int64)

    def read(self, name: str, step: int) -> FloatArray:
        """Return the values (n, F), or (m, F), of a field at a step, counted from 0."""
        group = "edge_values" if name in self.edge_names else "values"
        return self._file[f"{group}/{link_name(name)}"][step]

    def columns(self, name: str) -> list[str]:
        """Return the names of a node field's columns, empty strings for columns without a name."""
        dataset = self._file[f"values/{link_name(name)}"]
        names = json.loads(dataset.attrs["components"])
        return list(names) or [""] * dataset.shape[2]

    def __enter__(self) -> "Rollout":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
