"""Meshes that meshio reads: cells, groups, fields and series equal those that were written."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
from scipy.io import netcdf_file

from hpcgnn.convert import ConvertOptions, convert, detect
from hpcgnn.convert.pipeline import Report
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore

POINTS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 0, 0], [2, 1, 0]], float)
CELLS: list[Any] = [("quad", [[0, 1, 2, 3]]), ("triangle", [[1, 4, 2], [4, 5, 2]])]
EDGES = {(0, 1), (1, 2), (2, 3), (0, 3), (1, 4), (2, 4), (4, 5), (2, 5)}


def read(path: Path, *more: Path, **options: Any) -> tuple[GraphStore, Report]:
    out = path.parent / "out.h5"
    assert detect(path)[0] == "mesh"
    chosen = ConvertOptions(more_inputs=tuple(map(str, more)), **options)
    report = convert(path, out, format_name="mesh", options=chosen)
    return GraphStore.open(out), report


def edges_of(store: GraphStore) -> set[tuple[int, int]]:
    rows = store.read_adjacency(0, store.num_nodes)
    targets = np.repeat(np.arange(store.num_nodes), np.diff(rows.indptr))
    pairs = set(zip(rows.indices.tolist(), targets.tolist(), strict=True))
    assert store.undirected
    assert {(b, a) for a, b in pairs} == pairs
    return {(a, b) for a, b in pairs if a < b}


@pytest.mark.parametrize(
    ("kind", "corners", "edges"),
    [
        ("line", 2, 1),
        ("triangle", 3, 3),
        ("quad", 4, 4),
        ("tetra", 4, 6),
        ("pyramid", 5, 8),
        ("wedge", 6, 9),
        ("hexahedron", 8, 12),
        ("triangle6", 3, 3),
        ("tetra10", 4, 6),
        ("hexahedron20", 8, 12),
    ],
)
def test_cells_become_edges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, corners: int, edges: int
) -> None:
    count = int(kind.lstrip("abcdefghijklmnopqrstuvwxyz") or corners)
    points = np.random.default_rng(4).random((count, 3))
    mesh = meshio.Mesh(points, [(kind, [list(range(count))])], {"T": np.arange(count * 1.0)})
    mesh.write(tmp_path / "cell.vtu")
    store, report = read(tmp_path / "cell.vtu")
    with store:
        assert store.num_nodes == corners
        assert len(edges_of(store)) == edges
        assert report.input_edges == edges
        assert (edges_of(store) == {(0, 1)}) == (kind == "line")
        np.testing.assert_array_equal(store.read_positions(0, corners), points[:corners])
        assert store.read_field("T", 0, 0, corners)[:, 0].tolist() == list(range(corners))
    left = f"{count - corners} points are no corner of a cell" in capsys.readouterr().err
    assert left == (count > corners)


@pytest.mark.parametrize("ending", [".vtu", ".vtk", ".xdmf"])
def test_one_step(tmp_path: Path, ending: str) -> None:
    velocity = np.arange(18.0).reshape(6, 3)
    velocity[3, 1] = np.nan
    data = {"u": velocity, "tag": np.array([0, 1, 1, 0, 7, 7])}
    path = tmp_path / f"mesh{ending}"
    meshio.Mesh(POINTS, CELLS, data, {"p": [np.ones(1), np.ones(2)]}).write(path)
    store, report = read(path)
    with store:
        assert edges_of(store) == EDGES
        # A plane mesh.
        np.testing.assert_array_equal(store.read_positions(0, 6), POINTS[:, :2])
        np.testing.assert_array_equal(store.read_field("u", 0, 0, 6), velocity)
        assert list(store.fields) == ["u"]
        features = store.read_nodes(0, 6).features
        assert features is not None
        assert features.T.tolist() == [[1, 0, 0, 1, 0, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert report.missing_values == {"u": 1}
    assert report.ignored == ("data p of cells",)


def test_physical_groups_are_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells: list[Any] = [("line", [[0, 3], [4, 5]]), *CELLS]
    tags = {"gmsh:physical": [[5, 6], [9], [9, 9]], "gmsh:geometrical": [[1, 2], [1], [1, 1]]}
    names = {"inlet": np.array([5, 1]), "fluid": np.array([9, 2])}
    points = np.vstack([POINTS, [9, 9, 0]])
    mesh = meshio.Mesh(points, cells, cell_data=tags, field_data=names)
    meshio.gmsh.write(tmp_path / "mesh.msh", mesh, "2.2", binary=False)
    store, report = read(tmp_path / "mesh.msh")
    with store:
        assert edges_of(store) == EDGES
        features = store.read_nodes(0, 6).features
        assert features is not None
        columns = [[0, 0, 0, 0, 1, 1], [1] * 6, [1, 0, 0, 1, 0, 0]]
        assert features.T.tolist() == columns
        assert store.num_features == 3
        assert store.feature_names == ("6 of 1 dimensions", "fluid", "inlet")
    assert report.num_features == 3
    said = capsys.readouterr().err
    assert "features are the groups 6 of 1 dimensions, fluid, inlet" in said
    assert "1 points are no corner" in said


def series(path: Path, times: tuple[float, ...] = (0, 0.5, 2), form: str = "HDF") -> Path:
    """Write an XDMF with steps at these times."""
    with meshio.xdmf.TimeSeriesWriter(path, data_format=form) as writer:
        blocks = [meshio.CellBlock(kind, np.array(corners)) for kind, corners in CELLS]
        writer.write_points_cells(POINTS, blocks)
        for step, time in enumerate(times):
            data = {"u": np.full((6, 3), step + 0.5), "T": np.arange(6) * (step + 1.0)}
            writer.write_data(time, point_data=data)
    return path


def check_series(store: GraphStore, times: list[float]) -> None:
    with store:
        assert edges_of(store) == EDGES
        assert store.times.tolist() == times
        for step in range(3):
            assert (store.read_field("u", step, 0, 6) == step + 0.5).all()
            np.testing.assert_array_equal(
                store.read_field("T", step, 1, 4)[:, 0], np.arange(1, 4) * (step + 1)
            )


@pytest.mark.parametrize("form", ["HDF", "XML"])
def test_xdmf_series(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # meshio writes the HDF5 file into the working directory.
    monkeypatch.chdir(tmp_path)
    store, report = read(series(tmp_path / "flow.xdmf", form=form))
    check_series(store, [0, 0.5, 2])
    assert report.num_steps == 3


def with_another_series(folder: Path, *changes: tuple[str, str]) -> Path:
    """Write an .xdmf with one series of `T` and `u`, and an equal one, but for `changes`."""
    path = series(folder / "flow.xdmf", form="XML")
    start, one, end = re.split(
        '(<Grid Name="Time.*)(?=<Grid Name="mesh")', path.read_text(), flags=re.DOTALL
    )
    other = one
    for old, new in changes:
        assert old in other
        other = other.replace(old, new)
    path.write_text(start + other + one + end)
    return path


def test_all_series_of_an_xdmf_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = with_another_series(tmp_path, ('Name="T"', 'Name="T2"'), ('Name="u"', 'Name="u2"'))
    store, _ = read(path)
    assert tuple(store.fields) == ("T", "T2", "u", "u2")
    for step in range(3):
        assert (store.read_field("u2", step, 0, 6) == step + 0.5).all()
    check_series(store, [0, 0.5, 2])


def test_times_and_trajectories_beside_a_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = series(tmp_path / "flow.xdmf", times=(0, 2, 0))
    np.save("starts.npy", np.array([0, 2, 3]))
    np.save("times.npy", np.array([0, 1, 2]))
    store, _ = read(path, trajectories="starts.npy")
    assert store.trajectory_starts.tolist() == [0, 2, 3]
    check_series(store, [0, 2, 0])
    check_series(read(path, times="times.npy")[0], [0, 1, 2])


def test_an_xdmf_series_has_groups_and_names_what_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with meshio.xdmf.TimeSeriesWriter("tagged.xdmf") as writer:
        writer.write_points_cells(POINTS, CELLS)
        for time in range(2):
            fields = {"u": np.ones(6), "wall": np.arange(6) // 3}
            writer.write_data(time, fields, {"c": [np.ones(1), np.ones(2)]})
    store, report = read(tmp_path / "tagged.xdmf")
    with store:
        assert store.feature_names == ("wall 0", "wall 1")
        features = store.read_features(0, 6)
        assert features is not None
        assert features[:, 1].tolist() == [0, 0, 0, 1, 1, 1]
        assert tuple(store.fields) == ("u",)
    assert report.ignored == ("data c of cells",)


def test_times_in_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps, time = files(tmp_path), "times in the files are not read; give --times or a .pvd"
    read(*steps)
    assert time not in capsys.readouterr().err
    for step in steps:
        field = '<FieldData><DataArray Name="TimeValue" type="Float64" format="ascii">7</DataArray>'
        mesh = step.read_text().replace("<Piece", f"{field}</FieldData><Piece")
        step.write_text(mesh)
    read(*steps)[0].close()
    assert time in capsys.readouterr().err


def test_points_at_one_place_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corners = np.concatenate([[0, 1, 2, 3], [1, 4, 2]])
    meshio.Mesh(POINTS[corners], [("quad", [[0, 1, 2, 3]]), ("triangle", [[4, 5, 6]])]).write(
        tmp_path / "apart.vtu"
    )
    with read(tmp_path / "apart.vtu")[0] as store:
        assert store.num_nodes == 7
    assert "apart.vtu: 2 points lie where others do, and no edge joins" in capsys.readouterr().err
    read(single(tmp_path))[0].close()
    assert "lie where" not in capsys.readouterr().err


def files(folder: Path) -> list[Path]:
    written = []
    for step in range(3):
        data = {"u": np.full((6, 3), step + 0.5), "T": np.arange(6) * (step + 1.0)}
        written.append(folder / f"flow_{step}.vtu")
        meshio.Mesh(POINTS, CELLS, data).write(written[-1])
    return written


def pvd(folder: Path, times: list[float]) -> Path:
    rows = [
        f'<DataSet timestep="{time}" file="flow_{step}.vtu"/>' for step, time in enumerate(times)
    ]
    path = folder / "flow.pvd"
    path.write_text(
        f'<VTKFile type="Collection"><Collection>{"".join(rows)}</Collection></VTKFile>'
    )
    return path


def test_files_are_steps(tmp_path: Path) -> None:
    check_series(read(*files(tmp_path))[0], [0, 1, 2])
    check_series(read(pvd(tmp_path, [0.25, 1, 8]))[0], [0.25, 1, 8])


@pytest.mark.parametrize("begins_with", ["fields", "nothing"])
def test_what_only_later_steps_have_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], begins_with: str
) -> None:
    steps = files(tmp_path)
    last = meshio.read(steps[2])
    meshio.Mesh(POINTS, CELLS, {**last.point_data, "late": np.arange(6.0)}).write(steps[2])
    if begins_with == "nothing":
        meshio.Mesh(POINTS, CELLS).write(steps[0])
    read(*steps)
    told = capsys.readouterr().err
    assert "flow_2.vtu: left out, since step 0 lacks it: late\n" in told
    assert ("flow_1.vtu: left out, since step 0 lacks it: T, u" in told) == (
        begins_with == "nothing"
    )


def exodus(path: Path, times: list[float], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the point data of an Exodus file; meshio is made to return its mesh."""
    names = ("T", "uX", "uY", "uZ")
    with netcdf_file(path, "w") as file:
        for name, length in {"time": None, "num_nodes": 6, "names": 4, "text": 9}.items():
            file.createDimension(name, length)
        file.createVariable("time_whole", "f8", ("time",))[:] = times
        texts = [list(name.ljust(9, chr(0)).encode("latin-1")) for name in names]
        written = file.createVariable("name_nod_var", "c", ("names", "text"))
        written[:] = np.array(texts, np.uint8).view("S1")
        for number in range(1, 5):
            values = file.createVariable(f"vals_nod_var{number}", "f8", ("time", "num_nodes"))
            for step in range(len(times)):
                values[step] = np.arange(6) * (step + 1.0) if number == 1 else step + 0.5
    first = {"T": np.arange(6.0), "u": np.full((6, 3), 0.5)}
    monkeypatch.setattr(meshio, "read", lambda _: meshio.Mesh(POINTS, CELLS, first))
    return path


def test_an_exodus_file_has_all_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_series(read(exodus(tmp_path / "a.exo", [0, 0.5, 2], monkeypatch))[0], [0, 0.5, 2])


@pytest.mark.parametrize("form", ["HDF", "Binary"])
def test_the_data_of_an_input_is_not_written_over(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = series(tmp_path / "flow.xdmf", form=form)
    beside = sorted(each for each in tmp_path.iterdir() if each != path)
    for output in (path, *beside, *files(tmp_path)[:2]):
        given = pvd(tmp_path, [0, 1, 2]) if output.suffix == ".vtu" else path
        before = output.read_bytes()
        with pytest.raises(InputError, match="is the input itself; choose another output"):
            convert(given, output, format_name="mesh")
        assert output.read_bytes() == before


def test_files_out_of_the_order_of_their_numbers_are_refused(tmp_path: Path) -> None:
    steps = files(tmp_path)
    last = steps[2].rename(tmp_path / "flow_10.vtu")
    with pytest.raises(InputError, match=r"flow_1\.vtu: comes after flow_10.vtu, and each file"):
        read(steps[0], last, steps[1])
    check_series(read(steps[0], steps[1], last)[0], [0, 1, 2])
    # Names that no number tells apart have no meaning, and some numbers have decimals.
    for names in (("start", "flow_1"), ("t0.25", "t0.5"), ("a.1.9", "a.1.10")):
        paths = [tmp_path / f"{name}.vtu" for name in names]
        for source, path in zip((steps[0], steps[1]), paths, strict=True):
            path.write_bytes(source.read_bytes())
        check_series(read(*paths, last)[0], [0, 1, 2])


def replace(folder: Path, **changes: Any) -> Path:
    """Replace the last step."""
    given = {"points": POINTS, "cells": CELLS, "data": {"u": np.ones((6, 3)), "T": np.ones(6)}}
    given |= changes
    meshio.Mesh(given["points"], given["cells"], given["data"]).write(folder / "flow_2.vtu")
    return pvd(folder, [0, 1, 2])


def edit(folder: Path, old: str, new: str, **changes: Any) -> Path:
    path = series(folder / "flow.xdmf", **changes)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def text_file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def single(folder: Path, **changes: Any) -> Path:
    given: dict[str, Any] = {"points": POINTS, "cells": CELLS} | changes
    meshio.Mesh(**given).write(folder / "mesh.vtu")
    return folder / "mesh.vtu"


def text_mesh(folder: Path, old: str, new: str) -> Path:
    path, data = folder / "text.vtu", {"u": np.arange(18.0).reshape(6, 3)}
    meshio.vtu.write(path, meshio.Mesh(POINTS, CELLS, data), binary=False)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def pieces(folder: Path) -> Path:
    """Write a mesh of two pieces, as each rank of a solver writes one."""
    path = text_mesh(folder, "", "")
    start, middle, end = re.split("(<Piece.*</Piece>)", path.read_text(), flags=re.DOTALL)
    path.write_text(start + middle + middle + end)
    return path


def tagged(folder: Path, *fields: str) -> Path:
    """Write integer values of points that change."""
    for step in range(3):
        data = {**dict.fromkeys(fields, np.ones(6)), "wet": (np.arange(6) > step).astype(np.int64)}
        meshio.Mesh(POINTS, CELLS, data).write(folder / f"flow_{step}.vtu")
    return pvd(folder, [0, 1, 2])


def gmsh(folder: Path) -> Path:
    """Write two steps of a field into one file."""
    path = folder / "steps.msh"
    meshio.gmsh.write(path, meshio.Mesh(POINTS, CELLS, {"T": np.ones(6)}), "2.2")
    content = path.read_bytes()
    path.write_bytes(content + content[content.index(b"$NodeData") :])
    return path


NAN = np.where(np.arange(6) == 2, np.inf, 0)
QUADRATIC_WEDGE = f"""# vtk DataFile Version 2.0
one
ASCII
DATASET UNSTRUCTURED_GRID
POINTS 15 float
{" ".join(map(str, range(45)))}
CELLS 1 16
15 {" ".join(map(str, range(15)))}
CELL_TYPES 1
26
"""

BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "points move": (
        lambda f: replace(f, points=POINTS * 2),
        "flow_2.vtu: has other points or cells",
    ),
    "cells change": (
        lambda f: replace(f, cells=CELLS[1:] + CELLS[:1]),
        "has other points or cells",
    ),
    "groups change": (
        lambda f: tagged(f, "u"),
        "flow_1.vtu: the integers wet differ",
    ),
    "groups alone change": (tagged, "flow_1.vtu: the integers wet differ"),
    "several pieces": (pieces, "text.vtu: has 2 pieces, of which meshio reads the cells of"),
    "cells that meshio leaves out": (
        lambda f: text_mesh(f, "9\n5\n5\n", "11\n5\n5\n"),
        r"text.vtu: File contains cells that meshio cannot handle \(type 11\). Export it again",
    ),
    "a field that meshio leaves out": (
        lambda f: text_mesh(
            f, 'Name="u" NumberOfComponents="3"', 'Name="u" NumberOfComponents="4"'
        ),
        "text.vtu: VTU file corrupt.* Export it again",
    ),
    "binary data of other machines": (
        lambda f: edit(f, 'Format="Binary"', 'Format="Binary" Endian="Big"', form="Binary"),
        'bin: meshio ignores Endian="Big"; write the data as HDF',
    ),
    "several steps of gmsh": (gmsh, "steps.msh: has several steps, of which"),
    "fewer cells": (lambda f: replace(f, cells=CELLS[:1]), "has other points or cells"),
    "no field": (lambda f: replace(f, data={"u": np.ones((6, 3))}), "flow_2.vtu: T is missing"),
    "other shape": (
        lambda f: replace(f, data={"u": np.ones((6, 2)), "T": np.ones(6)}),
        r"u has shape \(6, 2\)|u has shape \(6, 3\)",
    ),
    "infinite": (
        lambda f: replace(f, data={"u": np.ones((6, 3)), "T": NAN}),
        "step 2: node 2 has the value inf",
    ),
    "order": (lambda f: pvd(f, [0, 2, 1]), "flow.pvd: step 2 is at 1|step 2 is at 1, and step 1"),
    "one time": (lambda f: pvd(f, [0, 1, 1]), "several files for one time"),
    "a file is not there": (lambda f: pvd(f, [0, 1, 2, 3]), "flow_3.vtu: no such file"),
    "empty list": (lambda f: pvd(f, []), "lists no file"),
    "no list": (lambda f: text_file(f, "a.pvd", "<VTK"), "a.pvd: is no list of files"),
    "xdmf order": (
        lambda f: series(f / "flow.xdmf", times=(0, 2, 1)),
        "step 2 is at 1, and step 1",
    ),
    "xdmf series of equal names": (
        with_another_series,
        r"flow\.xdmf: has two data of one name among .*; rename one",
    ),
    "xdmf series of other times": (
        lambda f: with_another_series(f, ('Value="0.5"', 'Value="0.75"')),
        r"flow\.xdmf: has several series of different times; write a file for each",
    ),
    "xdmf without its data": (
        lambda f: edit(f, "flow.h5", "gone.h5"),
        r"gone\.h5: no such file; .*flow\.xdmf keeps data in it",
    ),
    "xdmf of other data": (
        lambda f: edit(f, ":/data2", ":/data99"),
        "flow.xdmf: meshio cannot read",
    ),
    "xdmf of huge size": (
        lambda f: edit(f, 'Dimensions="6 3"', 'Dimensions="999999999999 3"', form="XML"),
        "flow.xdmf: meshio cannot read it",
    ),
    "no xml": (lambda f: text_file(f, "a.xdmf", "<Xdmf"), "a.xdmf: meshio cannot read it"),
    "quadratic wedges": (
        lambda f: text_file(f, "a.vtk", QUADRATIC_WEDGE),
        r"a.vtk: meshio cannot read it \('wedge15'\); .* with linear cells",
    ),
    "no mesh": (lambda f: text_file(f, "a.msh", "nothing"), "a.msh: meshio cannot read it"),
    "no file": (lambda f: f / "none.vtu", "none.vtu: no such file"),
    "cells without edges": (
        lambda f: single(f, cells=[("vertex", [[0], [1]])]),
        "has no cell with an",
    ),
    "point of a cell": (
        lambda f: single(f, cells=[("line", [[0, 9]])]),
        "a line has a point outside 0",
    ),
    "position": (lambda f: single(f, points=POINTS * np.nan), "node 0 has the value nan"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_told_in_one_line(
    tmp_path: Path, make: Callable[[Path], Path], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files(tmp_path)
    path = make(tmp_path)
    with pytest.raises(InputError, match=message) as error:
        convert(path, tmp_path / "out.h5", format_name="mesh")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out.h5").exists()


def test_an_xdmf_that_changes_its_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = series(tmp_path / "flow.xdmf", form="XML")
    moved = (
        '<Geometry GeometryType="XYZ"><DataItem DataType="Float" Dimensions="6 3" Format="XML" '
        f'Precision="8">{" ".join(map(str, POINTS.ravel() + 1))}</DataItem></Geometry>'
    )
    text = path.read_text()
    place = text.rindex("<Time")
    path.write_text(text[:place] + moved + text[place:])
    with pytest.raises(InputError, match="step 2: has other points or cells than the first"):
        read(path)


def test_without_meshio_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = single(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "meshio", None)
    with pytest.raises(InputError, match=r"needs meshio; pip install meshio, as hpcgnn\[mesh\]"):
        read(path)
