"""Frames: what a rank reads of one step, the columns of all fields of a run beside each other."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.config.fields import FieldsConfig
from hpcgnn.errors import InputError, instead_of
from hpcgnn.storage import FieldInfo, GraphStore
from hpcgnn.typing import FloatArray, LocalIndices


@dataclass(frozen=True)
class Columns:
    """The columns of a frame: those of the targets first, then those of other inputs.

    `num_targets` counts the fields that are predicted; `inputs` names those that the model reads;
    `time_unit` is that of the steps.
    """

    fields: tuple[FieldInfo, ...]
    num_targets: int
    inputs: tuple[str, ...]
    time_unit: str

    @classmethod
    def of(cls, options: FieldsConfig, store: GraphStore) -> "Columns":
        """Return the columns of a run.

        Raises `InputError` without targets, and for a field that the store lacks.
        """
        if not options.targets and store.fields:
            raise InputError(
                "fields.targets: name the fields to predict; "
                f"{store.path} has {', '.join(store.fields)}"
            )
        for key, names in (("targets", options.targets), ("inputs", options.inputs)):
            for name in names:
                if name not in store.fields:
                    remedy = instead_of(name, store.fields, f"hpcgnn inspect {store.path}")
                    raise InputError(f"fields.{key}: {store.path} has no field {name!r}; {remedy}")
        infos = tuple(store.fields[name] for name in options.names)
        return cls(infos, len(options.targets), options.read, store.time_unit)

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where the columns of each field are in a frame."""
        ends = np.cumsum([0, *(each.num_columns for each in self.fields)]).tolist()
        return {
            each.name: slice(start, stop)
            for each, start, stop in zip(self.fields, ends, ends[1:], strict=False)
        }

    @property
    def width(self) -> int:
        """Columns of a frame."""
        return sum(each.num_columns for each in self.fields)

    @property
    def targets(self) -> tuple[FieldInfo, ...]:
        """The fields that are predicted."""
        return self.fields[: self.num_targets]

    @property
    def num_predicted(self) -> int:
        """Columns that are predicted, the first ones of a frame."""
        return sum(each.num_columns for each in self.targets)

    @cached_property
    def read(self) -> LocalIndices:
        """The columns that the model reads, in the order of the inputs."""
        every = np.arange(self.width, dtype=np.int32)
        return np.concatenate([every[self.places[name]] for name in self.inputs])

    @property
    def num_read(self) -> int:
        """Columns of a frame that the model reads."""
        return len(self.read)

    @property
    def units(self) -> tuple[str, ...]:
        """The units of times and fields, as ``convert --units`` takes them."""
        units = {"times": self.time_unit, **{each.name: each.unit for each in self.fields}}
        return tuple(f"{name}={unit}" for name, unit in units.items())

    @property
    def has_given(self) -> bool:
        """Whether the model reads fields that it does not predict."""
        return self.width > self.num_predicted

    @property
    def predicted_names(self) -> tuple[str, ...]:
        """The names of the columns that are predicted: ``u_x``, or ``u_0``, or ``p``."""
        return tuple(name for each in self.targets for name in column_names(each))


def column_names(field: FieldInfo) -> list[str]:
    """Return a name for each column of a field."""
    if field.num_columns == 1:
        return [field.name]
    parts = field.components or tuple(map(str, range(field.num_columns)))
    return [f"{field.name}_{part}" for part in parts]


class FrameReader:
    """Reads frames of this rank's rows, a slab of a field at a time; used by one thread at a time.

    It opens the store for itself, so that a thread may read while the rank computes. Frames are in
    float64 where a field is, else in float32; missing values are NaN.
    """

    def __init__(self, store: GraphStore, row_map: RowMap, columns: Columns) -> None:
        self.columns, self._rows = columns, (row_map.start, row_map.stop)
        self._store = store
        wide = any(np.dtype(each.dtype).itemsize > 4 for each in columns.fields)
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if wide else np.float32)

    def read(self, step: int) -> FloatArray:
        """Return the frame (n, width) of a step."""
        start, stop = self._rows
        frame: FloatArray = np.empty((stop - start, self.columns.width), self.dtype)
        for name, place in self.columns.places.items():
            frame[:, place] = self._store.read_field(name, step, start, stop)
        return frame

    def close(self) -> None:
        """Close the store."""
        self._store.close()
