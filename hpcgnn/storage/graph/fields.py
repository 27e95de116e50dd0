"""Describe and write fields, values of nodes and edges over time."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import ArrayLike

from hpcgnn.errors import InputError
from hpcgnn.storage.checksums import array_crc, shift
from hpcgnn.storage.datasets import Column, text_type
from hpcgnn.storage.format import check_text, chunk_shape, encode_json
from hpcgnn.storage.graph import checks, schema
from hpcgnn.typing import Array, FloatArray, Offsets


@dataclass(frozen=True)
class FieldInfo:
    """A field: `num_columns` numbers of type `dtype` for each node, or each edge, and step.

    `unit` is a text, empty if unknown; `components` name the columns, or are empty.
    """

    name: str
    num_columns: int
    dtype: np.dtype[Any]
    unit: str = ""
    components: tuple[str, ...] = ()
    of_edges: bool = False

    def __post_init__(self) -> None:
        where = f"field {self.name!r}"
        schema.check_link_name("field", self.name)
        if self.num_columns < 1 or self.dtype not in schema.FEATURE_DTYPES:
            raise InputError(
                f"{where} has {self.num_columns} columns of {self.dtype}; give at least one of "
                "float16, float32 or float64"
            )
        if len(self.components) not in (0, self.num_columns):
            raise InputError(
                f"{where}: {len(self.components)} components are named for {self.num_columns} "
                "columns; name each or none"
            )
        for text in (self.unit, *self.components):
            if text:
                check_text(f"{where}: unit or component", text)
        encode_json(where, self.attributes)

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of the field's dataset."""
        return {"unit": self.unit, "components": json.dumps(self.components)}

    @property
    def path(self) -> str:
        """The path of the field's dataset."""
        return schema.field_path(self.name, of_edges=self.of_edges)

    @property
    def row_bytes(self) -> int:
        """Bytes of one node, or edge, at one step."""
        return self.num_columns * self.dtype.itemsize


def fields_scalars(
    box: Sequence[float], unit: str, infos: Mapping[str, FieldInfo]
) -> dict[str, object]:
    """Return what the fingerprint includes from attributes of positions and fields."""
    scalars: dict[str, object] = {}
    if box:
        scalars["box"] = json.dumps([float(period) for period in box])
    if infos:
        scalars["times unit"] = unit
    kind = {False: "field", True: "edge field"}
    return scalars | {
        f"{kind[info.of_edges]} {name}": json.dumps(info.attributes) for name, info in infos.items()
    }


class FieldColumn(Column):
    """A dataset (T, rows, F) to which the rows `own` of each step are appended in order."""

    def __init__(
        self,
        file: h5py.File | None,
        path: str,
        dtype: np.dtype[Any],
        shape: tuple[int, int, int],
        own: range,
    ) -> None:
        super().__init__(file, path, dtype, shape[2:])
        self.shape, self.own, self.step = shape, own, 0
        self._chunk = field_chunk(shape[1:], dtype)
        self._step_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._step_crc = 0
        self._written = own.start

    @property
    def described(self) -> tuple[str, str, tuple[int, ...], int]:
        """Path, dtype, shape and checksum, which go into the fingerprint."""
        return self.path, self.dtype.str, self.shape, self.crc

    @property
    def complete(self) -> bool:
        """Whether all own rows of all steps were appended."""
        return self.step == self.shape[0] or not self.own

    def append(self, rows: Array) -> None:
        """Append rows (m, F) of a step, at most those it still lacks."""
        self._step_crc = array_crc(rows, self._step_crc)
        self.rows += len(rows)
        self._gather(rows)
        if self.rows == len(self.own):
            self._end_step()

    def _end_step(self) -> None:
        if self._pending_rows:
            self._write(np.concatenate(self._pending))
        self._pending, self._pending_rows = [], 0
        # In the dataset, rows of other processes lie between those of two steps.
        self.crc = shift(self.crc, self._step_bytes) ^ self._step_crc
        self.step, self.rows, self._step_crc, self._written = self.step + 1, 0, 0, self.own.start

    def _write(self, rows: Array) -> None:
        dataset = self._whole()
        dataset[self.step, self._written : self._written + len(rows)] = rows
        self._written += len(rows)

    def _whole(self) -> h5py.Dataset:
        """Return the dataset, created at its full size."""
        if self._dataset is None:
            self._dataset = self._create(self.shape, self.shape, (1, *self._chunk))
        return self._dataset

    def finish(self) -> None:
        """Record the checksum."""
        self._whole().attrs["crc32"] = np.uint32(self.crc)


def field_chunk(rows_shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the chunk shape of one step (N, F): of about equal chunks, as all are stored whole."""
    most = chunk_shape(rows_shape, dtype.itemsize)[0]
    chunks = -(-rows_shape[0] // most)
    return -(-rows_shape[0] // chunks), *rows_shape[1:]


MakeField: TypeAlias = Callable[[FieldInfo, tuple[int, int, int]], FieldColumn]
"""Makes the dataset of a field from its description and shape."""


class FieldsWriter:
    """Check and append fields; all errors are `InputError`."""

    def __init__(self, path: Path, count: Callable[[FieldInfo], int], make: MakeField) -> None:
        self._path, self._count, self._make = path, count, make
        self._times: FloatArray = np.empty(0)
        self._starts: Offsets = np.zeros(1, np.int64)
        self.unit = ""
        self.infos: dict[str, FieldInfo] = {}
        self.columns: dict[str, FieldColumn] = {}

    def begin(self, times: ArrayLike, trajectory_starts: ArrayLike, unit: str) -> None:
        """Set the times of the steps; repeated calls must give the same times."""
        new = np.asarray(times, np.float64), np.asarray(trajectory_starts, np.int64)
        fault = checks.fault_in_times(*new)
        if fault:
            raise InputError(f"{self._path}: {schema.TIMES}: {fault}")
        if unit:
            check_text("unit of times", unit)
        if len(self._times) and not (
            np.array_equal(self._times, new[0]) and np.array_equal(self._starts, new[1])
        ):
            raise InputError(f"{self._path}: {schema.TIMES}: other times were given before")
        (self._times, self._starts), self.unit = new, unit

    def append(self, name: str, step: int, block: ArrayLike, info: FieldInfo) -> None:
        """Append the next rows of a step; see `StoreWriter.append_field`."""
        column, rows = self.column(name, info), np.asarray(block)
        if rows.ndim != 2 or rows.shape[1] != info.num_columns or rows.dtype.kind not in "biuf":
            kind = f"has shape {rows.shape} and type {rows.dtype}"
            raise self._fault(name, f"step {step} {kind}; give numbers (m, {info.num_columns})")
        if not len(rows):
            return
        if step != column.step or column.rows + len(rows) > len(column.own):
            expected = f"{len(column.own) - column.rows} rows of step {column.step} are missing"
            raise self._fault(name, f"{len(rows)} rows of step {step} are given, but {expected}")
        with np.errstate(over="ignore"):
            stored = rows.astype(info.dtype, copy=False)
        fault = checks.fault_in_field(
            stored, column.own.start + column.rows, of_edges=info.of_edges
        )
        if fault:
            raise self._fault(name, f"step {step}: {fault}")
        column.append(stored)

    def column(self, name: str, info: FieldInfo) -> FieldColumn:
        """Return the dataset of a field, created at the first call."""
        if not len(self._times):
            raise self._fault(name, "is given before the times; give the times first")
        if self.infos.setdefault(name, info) != info or info.name != name:
            raise self._fault(name, f"is {info}, and was {self.infos[name]} before")
        if name not in self.columns:
            shape = (len(self._times), self._count(info), info.num_columns)
            self.columns[name] = self._make(info, shape)
        return self.columns[name]

    def check(self) -> None:
        """Raise `InputError` if rows are missing."""
        for name, column in self.columns.items():
            if not column.complete:
                raise self._fault(name, f"has {column.step} of {column.shape[0]} steps")
        if len(self._times) and not self.columns:
            raise InputError(f"{self._path}: {schema.TIMES}: times are given without a field")

    def finish(self, file: h5py.File, write: Callable[[str, Array], Column]) -> list[Column]:
        """Complete the datasets and their attributes, `write` the times; return all columns."""
        self.check()
        if not self.columns:
            return []
        for name, column in self.columns.items():
            column.finish()
            for key, text in self.infos[name].attributes.items():
                file[column.path].attrs.create(key, text.encode(), dtype=text_type(text))
        times, starts = write(schema.TIMES, self._times), write(schema.STARTS, self._starts)
        unit = self.unit.encode()
        file[schema.TIMES].attrs.create("unit", unit, dtype=text_type(self.unit))
        return [*self.columns.values(), times, starts]

    def _fault(self, name: str, text: str) -> InputError:
        path = self.infos[name].path if name in self.infos else schema.field_path(name)
        return InputError(f"{self._path}: {path}: {text}")
