"""Read variables of NetCDF files: version 3 by SciPy, version 4 (which is HDF5) by h5py."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import require_file
from hpcgnn.storage.datasets import damaged, format_errors
from hpcgnn.storage.files import SIGNATURE, open_file
from hpcgnn.typing import Array

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


@dataclass(frozen=True)
class NetCDFVariable:
    """A variable: the names of its `dimensions`, its `shape`, `dtype` and attributes (`about`).

    `read(index)` returns the stored values at a NumPy index.
    """

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    about: Mapping[str, Any]
    read: Callable[[Any], Array]


def read_netcdf(path: Path) -> dict[str, NetCDFVariable]:
    """Return the variables of a file by name; their values are read on demand.

    Raises `InputError` for a file that is not NetCDF or cannot be read.
    """
    require_file(path)
    with format_errors(path, "file"):
        with path.open("rb") as file:
            head = file.read(len(SIGNATURE))
        if head == SIGNATURE:
            return _of_version_4(path)
        if head[:4] == b"CDF\x05":
            raise InputError(
                f"{path}: is NetCDF 3 with 64-bit data; nccopy -k nc4 makes it NetCDF 4"
            )
        if head[:3] == b"CDF":
            return _of_version_3(path)
    raise InputError(f"{path}: is not a NetCDF file of version 3 or 4; check the path")


def _of_version_3(path: Path) -> dict[str, NetCDFVariable]:
    with _opened_3(path) as file:
        return {name: _described(path, name, variable) for name, variable in file.variables.items()}


@contextmanager
def _opened_3(path: Path) -> Iterator[Any]:
    from scipy.io import netcdf_file  # noqa: PLC0415  (training imports this module, and not SciPy)

    with warnings.catch_warnings():
        # SciPy warns about arrays that outlive their file; all are copied before it closes.
        warnings.simplefilter("ignore", RuntimeWarning)
        with path.open("rb") as stream, netcdf_file(stream, "r", mmap=True) as file:
            yield file


def _described(path: Path, name: str, variable: Any) -> NetCDFVariable:
    about = {key: _plain(value) for key, value in variable._attributes.items()}
    dtype = np.dtype(variable.data.dtype)
    dimensions, shape = tuple(variable.dimensions), tuple(variable.shape)
    return NetCDFVariable(dimensions, shape, dtype, about, partial(_read_3, path, name))


def _read_3(path: Path, name: str, index: Any) -> Array:
    with format_errors(path, name), _opened_3(path) as file:
        return np.array(file.variables[name][index])


def _of_version_4(path: Path) -> dict[str, NetCDFVariable]:
    file, variables = open_file(path, None), {}
    for name, item in file.items():
        if item is None:
            raise damaged(path, name, "cannot be read")
        scale = item.attrs.get("NAME", b"")
        if not isinstance(item, h5py.Dataset) or bytes(scale).startswith(_NO_VARIABLE):
            continue
        dimensions = tuple(
            str(axis[0].name).rpartition("/")[2] if len(axis) else name for axis in item.dims
        )
        about = {key: _plain(item.attrs[key]) for key in item.attrs if key not in _OF_HDF5}
        # NetCDF puts this before a variable named like a dimension that is not its only one.
        variables[name.removeprefix("_nc4_non_coord_")] = NetCDFVariable(
            dimensions, item.shape, item.dtype, about, partial(_read_4, path, name, item)
        )
    return variables


_OF_HDF5 = frozenset({"DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME"})


def _read_4(path: Path, name: str, variable: h5py.Dataset, index: Any) -> Array:
    with format_errors(path, name):
        return np.array(variable[index])


def _plain(value: Any) -> Any:
    """Return bytes as text, and an array of one number as that number."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    array = np.asarray(value)
    return array.reshape(-1)[0] if array.size == 1 else value
