"""Read meshes with point data, one step or many, through meshio.

A series is an XDMF or Exodus file with steps, a .pvd that lists files, or one file per step. All
steps must have the points and cells of the first.
"""

import contextlib
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np

from hpcgnn.console import report
from hpcgnn.errors import InputError, named
from hpcgnn.storage import CellMesh, require_file
from hpcgnn.storage.netcdf import read_netcdf
from hpcgnn.typing import Array

XDMF = (".xdmf", ".xmf")
PVD = ".pvd"
_NUMBERS = re.compile(r"(\d+)"), re.compile(r"(\d+(?:\.\d+)?)")
"""Numbers in file names, without and with decimals."""
_EXODUS = (".e", ".exo", ".ex2")
_GMSH, _VTU = ".msh", ".vtu"


class MeshSteps(ABC):
    """The `count` steps of a mesh, the first as meshio's `mesh`; `times` if the files have them."""

    mesh: Any
    count: int
    times: Sequence[float] | None

    def __init__(self, path: Path) -> None:
        self._path = path

    def where(self, step: int) -> str:
        """Describe the place of a step, for messages."""
        return f"{self._path}, step {step}"

    @abstractmethod
    def point_data(self, step: int) -> Mapping[str, Array]:
        """Return the point data of a step; `InputError` if its mesh differs from the first."""


def read_meshes(path: Path, more: Sequence[Path]) -> MeshSteps:
    """Return the steps in a file, in the files that it lists, or in several; `InputError`."""
    if path.suffix.lower() in XDMF and not more:
        with _reading(path) as meshio:
            for file in files_beside(path):
                require_file(file, f"{path} keeps data in it")
            _check_binary(path)
            try:
                return _XdmfSteps(path, meshio.xdmf.TimeSeriesReader(path))
            except meshio.ReadError:
                # A file without a time series is a single mesh.
                pass
    files, times = [path, *more], None
    _check_order(files)
    if path.suffix.lower() == PVD:
        files, times = _listed(path)
    steps = _FileSteps(files, times)
    if times is None and more and {"TimeValue", "TIME"} & steps.mesh.field_data.keys():
        report(f"{path}: times in the files are not read; give --times or a .pvd, else steps count")
    alone = len(files) == 1 and path.suffix.lower() in _EXODUS
    return _ExodusSteps(path, steps.mesh) if alone and steps.mesh.point_data else steps


def _check_order(files: Sequence[Path]) -> None:
    """Raise `InputError` if files whose names differ only in numbers are not in numeric order.

    A shell puts step_10 before step_2.
    """
    for before, file in pairwise(files):
        decreases = []
        for numbers in _NUMBERS:
            words, next_words = (numbers.split(path.name) for path in (before, file))
            values, following = (tuple(map(float, w[1::2])) for w in (words, next_words))
            decreases.append(words[::2] == next_words[::2] and values > following)
        if all(decreases):
            raise InputError(
                f"{file}: comes after {before.name}, and each file is a step; give them in the "
                'order of time, as "ls -v" lists them, or in a .pvd'
            )


def files_beside(path: Path) -> list[Path]:
    """Return the files that a .pvd lists, or that hold the data of a valid .xdmf."""
    if path.suffix.lower() == PVD:
        return _listed(path)[0]
    if path.suffix.lower() not in XDMF:
        return []
    items = ET.parse(path).getroot().iter("DataItem")
    places = {item.text or "" for item in items if item.get("Format") in ("HDF", "Binary")}
    return [path.parent / place.strip().partition(":")[0] for place in sorted(places)]


def _check_binary(path: Path) -> None:
    """Raise `InputError` if an .xdmf has binary data whose byte order or place meshio ignores."""
    for item in ET.parse(path).getroot().iter("DataItem"):
        ignored = {"Endian": item.get("Endian"), "Seek": item.get("Seek")}
        for key, value in ignored.items():
            if item.get("Format") == "Binary" and value not in (None, "0", "Little", "Native"):
                raise InputError(
                    f'{path}: {item.text}: meshio ignores {key}="{value}"; write the data as HDF'
                )


_CORNERS: Mapping[str, tuple[int, int]] = {
    "line": (1, 2),
    "triangle": (2, 3),
    "quad": (2, 4),
    "tetra": (3, 4),
    "pyramid": (3, 5),
    "wedge": (3, 6),
    "hexahedron": (3, 8),
}
"""Dimension and number of corners of each cell type; corners come first in higher orders."""


def read_cells(path: Path) -> CellMesh:
    """Return the cells of highest dimension of a mesh as corner indices; raises `InputError`."""
    mesh = read_meshes(path, []).mesh
    corners: dict[str, list[Array]] = {}
    for block in mesh.cells:
        kind = str(block.type).rstrip("0123456789")
        if kind in _CORNERS:
            corners.setdefault(kind, []).append(np.asarray(block.data)[:, : _CORNERS[kind][1]])
    if not corners:
        raise InputError(f"--like {path}: has no cells of the types {', '.join(_CORNERS)}")
    dimension = max(_CORNERS[kind][0] for kind in corners)
    cells = {
        kind: np.concatenate(block).astype(np.int64)
        for kind, block in corners.items()
        if _CORNERS[kind][0] == dimension
    }
    return CellMesh(path, np.asarray(mesh.points, np.float64), cells)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Yield meshio, and turn any exception in the block into an `InputError`."""
    require_file(path)
    try:
        meshio = import_module("meshio")
    except ImportError:
        raise InputError(
            f"{path}: needs meshio; pip install meshio, as hpcgnn[mesh] does"
        ) from None
    output = io.StringIO()
    try:
        # meshio prints some errors and calls sys.exit.
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            yield meshio
        warning = " ".join(output.getvalue().split()).removeprefix("Warning: ")
        if "cannot handle" in warning or "corrupt" in warning:
            # meshio leaves such cells, or fields, out.
            raise InputError(f"{path}: {warning} Export it again, voxels as hexahedra")
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        reason = str(error) if str(error) not in ("", "1") else output.getvalue()
        reason = " ".join(reason.split())[:200] or kind
        raise InputError(
            f"{path}: meshio cannot read it ({reason}); export it again, perhaps uncompressed or "
            "with linear cells"
        ) from error


class _FileSteps(MeshSteps):
    def __init__(self, files: Sequence[Path], times: Sequence[float] | None) -> None:
        super().__init__(files[0])
        self._files, self.times, self.count = files, times, len(files)
        for file in files:
            require_file(file)
        self.mesh = self._read(0)

    def where(self, step: int) -> str:
        return str(self._files[step])

    def point_data(self, step: int) -> Mapping[str, Array]:
        mesh = self._read(step) if step else self.mesh
        _check_same(self.where(step), self.mesh, mesh.points, mesh.cells)
        data: Mapping[str, Array] = mesh.point_data
        return data

    def _read(self, step: int) -> Any:
        file = self._files[step]
        with _reading(file) as meshio:
            mesh = meshio.read(file)
        fields = [name for name in mesh.point_data if not name.startswith("gmsh:")]
        if file.suffix.lower() == _GMSH and file.read_bytes().count(b"$NodeData") > len(fields):
            raise InputError(
                f"{file}: has several steps, of which meshio reads only the last; export one file "
                "per step, or an XDMF"
            )
        if file.suffix.lower() == _VTU and (pieces := file.read_bytes().count(b"<Piece")) > 1:
            raise InputError(
                f"{file}: has {pieces} pieces, of which meshio reads the cells of the last only; "
                "merge them, in ParaView by Clean to Grid and Save Data"
            )
        return mesh


class _ExodusSteps(MeshSteps):
    """The steps of an Exodus file, of which meshio itself reads only the first."""

    def __init__(self, path: Path, mesh: Any) -> None:
        super().__init__(path)
        self.mesh, self._variables = mesh, read_netcdf(path)
        with _reading(path):
            rows = self._variables["name_nod_var"].read(...).tolist()
            self._names = [b"".join(row).decode() for row in rows]
            self.times = times = self._variables["time_whole"].read(...).tolist()
        self.count = len(times)

    def point_data(self, step: int) -> Mapping[str, Array]:
        data, names = {}, self._names
        with _reading(self._path):
            for name, first in self.mesh.point_data.items():
                # meshio joins columns with these suffixes.
                ends = ("",) if name in names else {2: ("_R", "_Z"), 3: "XYZ"}[first.shape[1]]
                numbers = [names.index(name + end) + 1 for end in ends]
                parts = [self._variables[f"vals_nod_var{number}"].read(step) for number in numbers]
                data[name] = np.stack(parts, axis=1).reshape(first.shape)
        return data


class _XdmfSteps(MeshSteps):
    def __init__(self, path: Path, reader: Any) -> None:
        super().__init__(path)
        self._reader, self.count = reader, int(reader.num_steps)
        _join_series(path, reader)
        points, cells = reader.read_points_cells()
        if points is None or not self.count:
            raise InputError(f"{path}: has no points, or no steps")
        _, point_data, cell_data = reader.read_data(0)
        self.mesh = import_module("meshio").Mesh(points, cells, point_data, cell_data)
        elements = [grid.find("Time") for grid in reader.collection]
        times = [float(element.get("Value")) for element in elements if element is not None]
        if len(times) != self.count:
            raise InputError(f"{path}: only {len(times)} of {self.count} steps have a Time")
        self.times = times

    def point_data(self, step: int) -> Mapping[str, Array]:
        with _reading(self._path):
            self._check_mesh(step)
            data: Mapping[str, Array] = self._reader.read_data(step)[1]
        return data

    def _check_mesh(self, step: int) -> None:
        grid = self._reader.collection[step]
        first = self._reader.mesh_grid
        if all(_texts(grid, tag) in ([], _texts(first, tag)) for tag in ("Geometry", "Topology")):
            return
        # meshio itself would use the first mesh for all steps.
        self._reader.mesh_grid = grid
        points, cells = self._reader.read_points_cells()
        self._reader.mesh_grid = first
        _check_same(self.where(step), self.mesh, points, cells)


def _join_series(path: Path, reader: Any) -> None:
    """Add the data of other series in an .xdmf to the steps of the last, all that meshio reads.

    dolfinx writes a series for each function. Raises `InputError` unless times and names fit.
    """
    series = [grid for grid in reader.domain if grid.get("GridType") == "Collection"]
    times = [[time.get("Value") for time in grid.iter("Time")] for grid in series]
    if any(each != times[-1] for each in times):
        raise InputError(f"{path}: has several series of different times; write a file for each")
    for other in series[:-1]:
        for grid, more in zip(reader.collection, other, strict=True):
            grid.extend(more.findall("Attribute"))
    for grid in reader.collection:
        names = [each.get("Name") for each in grid.findall("Attribute")]
        if len(set(names)) < len(names):
            raise InputError(f"{path}: has two data of one name among {named(names)}; rename one")


def _texts(grid: Any, tag: str) -> list[str]:
    """Return the text of a grid's points or cells: their data, or references to them."""
    return ["".join(element.itertext()).strip() for element in grid.findall(tag)]


def _check_same(where: str, mesh: Any, points: Array, cells: Sequence[Any]) -> None:
    same = points is not None and np.array_equal(points, mesh.points, equal_nan=True)
    same &= [block.type for block in cells] == [block.type for block in mesh.cells]
    if not same or any(
        not np.array_equal(new.data, old.data) for new, old in zip(cells, mesh.cells, strict=True)
    ):
        raise InputError(
            f"{where}: has other points or cells than the first step; a store has one mesh: "
            "interpolate all steps to one, or convert them one by one"
        )


def _listed(path: Path) -> tuple[list[Path], list[float]]:
    """Return the files of a .pvd and their times."""
    require_file(path)
    try:
        root = ET.parse(path).getroot()
        entries = [
            (path.parent / element.attrib["file"], float(element.attrib["timestep"]))
            for element in root.iter("DataSet")
        ]
    except (ET.ParseError, OSError, KeyError, ValueError) as error:
        raise InputError(f"{path}: is no list of files with times ({error})") from error
    if not entries:
        raise InputError(f"{path}: lists no file")
    times = [time for _, time in entries]
    if len(set(times)) < len(times):
        raise InputError(f"{path}: lists several files for one time; merge the parts of the mesh")
    return [file for file, _ in entries], times
