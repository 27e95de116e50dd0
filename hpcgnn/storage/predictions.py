"""Write predictions or embeddings of nodes as HDF5, csv, Parquet or npy, whole or not at all.

Rows arrive in pieces and in their final order, so no file has to fit into memory.

    /node_id        int64[n]
    /probabilities  float32[n, C], or /embeddings float32[n, H], or /values float64[n, T]
    /prediction     int32[n], or uint8[n, C] of a multi-label model
    /classes        fixed-length bytes[C], where the classes have names
    /name_ends      int64[n], and /name_bytes uint8, the concatenated names, where nodes have names

Program graphs have `/graph_id` instead of `/node_id`, and `/probabilities` of candidates (0 for
those that a graph lacks). They also have the right candidate, split and source line of each hole:

    /label, /split, /file, /line  int32[n]      /files  fixed-length bytes[f]

Edges and pairs of nodes have these instead of `/node_id`; link predictions have a score:

    /source, /target, /relation  int64[n]      /score  float32[n]
    /relations  fixed-length bytes[r], indexed by /relation
"""

import csv
import importlib
import io
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import AtomicWriter, OutputFile
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.files import HDF5Writer
from hpcgnn.typing import Array, FloatArray, GlobalIndices

NamesOf: TypeAlias = Callable[[GlobalIndices], list[str]]
"""Returns the names of nodes from their original ids (m,)."""

Cells: TypeAlias = Array | Sequence[Any]
"""A column of a table."""

_DIGITS = {np.dtype(np.float32): ".9g", np.dtype(np.float64): ".17g"}

FORMAT = "hpcgnn predictions"
FORMAT_VERSION = 1

PREDICTION_FORMATS = ("h5", "csv", "parquet", "npy")
"""Formats that the classes below write, by file suffix."""


@dataclass(frozen=True)
class RowIds:
    """The int64 columns that identify a row, called `names`; by default original ids of nodes.

    For edges and pairs, see `of_pairs`, the last column is an index into `relations`.
    """

    names: tuple[str, ...] = ("node_id",)
    relations: tuple[str, ...] = ()

    @classmethod
    def of_pairs(cls, relations: Sequence[str]) -> "RowIds":
        """Return the ids of edges, or of pairs of nodes, of some relations."""
        return cls(("source", "target", "relation"), tuple(relations))

    def columns(self, ids: GlobalIndices) -> list[GlobalIndices]:
        """Split ids (m,), or (m, 3) for pairs, into columns (m,)."""
        return list(np.ascontiguousarray(ids.reshape(len(ids), len(self.names)).T))

    def titles(self, about: Iterable[str]) -> list[str]:
        """Return the titles of a table's id columns and of the text columns `about` nodes."""
        if not self.relations:
            return [*self.names, *about]
        ends = [f"{end}_{text}" for text in about for end in self.names[:2]]
        return [*self.names[:2], *ends, self.names[2]]

    def cells(self, ids: GlobalIndices, about: Iterable[NamesOf]) -> list[Cells]:
        """Return the columns under `titles`; the functions `about` give texts from original ids."""
        columns: list[GlobalIndices] = self.columns(ids)
        nodes = columns[:2]
        texts = [texts_of(ids) for texts_of in about for ids in nodes]
        if not self.relations:
            return [*nodes, *texts]
        return [*nodes, *texts, [self.relations[number] for number in columns[2].tolist()]]


NODES = RowIds()


class PredictionFile(AtomicWriter):
    """A file that takes rows in pieces and appears whole or not at all."""

    def append(
        self, ids: GlobalIndices, values: FloatArray, predicted: Array | None = None
    ) -> None:
        """Append rows of `values` (m, width) with their int64 `ids` (m,), or (m, 3) for pairs.

        Scores are (m,). `predicted` are (m,) int32 classes, or (m, width) uint8 for a multi-label
        model; None for embeddings and scores.
        """
        self._write(ids, values, predicted)
        self._output.raise_on_error()

    def write(self, pieces: Iterable[tuple[Array, ...]]) -> None:
        """Write the whole file from pieces of rows."""
        with self:
            for piece in pieces:
                self.append(*piece)

    @abstractmethod
    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None: ...


class H5Predictions(PredictionFile, HDF5Writer):
    """HDF5 as described in the module; `values` and `ids` name their datasets.

    `class_names` has a name for each class, or is empty; `attributes` describe the rows' origin.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        values: str,
        class_names: Sequence[str] = (),
        attributes: Mapping[str, str | int] | None = None,
        *,
        ids: RowIds = NODES,
        names_of: NamesOf | None = None,
    ) -> None:
        super().__init__(path)
        self._names_of, self._name_bytes = names_of, 0
        self._ids, self._values, self._class_names = ids, values, class_names
        self._attributes: dict[str, str | int] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **(attributes or {}),
        }
        self._columns: dict[str, Column] = {}

    def append_column(self, name: str, rows: Array) -> None:
        """Append `rows` to the dataset `name`; fixed-length bytes are text."""
        self._append(name, rows)
        self._output.raise_on_error()

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:
        columns = zip(self._ids.names, self._ids.columns(ids), strict=True)
        for name, rows in (*columns, (self._values, values), ("prediction", predicted)):
            if rows is not None:
                self._append(name, rows)
        if self._names_of is not None:
            texts = [text.encode() for text in self._names_of(ids)]
            ends = self._name_bytes + np.cumsum([len(text) for text in texts], dtype=np.int64)
            self._append("name_ends", ends)
            self._append("name_bytes", np.frombuffer(b"".join(texts), np.uint8))
            self._name_bytes = int(ends[-1]) if len(ends) else self._name_bytes

    def _append(self, name: str, rows: Array) -> None:
        if name not in self._columns:
            self._columns[name] = Column(self._file, f"/{name}", rows.dtype, rows.shape[1:])
        self._columns[name].append(rows)

    def _finish(self) -> None:
        texts = {"classes": self._class_names, "relations": self._ids.relations}
        for name, strings in texts.items():
            if strings:
                self._append(name, np.array([text.encode() for text in strings]))
        for column in self._columns.values():
            column.finish()
        self._set_attributes(self._file, self._attributes)


_NUMBER = re.compile(r"[+-]?[\d.]+(?:e[+-]?\d+)?|-?inf|-?nan")
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True)
class TableColumns:
    """Titles and contents of the columns of a table of predictions.

    `values` names the value columns, `ids` the id columns. Columns `about` nodes follow the ids,
    texts that their functions return for original ids: `name`, and `type` in a graph with node
    types, where two nodes may share a name. `predicts` adds a column `prediction`, the class number
    (for a multi-label model numbers separated by blanks), and, if there are `class_names`, a column
    `class` (separated by "; ").
    """

    values: Sequence[str]
    predicts: bool = False
    class_names: Sequence[str] = ()
    about: Mapping[str, NamesOf] = field(default_factory=dict)
    ids: RowIds = NODES

    @property
    def titles(self) -> tuple[str, ...]:
        """The names of all columns."""
        named = ("prediction", "class") if self.class_names else ("prediction",)
        return (*self.ids.titles(self.about), *self.values, *(named if self.predicts else ()))

    def cells(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> list[Cells]:
        """Return the columns of some rows: int64 ids, texts, values, classes (int32 and text)."""
        columns = self.ids.cells(ids, self.about.values())
        columns += [*np.ascontiguousarray(np.atleast_2d(values.T))]
        if not self.predicts or predicted is None:
            return columns
        multi_label = predicted.ndim > 1
        rows = [np.flatnonzero(row).tolist() for row in predicted] if multi_label else []
        columns.append([" ".join(map(str, row)) for row in rows] if multi_label else predicted)
        if self.class_names:
            rows = rows if multi_label else [[number] for number in predicted.tolist()]
            columns.append(["; ".join(self.class_names[number] for number in row) for row in rows])
        return columns


class CsvPredictions(PredictionFile):
    """Comma-separated text with a header and enough digits to restore every number exactly.

    `num_formulas` counts names and classes that a spreadsheet would run as formulas. They are
    written unchanged, so that programs can join tables by name.
    """

    num_formulas = 0

    def __init__(self, path: str | os.PathLike[str], columns: TableColumns) -> None:
        super().__init__(path)
        self._columns = columns

    def _begin(self) -> None:
        self._lines([[title] for title in self._columns.titles])

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:
        self._lines(self._columns.cells(ids, values, predicted))

    def _lines(self, columns: Iterable[Cells]) -> None:
        cells = []
        for column in columns:
            plain = column.tolist() if isinstance(column, np.ndarray) else column
            digits = _DIGITS.get(column.dtype) if isinstance(column, np.ndarray) else None
            cells.append([f"{value:{digits}}" for value in plain] if digits else plain)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(zip(*cells, strict=True))
        self.num_formulas += sum(
            isinstance(cell, str) and cell.startswith(_FORMULAS) and not _NUMBER.fullmatch(cell)
            for column in cells
            for cell in column
        )
        self._output.write(memoryview(text.getvalue().encode()))

    def _end(self, *, complete: bool) -> None:
        """Nothing is left to write."""


class ParquetPredictions(PredictionFile):
    """Parquet with the same columns as the csv; ids are int64, predicted classes int32."""

    def __init__(self, path: str | os.PathLike[str], columns: TableColumns) -> None:
        super().__init__(path)
        self._columns = columns

    def _begin(self) -> None:
        try:
            self._arrow = importlib.import_module("pyarrow")
            self._parquet = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise InputError(
                f"{self.path}: Parquet needs pyarrow; install it, or write .csv, .npy or .h5"
            ) from None
        self._rows: Any = None

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:
        columns = self._columns.cells(ids, values, predicted)
        arrays = [
            self._arrow.array(column, None if isinstance(column, np.ndarray) else "string")
            for column in columns
        ]
        table = self._arrow.Table.from_arrays(arrays, self._columns.titles)
        if self._rows is None:
            sink = self._arrow.PythonFile(self._output, mode="w")
            self._rows = self._parquet.ParquetWriter(sink, table.schema)
        if len(ids):
            self._rows.write_table(table)

    def _end(self, *, complete: bool) -> None:
        if self._rows is not None:
            self._rows.close()
        elif complete:
            raise InputError(f"{self.path}: there are no rows to write")


class NpyPredictions(PredictionFile):
    """A NumPy array of the values, and one of the ids if the rows are not nodes 0, 1, 2, ...

    The ids, (m,) or (m, 3) for pairs, are in ``NAME.ids.npy`` next to ``NAME.npy``; without them a
    file of that name is removed. `shape` and `kind` (a NumPy type) are those of the whole array.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: tuple[int, ...],
        kind: str = "<f4",
        ids: RowIds = NODES,
    ) -> None:
        super().__init__(path)
        self._shape, self._kind = shape, kind
        self._ids_shape = (*shape[:1], len(ids.names)) if ids.relations else shape[:1]
        self.ids_path = self.path.with_name(f"{self.path.name.removesuffix('.npy')}.ids.npy")
        self.has_ids = False
        self._rows = 0

    def _begin(self) -> None:
        self._ids = OutputFile(self.ids_path)
        self._head(self._output, self._kind, self._shape)
        self._head(self._ids, "<i8", self._ids_shape)

    def _head(self, output: OutputFile, descr: str, shape: tuple[int, ...]) -> None:
        head = io.BytesIO()
        fields = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(head, fields)
        output.write(head.getbuffer())

    def _write(self, ids: GlobalIndices, values: FloatArray, predicted: Array | None) -> None:
        self._output.write(memoryview(values.astype(self._kind).tobytes()))
        self._ids.write(memoryview(ids.astype("<i8").tobytes()))
        self._ids.raise_on_error()
        expected = np.arange(self._rows, self._rows + len(ids))
        self.has_ids = self.has_ids or not np.array_equal(ids, expected)
        self._rows += len(ids)

    def _end(self, *, complete: bool) -> None:
        try:
            if complete and self.has_ids:
                # Values without their ids would be taken for those of other nodes.
                self._output.sync()
                self._ids.publish()
        finally:
            self._ids.abandon()

    def _publish(self) -> None:
        super()._publish()
        if not self.has_ids:
            self.ids_path.unlink(missing_ok=True)
