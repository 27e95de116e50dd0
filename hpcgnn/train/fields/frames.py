"""Frames: a rank's values of all fields of a run at one step, concatenated by columns."""

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
    """A pair of values, one for nodes and one for edges."""

    nodes: T
    edges: T

    def map(self, function: Callable[..., S], *others: "ByRows[Any]") -> "ByRows[S]":
        """Return `function` of the node values and of the edge values, of this and of `others`."""
        return ByRows(*map(function, self, *others))


Frame: TypeAlias = ByRows[Tensor]
"""Values at one step: (n, width) of nodes, (E, width) of edges in the order of the store. Several
frames have their rows concatenated, or are stacked in a first dimension."""


@dataclass(frozen=True)
class RowColumns:
    """The columns of the frames of nodes, or of edges: targets first, then other inputs.

    `num_targets` counts the predicted fields; `inputs` names the fields that the model reads.
    """

    fields: tuple[FieldInfo, ...]
    num_targets: int
    inputs: tuple[str, ...]

    @cached_property
    def slices(self) -> dict[str, slice]:
        """The slice of a frame's columns that each field has."""
        ends = np.cumsum([0, *(field.num_columns for field in self.fields)]).tolist()
        return {
            field.name: slice(start, stop)
            for field, start, stop in zip(self.fields, ends, ends[1:], strict=False)
        }

    @property
    def width(self) -> int:
        """The number of columns of a frame."""
        return sum(field.num_columns for field in self.fields)

    @property
    def targets(self) -> tuple[FieldInfo, ...]:
        """The fields that are predicted."""
        return self.fields[: self.num_targets]

    @property
    def num_predicted(self) -> int:
        """The number of predicted columns, which come first in a frame."""
        return sum(field.num_columns for field in self.targets)

    @cached_property
    def read(self) -> LocalIndices:
        """The columns that the model reads, in the order of `inputs`."""
        columns = np.arange(self.width, dtype=np.int32)
        return np.concatenate([columns[:0], *(columns[self.slices[name]] for name in self.inputs)])

    @property
    def num_read(self) -> int:
        """The number of columns of a frame that the model reads."""
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
                "fields.targets: name the fields to predict, edge fields in fields.edge_targets; "
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
        """The predicted fields, those of edges last."""
        return self.rows.nodes.targets + self.rows.edges.targets

    @property
    def num_predicted(self) -> int:
        """The number of predicted columns of nodes and edges."""
        return self.rows.nodes.num_predicted + self.rows.edges.num_predicted

    @property
    def units(self) -> tuple[str, ...]:
        """The units of times and fields, as ``convert --units`` takes them."""
        fields = (*self.rows.nodes.fields, *self.rows.edges.fields)
        units = {"times": self.time_unit, **{field.name: field.unit for field in fields}}
        return tuple(f"{name}={unit}" for name, unit in units.items())

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the model reads, of nodes and of edges, as FIELD:COLUMN."""
        return tuple(
            f"{field.name}:{part}"
            for rows in self.rows
            for name in rows.inputs
            for field in rows.fields
            if field.name == name
            for part in field.components or range(field.num_columns)
        )

    @property
    def has_given(self) -> bool:
        """Whether the model reads fields that it does not predict."""
        return any(rows.width > rows.num_predicted for rows in self.rows)


def column_names(field: FieldInfo) -> list[str]:
    """Return a name for each column of a field: ``u_x``, or ``u_0``, or ``p``."""
    if field.num_columns == 1:
        return [field.name]
    parts = field.components or tuple(map(str, range(field.num_columns)))
    return [f"{field.name}_{part}" for part in parts]


class FrameReader:
    """Reads frames of this rank's rows and edges, one slab of a field at a time; for one thread.

    It has a store of its own, so that a thread may read while the rank computes. Frames are float64
    if any field is, else float32; missing values are NaN. `edge_targets` (E,) int64 holds the local
    target rows of the edges, and is empty without edge fields.
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
        """Return the frame of a step for this rank's rows and the edges that end at them."""

        def read(columns: RowColumns, span: tuple[int, int], dtype: np.dtype[Any]) -> FloatArray:
            frame: FloatArray = np.empty((span[1] - span[0], columns.width), dtype)
            for name, field_columns in columns.slices.items():
                frame[:, field_columns] = self.store.read_field(name, step, *span)
            return frame

        return self.columns.rows.map(read, self._spans, self.dtypes)

    def absent(self) -> ByRows[Mask]:
        """Return masks (rows, W) of the target values that are missing at every step of the store.

        A field is read until every row has had a value, and in whole if some row never has one.
        """

        def find(columns: RowColumns, span: tuple[int, int]) -> Mask:
            absent = np.ones((span[1] - span[0], columns.num_predicted), np.bool_)
            for field in columns.targets:
                part = absent[:, columns.slices[field.name]]
                for step in range(len(self.store.times)):
                    if not part.any():
                        break
                    part &= np.isnan(self.store.read_field(field.name, step, *span))
            return absent

        return self.columns.rows.map(find, self._spans)

    @collective
    def edge_ends(self, grid: ProcessGrid, node_ids: GlobalIndices) -> GlobalIndices:
        """Return (E, 2) int64 original ids of the sources and targets of this rank's edges.

        The result is empty without edge fields.
        """
        if not self.columns.rows.edges.fields:
            return np.empty((0, 2), np.int64)
        with agree(grid.world):
            block = self.store.read_adjacency(*self._spans.nodes)
        sources = rows_of(grid.layer, self._row_map, block.indices.astype(np.int64), node_ids)
        return np.stack([sources, node_ids[self.edge_targets]], axis=1)


def _dtype_of(columns: RowColumns) -> np.dtype[Any]:
    wide = any(field.dtype.itemsize > 4 for field in columns.fields)
    return np.dtype(np.float64 if wide else np.float32)
