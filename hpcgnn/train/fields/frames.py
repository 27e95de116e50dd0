"""Frames: what a rank reads of one step, the columns of all fields of a run beside each other."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError, instead_of
from hpcgnn.graph.facts import edge_inputs
from hpcgnn.storage import FieldInfo, GraphStore
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices


@dataclass(frozen=True)
class Columns:
    """The columns of a frame: those of the targets first, then those of other inputs.

    `num_targets` counts the fields that are predicted; `inputs` names those that the model reads;
    `time_unit` is that of the steps; `of_edges` are fields of edges, in frames of their own.
    """

    fields: tuple[FieldInfo, ...]
    num_targets: int
    inputs: tuple[str, ...]
    time_unit: str
    of_edges: tuple[FieldInfo, ...] = ()

    @classmethod
    def of(cls, config: Config, store: GraphStore) -> "Columns":
        """Return the columns of a run.

        Raises `InputError` without targets, and for a field that the store lacks.
        """
        options = config.fields
        if not options.targets and store.fields:
            raise InputError(
                "fields.targets: name the fields to predict; "
                f"{store.path} has {', '.join(store.fields)}"
            )
        for key, names in (("targets", options.targets), ("inputs", options.inputs)):
            for name in names:
                if name not in store.fields:
                    remedy = instead_of(name, store.fields, f"hpcgnn inspect {store.path}")
                    if name in store.edge_fields:
                        remedy = "that is one of edges: name it in fields.edge_inputs"
                    raise InputError(f"fields.{key}: {store.path} has no field {name!r}; {remedy}")
        infos = tuple(store.fields[name] for name in options.names)
        of_edges = edge_inputs(config, store)
        return cls(infos, len(options.targets), options.read, store.time_unit, of_edges)

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
        return np.concatenate([every[:0], *(every[self.places[name]] for name in self.inputs)])

    @property
    def num_read(self) -> int:
        """Columns of a frame that the model reads."""
        return len(self.read)

    @property
    def units(self) -> tuple[str, ...]:
        """The units of times and fields, as ``convert --units`` takes them."""
        every = (*self.fields, *self.of_edges)
        units = {"times": self.time_unit, **{each.name: each.unit for each in every}}
        return tuple(f"{name}={unit}" for name, unit in units.items())

    @property
    def has_given(self) -> bool:
        """Whether the model reads fields that it does not predict."""
        return self.width > self.num_predicted or bool(self.of_edges)

    @property
    def edge_width(self) -> int:
        """Columns of a frame of edges."""
        return sum(each.num_columns for each in self.of_edges)

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
    """Reads frames of this rank's rows and edges, a slab of a field at a time; for one thread.

    It opens the store for itself, so that a thread may read while the rank computes. Frames are in
    float64 where a field is, else in float32; missing values are NaN. `edge_targets` (E,) int64
    are the local rows that edges end at, none without fields of edges.
    """

    def __init__(self, store: GraphStore, row_map: RowMap, columns: Columns) -> None:
        self.columns, self._rows = columns, (row_map.start, row_map.stop)
        self.store = store
        self.dtype, self._edge_dtype = map(_dtype_of, (columns.fields, columns.of_edges))
        self._edges = (0, 0)
        self.edge_targets: GlobalIndices = np.empty(0, np.int64)
        if columns.of_edges:
            first, last = (store.num_edges_before(row) for row in self._rows)
            self._edges = first, last
            counts = np.diff(store.read_indptr(*self._rows))
            self.edge_targets = np.repeat(np.arange(len(counts)), counts)

    def read(self, step: int) -> FloatArray:
        """Return the frame (n, width) of a step."""
        start, stop = self._rows
        frame: FloatArray = np.empty((stop - start, self.columns.width), self.dtype)
        for name, place in self.columns.places.items():
            frame[:, place] = self.store.read_field(name, step, start, stop)
        return frame

    def read_edges(self, step: int) -> FloatArray:
        """Return the frame (E, edge width) of a step, of the edges that end at this rank's rows."""
        start, stop = self._edges
        parts = [self.store.read_field(e.name, step, start, stop) for e in self.columns.of_edges]
        none: FloatArray = np.empty((stop - start, 0), self._edge_dtype)
        return np.concatenate([none, *parts], axis=1, dtype=self._edge_dtype)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def _dtype_of(fields: tuple[FieldInfo, ...]) -> np.dtype[Any]:
    wide = any(each.dtype.itemsize > 4 for each in fields)
    return np.dtype(np.float64 if wide else np.float32)
