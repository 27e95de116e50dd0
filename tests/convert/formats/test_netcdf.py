"""NetCDF grids become graphs with fields: versions 3 and 4, packed values, whole globes."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.io import netcdf_file

from hpcgnn.convert import ConvertOptions
from hpcgnn.convert.formats.registry import convert, detect
from hpcgnn.errors import InputError
from hpcgnn.storage import GraphStore

LATS, LONS = np.array([-45.0, 0.0, 45.0]), np.arange(0, 360, 72.0)
HOURS = np.array([0.0, 6.0, 12.0, 18.0])
RNG = np.random.default_rng(4)
WIND = RNG.normal(size=(4, 3, 5)).astype(np.float32)
HEAT = RNG.integers(-300, 300, (4, 3, 5)).astype(np.int16)
HEAT[1, 2, 3] = -999
LAND = (RNG.random((3, 5)) < 0.5).astype(np.float64)
Variables = dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, object]]]
GLOBE: Variables = {
    "time": (("time",), HOURS, {"units": "hours since 2000-01-01"}),
    "lat": (("lat",), LATS, {"units": "degrees_north"}),
    "lon": (("lon",), LONS, {"units": "degrees_east"}),
    "wind": (("time", "lat", "lon"), WIND, {"units": "m/s"}),
    "heat": (
        ("time", "lat", "lon"),
        HEAT,
        {"scale_factor": 0.5, "add_offset": 273.0, "_FillValue": np.int16(-999), "units": "K"},
    ),
    "land": (("lat", "lon"), LAND, {}),
    "bounds": (("lat", "two"), np.stack([LATS - 1, LATS + 1], axis=1), {}),
}


def write_3(path: Path, variables: Variables) -> None:
    with netcdf_file(path, "w") as file:
        for dimensions, values, _ in variables.values():
            for name, length in zip(dimensions, values.shape, strict=True):
                if name not in file.dimensions:
                    file.createDimension(name, None if name == "time" else length)
        for name, (dimensions, values, about) in variables.items():
            made = file.createVariable(name, values.dtype, dimensions)
            made[:] = values
            for key, value in about.items():
                setattr(made, key, value)


def write_4(path: Path, variables: Variables) -> None:
    with h5py.File(path, "w") as file:
        scales = {}
        for name, (dimensions, values, _) in variables.items():
            file[name] = values
            if dimensions == (name,):
                file[name].make_scale(name)
                scales[name] = file[name]
        for name, (dimensions, values, about) in variables.items():
            for axis, dimension in enumerate(dimensions):
                if dimension not in scales:
                    file[dimension] = np.zeros(values.shape[axis], np.float32)
                    said = f"This is a netCDF dimension but not a netCDF variable. {3:10}"
                    file[dimension].make_scale(said)
                    scales[dimension] = file[dimension]
                if dimension != name:
                    file[name].dims[axis].attach_scale(scales[dimension])
            file[name].attrs.update(about)


def converted(path: Path) -> GraphStore:
    name, _ = detect(path)
    assert name == "netcdf"
    convert(path, path.with_suffix(".h5"), format_name=name, options=ConvertOptions())
    return GraphStore.open(path.with_suffix(".h5"))


@pytest.mark.parametrize("write", [write_3, write_4])
def test_a_globe_is_a_graph_with_fields(
    tmp_path: Path, write: Callable[[Path, Variables], None]
) -> None:
    write(tmp_path / "globe.nc", GLOBE)
    with converted(tmp_path / "globe.nc") as store:
        assert store.num_nodes == 15
        ring = sp.diags_array([1.0, 1.0], offsets=[1, -1], shape=(5, 5)).tolil()
        ring[0, 4] = ring[4, 0] = 1
        line = sp.diags_array([1.0, 1.0], offsets=[1, -1], shape=(3, 3))
        expected = sp.kron(sp.eye_array(3), ring) + sp.kron(line, sp.eye_array(5))
        block = store.read_adjacency(0, 15, "")
        found = sp.csr_array((np.ones(len(block.indices)), block.indices, block.indptr), (15, 15))
        np.testing.assert_array_equal(found.toarray(), expected.toarray())
        lats, lons = np.meshgrid(LATS, LONS, indexing="ij")
        np.testing.assert_array_equal(
            store.read_positions(0, 15), np.stack([lons.ravel(), lats.ravel()], axis=1)
        )
        assert store.box == (360, 0)
        np.testing.assert_array_equal(store.times, HOURS)
        assert store.time_unit == "hours"
        assert {name: each.unit for name, each in store.fields.items()} == {
            "heat": "K",
            "wind": "m/s",
        }
        heat = np.where(HEAT == -999, np.nan, 0.5 * HEAT + 273)
        for step in range(4):
            # Rows that begin and end inside a line.
            np.testing.assert_array_equal(
                store.read_field("wind", step, 3, 12)[:, 0], WIND[step].reshape(-1)[3:12]
            )
            np.testing.assert_allclose(
                store.read_field("heat", step, 0, 15)[:, 0], heat[step].ravel(), rtol=1e-6
            )
        features = store.read_nodes(0, 15).features
        np.testing.assert_array_equal(features[:, 0], LAND.ravel())


WAYS: dict[str, tuple[str, dict[str, object], list[float]]] = {
    # The type of values, their attributes, and the values for 1, 2, 3 and a missing one.
    "a double beside floats": ("f4", {"missing_value": np.float64(1e20)}, [1e20]),
    "both": ("f4", {"missing_value": np.float64(1e20), "_FillValue": np.float32(-1)}, [1e20, -1]),
    "several": ("f8", {"missing_value": np.array([-1.0, -2.0])}, [-1, -2]),
    "not a number": ("f4", {"_FillValue": np.float32(np.nan)}, [np.nan]),
    "never written": ("f4", {}, [9.96921e36]),
    "never written, whole": ("i2", {}, [-32767]),
    "never written, long": ("i8", {}, [-(2**63) + 2]),
    "never written, no sign": ("u2", {}, [65535]),
    "never written, long, no sign": ("u8", {}, [2**64 - 2]),
    "another fill": ("i2", {"_FillValue": np.int16(7)}, [7]),
    "range": ("i2", {"valid_range": np.array([1, 3], np.int16)}, [0, 4]),
    "least": ("f8", {"valid_min": np.float64(0.5)}, [0.25]),
    "most": ("f4", {"valid_max": np.float32(3)}, [3.5]),
    "range of another type": ("i2", {"valid_range": np.array([1.5, 3])}, []),
    "words": ("f4", {"missing_value": "none", "valid_range": np.float32(2)}, []),
    "without a sign": ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-6)}, [-6]),
    "range without a sign": (
        "i1",
        {"_Unsigned": "true", "valid_range": np.array([0, -6], np.int8)},
        [-5, -1],
    ),
    "no whole number": ("i2", {"missing_value": np.float64(1e20)}, []),
}


def test_places_without_any_value_are_counted(tmp_path: Path) -> None:
    sea, depth = WIND.copy(), WIND.astype(np.float64)
    sea[:, :2, 1], sea[1, 2] = np.nan, np.nan
    changes = {"wind": (*GLOBE["wind"][:1], sea, {}), "depth": (*GLOBE["wind"][:1], depth, {})}
    write_4(tmp_path / "sea.nc", {**GLOBE, **changes})
    report = convert(tmp_path / "sea.nc", tmp_path / "sea.h5", format_name="netcdf")
    assert report.missing_values == {
        "heat": 1,
        "wind": 2 * 4 + 5,
        "wind, nodes without any value": 2,
    }


def test_numbers_without_a_sign(tmp_path: Path) -> None:
    about = {"_Unsigned": "true", "scale_factor": np.float32(0.5), "_FillValue": np.int16(-1)}
    values = np.array([[[0, 1, 32767], [-32768, -2, -1]]], np.int16)
    time = (("time",), np.zeros(1), {"units": "s since 2000-01-01"})
    write_3(tmp_path / "a.nc", {"time": time, "u": (("time", "y", "x"), values, about)})
    with converted(tmp_path / "a.nc") as store:
        found = store.read_field("u", 0, 0, 6)[:, 0]
    np.testing.assert_array_equal(found, [0, 0.5, 16383.5, 16384, 32767, np.nan])
    values, about = values.view(np.uint16), {"_Unsigned": "false"}
    write_4(tmp_path / "a.nc", {"time": time, "u": (("time", "y", "x"), values, about)})
    with converted(tmp_path / "a.nc") as store:
        found = store.read_field("u", 0, 0, 6)[:, 0]
    np.testing.assert_array_equal(found, [0, 1, 32767, -32768, -2, -1])


def test_what_is_there_once_has_a_value_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    depth = np.where(LAND > 0, -999.0, 7.0)
    more: Variables = {
        "depth": (("lat", "lon"), depth, {"_FillValue": -999.0}),
        "flag": (("lat", "lon"), np.full(LAND.shape, b"A"), {}),
    }
    write_4(tmp_path / "sea.nc", {**GLOBE, **more})
    with converted(tmp_path / "sea.nc") as store:
        assert store.num_features == 1
    assert "left out, since some points have no value: depth" in capsys.readouterr().err


def test_longitudes_may_come_first(tmp_path: Path) -> None:
    turned = {name: each for name, each in GLOBE.items() if name in ("time", "lat", "lon")}
    turned["wind"] = (("time", "lon", "lat"), WIND.transpose(0, 2, 1), {})
    write_4(tmp_path / "globe.nc", turned)
    with converted(tmp_path / "globe.nc") as store:
        assert store.box == (360, 0)
        np.testing.assert_array_equal(store.read_positions(0, 3), [[0, -45], [0, 0], [0, 45]])


@pytest.mark.parametrize(
    ("lons", "units", "period", "is_ring"),
    [
        ([72.0, 144, 216, 288, 0], {"units": "degrees_east"}, 360, True),
        ([0.0, 72, 144, 216, 288], {"units": "degrees", "standard_name": "longitude"}, 360, True),
        ([0.0, 90, 180, 270, 360], {"units": "degrees_east"}, 0, False),
        ([170.0, 175, 180, -175, -170], {"units": "degrees_east"}, 360, False),
        ([160.0, 165, 170, 175, 180], {"units": "degrees_east"}, 0, False),
        ([0.0, 72, 144, 216, 288], {"units": "m"}, 0, False),
    ],
)
def test_longitudes_may_begin_anywhere(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    lons: list[float],
    units: dict[str, object],
    period: float,
    is_ring: bool,
) -> None:
    changes: Variables = {"lon": (("lon",), np.array(lons), units)}
    write_4(tmp_path / "globe.nc", {**GLOBE, **changes})
    with converted(tmp_path / "globe.nc") as store:
        assert store.box == (period, 0)
        assert store.read_positions(0, 5)[:, 0].tolist() == lons
        assert (4 in store.read_adjacency(0, 1).indices) == is_ring
    told = "lon ends where it begins: without its last point the globe is joined"
    assert (told in capsys.readouterr().err) == (lons[-1] == 360)


def with_time(name: str, units: str | None, *, own: bool = True) -> Variables:
    """Return a file whose time dimension is `name`, and holds the times itself, or `clock` does."""
    named = {"units": units} if units else {}
    times: Variables = {name if own else "clock": ((name,), HOURS, named)}
    return {**(times if units is not None else {}), "u": ((name, "lat", "lon"), WIND, {})}


@pytest.mark.parametrize("write", [write_3, write_4])
@pytest.mark.parametrize(
    ("variables", "times", "unit", "told"),
    [
        (with_time("t", ""), HOURS, "", "at the times t"),
        (
            with_time("Time", "minutes since 2000-01-01", own=False),
            HOURS,
            "minutes",
            "at the times clock",
        ),
        (with_time("ocean_time", None), np.arange(4.0), "", "at the times 0, 1, ... of ocean_time"),
        (with_time("step", "s since 2000-01-01"), HOURS, "s", "at the times step"),
    ],
)
def test_time_is_no_axis_of_the_grid(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    write: Callable[[Path, Variables], None],
    variables: Variables,
    times: np.ndarray,
    unit: str,
    told: str,
) -> None:
    write(tmp_path / "a.nc", variables)
    with converted(tmp_path / "a.nc") as store:
        assert (store.num_nodes, store.time_unit) == (15, unit)
        np.testing.assert_array_equal(store.times, times)
        for step in range(4):
            np.testing.assert_array_equal(
                store.read_field("u", step, 0, 15)[:, 0], WIND[step].ravel()
            )
    line = capsys.readouterr().err
    assert f"a.nc: a grid of lat (3) and lon (5), {told}; lat has no" in line


@pytest.mark.parametrize(
    ("scale", "offset", "kind"),
    [(0.01, 101325, "f8"), (1e-4, 1000, "f8"), (1e-3, 273.15, "f4"), (0.5, 0, "f4")],
)
def test_packed_values_keep_their_steps(
    tmp_path: Path, scale: float, offset: float, kind: str
) -> None:
    about: dict[str, object] = {"scale_factor": scale, "add_offset": offset}
    write_4(tmp_path / "a.nc", {**GLOBE, "heat": (("time", "lat", "lon"), HEAT, about)})
    with converted(tmp_path / "a.nc") as store:
        assert store.fields["heat"].dtype == np.dtype(kind)
        found = store.read_field("heat", 1, 0, 15)[:, 0]
    exact = offset + scale * HEAT[1].ravel().astype(np.float64)
    np.testing.assert_allclose(found, exact, rtol=0, atol=scale / 8)


@pytest.mark.parametrize("write", [write_3, write_4])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_missing(
    tmp_path: Path, write: Callable[[Path, Variables], None], way: str
) -> None:
    kind, about, missing = WAYS[way]
    if write == write_3 and kind in ("i8", "u2", "u8"):
        pytest.skip("NetCDF 3 has no such numbers")
    values = np.array([[*missing, 1, 2, 3], [1, 2, 3, *missing]], None if kind < "i8" else kind)
    values = values.astype(kind)
    shape = ("time", "y", "x")
    time = (("time",), np.zeros(1), {"units": "s since 2000-01-01"})
    write(tmp_path / "a.nc", {"time": time, "u": (shape, values[None], about)})
    with converted(tmp_path / "a.nc") as store:
        found = store.read_field("u", 0, 0, values.size)[:, 0].reshape(values.shape)
    some = np.full(len(missing), np.nan)
    np.testing.assert_array_equal(found, [[*some, 1, 2, 3], [1, 2, 3, *some]])


@pytest.mark.parametrize("write", [write_3, write_4])
def test_three_axes_without_coordinates_or_time(
    tmp_path: Path, write: Callable[[Path, Variables], None]
) -> None:
    values = RNG.normal(size=(2, 3, 4))
    write(tmp_path / "box.nc", {"rho": (("z", "y", "x"), values, {})})
    with converted(tmp_path / "box.nc") as store:
        assert store.num_nodes == 24
        ends = store.read_adjacency(0, 24, "").indices
        # 1 * 12 + 2 * 8 + 3 * 6 edges, in both directions.
        assert len(ends) == 2 * 46
        assert not store.fields
        np.testing.assert_array_equal(
            store.read_positions(0, 24)[:, ::-1],
            np.stack(np.unravel_index(np.arange(24), (2, 3, 4)), 1),
        )
        # Features keep float64, as in other formats.
        np.testing.assert_array_equal(store.read_nodes(0, 24).features[:, 0], values.ravel())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"wind": (("lat", "lon", "time"), WIND.transpose(1, 2, 0), {})}, "put time first"),
        ({"lat": (("lat",), np.array([0, np.nan, 1]), {})}, "lat is not finite everywhere"),
        ({"time": (("time",), HOURS[::-1].copy(), {"units": "s since 1"})}, "times must rise"),
    ],
)
def test_wrong_grids_are_one_line(tmp_path: Path, changes: Variables, told: str) -> None:
    write_4(tmp_path / "bad.nc", {**GLOBE, **changes})
    with pytest.raises(InputError, match=told) as caught:
        converted(tmp_path / "bad.nc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is not a NetCDF file"),
        (b"CDF\x01" + b"\xff" * 40, "cannot be read"),
        (b"CDF\x05" + b"\x00" * 40, "64-bit data; nccopy -k nc4"),
        (b"\x89HDF\r\n\x1a\n" + b"\x00" * 90, "cannot be read"),
    ],
)
def test_damaged_files_are_one_line(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "bad.nc").write_bytes(content)
    with pytest.raises(InputError, match=told) as caught:
        converted(tmp_path / "bad.nc")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("write", [write_3, write_4])
def test_files_with_an_end_or_a_byte_lost_end_in_one_line(
    tmp_path: Path, write: Callable[[Path, Variables], None]
) -> None:
    write(tmp_path / "whole.nc", GLOBE)
    content, path = (tmp_path / "whole.nc").read_bytes(), tmp_path / "cut.nc"
    for length in range(4, len(content), len(content) // 40):
        path.write_bytes(content[:length])
        with pytest.raises(InputError) as caught:
            converted(path)
        assert "\n" not in str(caught.value)
        path.write_bytes(content[:length] + b"\xff" + content[length + 1 :])
        with contextlib.suppress(InputError):
            converted(path).close()


def test_unstructured_meshes_are_refused(tmp_path: Path) -> None:
    bounds = np.stack([HOURS, HOURS + 6], axis=1)
    faces: Variables = {
        "time": GLOBE["time"],
        "time_bounds": (("time", "two"), bounds, {}),
        "faces": (("face", "corner"), np.arange(12).reshape(4, 3), {}),
    }
    write_4(tmp_path / "a.nc", faces)
    with converted(tmp_path / "a.nc") as store:
        assert store.num_nodes == 12
    write_4(tmp_path / "a.nc", {**faces, "u": (("time", "node"), WIND[:, 0], {})})
    with pytest.raises(InputError, match="u is on node, which is no axis of the grid face, corner"):
        converted(tmp_path / "a.nc")


def test_a_file_without_a_grid_is_one_line(tmp_path: Path) -> None:
    write_3(tmp_path / "line.nc", {"u": (("x",), np.arange(4.0), {})})
    with pytest.raises(InputError, match="has no variable on a grid of two or three axes"):
        converted(tmp_path / "line.nc")
