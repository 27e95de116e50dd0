"""Frames: what a rank reads of one step, the columns of all fields of a run beside each other."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from hpcgnn.comm import ProcessGrid, RowMap, agree, rows_of
from hpcgnn.config.config import Config
from hpcgnn.errors import InputError
from hpcgnn.graph.facts import chosen_fields
from hpcgnn.spmd import collective
from hpcgnn.storage import FieldInfo, GraphStore
from hpcgnn.typing import FloatArray, GlobalIndices, LocalIndices, Mask

T = TypeVar("T")
S = TypeVar("S")


class ByRows(NamedTuple, Generic[T]):
    """Something of both sorts of rows that fields have."""

    nodes: T
    edges: T

    def map(self, function: Callable[..., S], *others: "ByRows[Any]") -> "ByRows[S]":
        """Return what a function makes of each sort, of this and of others."""
        return ByRows(*map(function, self, *others))


Frame: TypeAlias = ByRows[Tensor]
"""What is known of one step: (n, width) of nodes, (E, width) of edges in the order of the store;
or of several, one behind the other or in a first dimension."""


@dataclass(frozen=True)
class RowColumns:
    """The columns of frames of one sort of rows: those of targets first, then of other inputs.

    `num_targets` counts the fields that are predicted; `inputs` names those that the model reads.
    """

    fields: tuple[FieldInfo, ...]
    num_targets: int
    inputs: tuple[str, ...]

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


class Columns(NamedTuple):
    """The columns of frames, and the unit of the times of steps."""

    rows: ByRows[RowColumns]
    time_unit: str

    @classmethod
    def of(cls, config: Config, store: GraphStore) -> "Columns":
        """Return the columns of a run.

        Raises `InputError` without targets, and for a field that the store lacks.
        """
        options = config.fields
        if not (options.targets or options.edge_targets) and store.all_fields:
            raise InputError(
                "fields.targets: name the fields to predict, or of edges in fields.edge_targets; "
                f"{store.path} has {', '.join(store.all_fields)}"
            )
        nodes, edges = (
            tuple(chosen_fields(config, store, of_edges=of_edges)) for of_edges in (False, True)
        )
        return cls(
            ByRows(
                RowColumns(nodes, len(options.targets), options.read),
                RowColumns(edges, len(options.edge_targets), options.read_of_edges),
            ),
            store.time_unit,
        )

    @property
    def targets(self) -> tuple[FieldInfo, ...]:
        """The fields that are predicted, those of edges last."""
        return self.rows.nodes.targets + self.rows.edges.targets

    @property
    def num_predicted(self) -> int:
        """Columns that are predicted."""
        return self.rows.nodes.num_predicted + self.rows.edges.num_predicted

    @property
    def units(self) -> tuple[str, ...]:
        """The units of times and fields, as ``convert --units`` takes them."""
        every = (*self.rows.nodes.fields, *self.rows.edges.fields)
        units = {"times": self.time_unit, **{each.name: each.unit for each in every}}
        return tuple(f"{name}={unit}" for name, unit in units.items())

    @property
    def has_given(self) -> bool:
        """Whether the model reads fields that it does not predict."""
        return any(each.width > each.num_predicted for each in self.rows)

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
        self.columns, self._row_map = columns, row_map
        rows = row_map.start, row_map.stop
        self.store, edges = store, (0, 0)
        self.dtypes = columns.rows.map(_dtype_of)
        self.edge_targets: GlobalIndices = np.empty(0, np.int64)
        if columns.rows.edges.fields:
            edges = store.num_edges_before(rows[0]), store.num_edges_before(rows[1])
            counts = np.diff(store.read_indptr(*rows))
            self.edge_targets = np.repeat(np.arange(len(counts)), counts)
        self._spans = ByRows(rows, edges)

    def read(self, step: int) -> ByRows[FloatArray]:
        """Return the frame of a step, of edges of those that end at this rank's rows."""

        def read(columns: RowColumns, span: tuple[int, int], dtype: np.dtype[Any]) -> FloatArray:
            frame: FloatArray = np.empty((span[1] - span[0], columns.width), dtype)
            for name, place in columns.places.items():
                frame[:, place] = self.store.read_field(name, step, *span)
            return frame

        return self.columns.rows.map(read, self._spans, self.dtypes)

    def absent(self) -> ByRows[Mask]:
        """Return (rows, W) which values of targets are missing at all times of the store.

        A field is read until each row has had a value; whole where one never has.
        """

        def find(columns: RowColumns, span: tuple[int, int]) -> Mask:
            absent = np.ones((span[1] - span[0], columns.num_predicted), np.bool_)
            for field in columns.targets:
                part = absent[:, columns.places[field.name]]
                for step in range(len(self.store.times)):
                    if not part.any():
                        break
                    part &= np.isnan(self.store.read_field(field.name, step, *span))
            return absent

        return self.columns.rows.map(find, self._spans)

    @collective
    def edge_ends(self, grid: ProcessGrid, node_ids: GlobalIndices) -> GlobalIndices:
        """Return (E, 2) int64 original ids of the sources and targets of this rank's edges.

        Without fields of edges there are none.
        """
        if not self.columns.rows.edges.fields:
            return np.empty((0, 2), np.int64)
        with agree(grid.world):
            block = self.store.read_adjacency(*self._spans.nodes)
        sources = rows_of(grid.layer, self._row_map, block.indices.astype(np.int64), node_ids)
        return np.stack([sources, node_ids[self.edge_targets]], axis=1)

    def close(self) -> None:
        """Close the store."""
        self.store.close()


def _dtype_of(columns: RowColumns) -> np.dtype[Any]:
    wide = any(each.dtype.itemsize > 4 for each in columns.fields)
    return np.dtype(np.float64 if wide else np.float32)
