"""Grids in NetCDF: each grid point is a node, joined to the next one on each axis; fields in time.

As in the CF conventions, a variable named like its dimension holds the coordinates of that axis,
and one whose unit is "... since ..." holds the times. A dimension may also be named as time.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from hpcgnn.console import report
from hpcgnn.convert.read.arrays import matrix_features
from hpcgnn.convert.read.edges import edge_spans
from hpcgnn.convert.series import FieldArray, join_fields
from hpcgnn.convert.source import (
    ConvertOptions,
    EdgeChunk,
    EdgeStream,
    GraphSource,
    NodeArrays,
)
from hpcgnn.errors import InputError
from hpcgnn.storage.netcdf import NetCDFVariable, read_netcdf
from hpcgnn.typing import Array, FloatArray, Mask

_CIRCLE = 360.0
_MISSING = ("_FillValue", "missing_value")
_LIMITS: Mapping[str, Callable[..., Mask]] = MappingProxyType(
    {"valid_min": np.less, "valid_max": np.greater}
)
_DEFAULT_FILL: Mapping[str, float] = MappingProxyType(
    {
        **dict.fromkeys(("f4", "f8"), 9.969209968386869e36),
        **{f"i{size}": 1 - 2 ** (8 * size - 1) for size in (2, 4)},
        **{f"u{size}": 2 ** (8 * size) - 1 for size in (2, 4)},
        "i8": 2 - 2**63,
        "u8": 2**64 - 2,
    }
)
"""NetCDF's default fill values, for variables that declare no other."""


def read(path: Path, options: ConvertOptions) -> GraphSource:
    """Read the grid of the file `path`; raises `InputError`."""
    del options
    variables = read_netcdf(path)
    numeric = {name: v for name, v in variables.items() if v.dtype.kind in "iuf"}
    axes = {name: v for name, v in numeric.items() if v.dimensions == (name,)}
    time, clock = _time(numeric)
    grid = _grid(path, numeric, time)
    fields = {name: v for name, v in numeric.items() if v.dimensions == (time, *grid)}
    static = {name: v for name, v in numeric.items() if v.dimensions == grid}
    shape = next(iter({**fields, **static}.values())).shape[-len(grid) :]
    coordinates: list[FloatArray] = []
    box: list[float] = []
    around: list[bool] = []
    notes = ""
    for name, length in zip(grid, shape, strict=True):
        values = _coordinates(axes[name]) if name in axes else np.arange(length, dtype=np.float64)
        if not np.isfinite(values).all():
            raise InputError(f"{path}: {name} is not finite everywhere; fill in the coordinates")
        coordinates.append(values)
        if name not in axes:
            notes += f"; {name} has no coordinates, and counts points"
        elif _is_longitude(axes[name]) and np.isclose(abs(values[-1] - values[0]), _CIRCLE):
            notes += f"; {name} ends where it begins: without its last point the globe is joined"
        period, is_ring = _period(axes[name], values) if name in axes else (0.0, False)
        box.append(period)
        around.append(is_ring)
    if time is not None and not fields:
        _check_fields(path, numeric, time, grid)
    told = " and ".join(f"{name} ({length})" for name, length in zip(grid, shape, strict=True))
    at_times = f"the times {clock or f'0, 1, ... of {time}'}" if time else "no times"
    report(f"{path}: a grid of {told}, at {at_times}{notes}")
    points = np.meshgrid(*coordinates, indexing="ij")
    # In CF the last axis is x, unless the first axis is a longitude.
    order = range(len(grid))[:: 1 if grid[0] in axes and _is_longitude(axes[grid[0]]) else -1]
    count = int(np.prod(shape))
    known = {name: _values(variable, ...).reshape(count) for name, variable in static.items()}
    features = {name: values for name, values in known.items() if np.isfinite(values).all()}
    if features:
        report(f"{path}: features are {', '.join(features)}")
    if holes := sorted(known.keys() - features.keys()):
        report(f"{path}: left out, since some points have no value: {', '.join(holes)}")
    series = None
    if time is not None and fields:
        arrays = [_field(path, name, variable) for name, variable in fields.items()]
        unit = str(numeric[clock].about.get("units", "")).partition(" since ")[0] if clock else ""
        times = _coordinates(numeric[clock]) if clock else None
        series = join_fields(arrays, times, unit=unit, where=f"{path}: {clock}")
    used = {*fields, *features, *grid, clock}
    return GraphSource(
        path=path,
        edges=partial(_edges, path, shape, tuple(around)),
        inputs=(path,),
        num_nodes=count,
        counted=True,
        undirected=True,
        nodes=NodeArrays(
            features=matrix_features(
                np.stack(list(features.values()), axis=1, dtype=_dtype_of(static, features)),
                str(path),
                names=tuple(features),
            )
            if features
            else None,
            positions=np.stack([points[axis].reshape(-1) for axis in order], axis=1),
            box=tuple(box[axis] for axis in order),
            series=series,
        ),
        ignored=tuple(sorted(set(variables) - used)),
    )


def _time(variables: Mapping[str, NetCDFVariable]) -> tuple[str | None, str | None]:
    """Return the dimension of time, and the variable that holds the times; None if there is none.

    The dimension leads a variable if any such one does.
    """
    leading = {v.dimensions[0] for v in variables.values() if len(v.dimensions) > 1}
    found = {
        name: v.dimensions[0]
        for name, v in variables.items()
        if len(v.dimensions) == 1 and " since " in str(v.about.get("units", ""))
    }
    order = sorted(found, key=lambda name: (found[name] not in leading, found[name] != name))
    if order:
        return found[order[0]], order[0]
    for name in sorted(leading):
        if name.lower() == "t" or name.lower().endswith("time"):
            known = name in variables and variables[name].dimensions == (name,)
            return name, name if known else None
    return None, None


def _check_fields(
    path: Path, variables: Mapping[str, NetCDFVariable], time: str, grid: tuple[str, ...]
) -> None:
    """Raise `InputError` if values over `time` are on a list of points, as of an unstructured mesh.

    Bounds of times, which have two values each, are no such values.
    """
    for name, variable in variables.items():
        first, *others = variable.dimensions or ("",)
        if first == time and len(others) == 1 and others[0] not in grid and variable.shape[1] > 2:
            raise InputError(
                f"{path}: {name} is on {others[0]}, which is no axis of the grid "
                f"{', '.join(grid)}; convert an unstructured mesh from another format, such as .vtu"
            )


def _grid(path: Path, variables: Mapping[str, NetCDFVariable], time: str | None) -> tuple[str, ...]:
    """Return the dimensions of the largest grid of two or three axes with variables."""
    sizes: dict[tuple[str, ...], int] = {}
    for name, variable in variables.items():
        if time is not None and time in variable.dimensions[1:]:
            raise InputError(
                f"{path}: {name} has the dimensions {', '.join(variable.dimensions)}; put {time} "
                "first"
            )
        grid = tuple(dimension for dimension in variable.dimensions if dimension != time)
        if len(grid) in (2, 3) and len(set(grid)) == len(grid):
            # Time steps count: fields outweigh static variables, such as bounds of cells.
            sizes[grid] = max(sizes.get(grid, 0), int(np.prod(variable.shape)))
    if not sizes or not max(sizes.values()):
        raise InputError(
            f"{path}: has no variable on a grid of two or three axes; convert a mesh from another "
            "format, such as .vtu"
        )
    return max(sizes, key=lambda grid: sizes[grid])


def _values(variable: NetCDFVariable, where: object) -> FloatArray:
    """Return unpacked values, NaN where missing, in the dtype that `_dtype` chooses."""
    stored, about = _with_sign(variable.read(where), variable.about)
    missing = _missing(stored, about)
    values = stored.astype(_dtype(variable))
    if "scale_factor" in about:
        values *= values.dtype.type(about["scale_factor"])
    if "add_offset" in about:
        values += values.dtype.type(about["add_offset"])
    values[missing] = np.nan
    return values


def _with_sign(stored: Array, about: Mapping[str, Any]) -> tuple[Array, Mapping[str, Any]]:
    """Return values and attributes as signed or unsigned integers, as `_Unsigned` says.

    NetCDF 3 has no unsigned integers: they are stored as signed ones with the same bits.
    """
    kind = {"true": "u", "false": "i"}.get(str(about.get("_Unsigned", "")).lower())
    if kind is None or stored.dtype.kind not in "iu":
        return stored, about

    def with_sign(values: Any) -> Any:
        array = np.asarray(values)
        same = array.dtype.kind in "iu" and array.itemsize == stored.itemsize
        return array.view(f"{array.dtype.byteorder}{kind}{array.itemsize}") if same else values

    keys = (*_MISSING, "valid_range", *_LIMITS)
    return with_sign(stored), {key: with_sign(v) if key in keys else v for key, v in about.items()}


def _missing(stored: Array, about: Mapping[str, object]) -> Mask:
    """Return a mask of missing values; `stored` are values before unpacking."""
    dtype, missing = stored.dtype, np.zeros(stored.shape, np.bool_)
    default = _DEFAULT_FILL.get(dtype.str[1:])
    declared = [np.ravel(np.asarray(about[key])) for key in _MISSING if key in about]
    for values in declared or ([] if default is None else [np.array([default])]):
        for value in values if values.dtype.kind in "iuf" else ():
            # Some files give it as a double, and float32 data hold the nearest float32.
            missing |= stored == (value.astype(dtype) if dtype.kind == "f" else value)
    ends = np.ravel(np.asarray(about.get("valid_range", ())))
    limits = dict(zip(_LIMITS, ends, strict=True)) if len(ends) == len(_LIMITS) else {}
    limits |= {key: about[key] for key in _LIMITS if key in about}
    for key, limit in limits.items():
        # A limit of another type is for unpacked values, or a mistake.
        if np.asarray(limit).dtype.kind == dtype.kind:
            missing |= _LIMITS[key](stored, limit)
    return missing


def _coordinates(axis: NetCDFVariable) -> FloatArray:
    return _values(axis, slice(None)).astype(np.float64)


def _dtype(variable: NetCDFVariable) -> np.dtype[np.floating]:
    small = variable.dtype.itemsize < 4 or variable.dtype == np.dtype(np.float32).newbyteorder(
        variable.dtype.byteorder
    )
    scale, offset = (float(variable.about.get(key, 0)) for key in ("scale_factor", "add_offset"))
    # Float32 would round a small step from a large offset.
    small &= not scale or np.spacing(np.float32(offset)) < abs(scale) / 8
    return np.dtype(np.float32 if small else np.float64)


def _dtype_of(
    static: Mapping[str, NetCDFVariable], features: Mapping[str, FloatArray]
) -> np.dtype[np.floating]:
    """Return float64 if a feature is a float64 variable, else float32."""
    wide = any(
        static[name].dtype.kind == "f" and static[name].dtype.itemsize > 4 for name in features
    )
    return np.dtype(np.float64 if wide else np.float32)


def _is_longitude(axis: NetCDFVariable) -> bool:
    east = str(axis.about.get("units", "")).startswith(("degrees_e", "degree_e"))
    return east or axis.about.get("standard_name") == "longitude"


def _period(axis: NetCDFVariable, values: FloatArray) -> tuple[float, bool]:
    """Return 360 for longitudes that jump, or go around the globe, else 0; and whether they do."""
    if not _is_longitude(axis) or len(values) < 3:
        return 0.0, False
    unrolled = np.unwrap(values, period=_CIRCLE)
    around = len(values) * abs(unrolled[-1] - unrolled[0]) / (len(values) - 1)
    is_ring = bool(np.isclose(around, _CIRCLE, rtol=1e-3))
    return _CIRCLE if is_ring or (unrolled != values).any() else 0.0, is_ring


def _field(path: Path, name: str, variable: NetCDFVariable) -> FieldArray:
    first, inner = variable.shape[1], int(np.prod(variable.shape[2:]))

    def read_rows(step: int, start: int, stop: int) -> Array:
        low, high = start // inner, -(-stop // inner)
        block = _values(variable, (step, slice(low, high))).reshape(-1)
        return block[start - low * inner : stop - low * inner]

    return FieldArray(
        name=name,
        shape=(variable.shape[0], first * inner),
        dtype=_dtype(variable),
        read=read_rows,
        where=f"{path}: {name}",
        unit=str(variable.about.get("units", "")),
    )


def _edges(path: Path, shape: tuple[int, ...], around: tuple[bool, ...]) -> EdgeStream:
    count = int(np.prod(shape))
    for span in edge_spans(count):
        nodes = np.arange(span.start, span.stop)
        indices = np.unravel_index(nodes, shape)
        for axis, length in enumerate(shape):
            following = list(indices)
            following[axis] = (indices[axis] + 1) % length
            joined = np.flatnonzero((indices[axis] + 1 < length) | around[axis])
            ends = nodes[joined], np.ravel_multi_index(following, shape)[joined]
            yield EdgeChunk(*ends, partial(_locate, path, nodes[joined]))


def _locate(path: Path, nodes: Array, edge: int) -> str:
    return f"{path}, grid point {nodes[edge]}"
