"""Fields from a long table: a row for each time and node, as sensors and traffic counts come.

Times are numbers, or dates and times of day (ISO 8601), which become seconds after the first. The
table is read twice, once for its times and once for its values, which wait in a file under TMPDIR.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.convert.read.tables import Kind, Table, TableFile
from hpcgnn.convert.series import FieldArray, Series, join_fields
from hpcgnn.convert.source import ConvertOptions, GraphSource, Nodes
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import Array, GlobalIndices

_MOST_EMPTY = 1000
"""Values that a store may have for each row of the table, the others being missing."""

_ROLES = ("time", "node", "values")


def read_series(source: GraphSource, options: ConvertOptions) -> Series:
    """Return the series of the table that the options name; raises `InputError`."""
    return _LongTable.open(source, options).read()


@dataclass(frozen=True, eq=False)
class _LongTable:
    file: TableFile
    time: int
    node: int
    values: dict[str, int]
    named: bool
    nodes: Nodes
    num_nodes: int | None
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, source: GraphSource, options: ConvertOptions) -> "_LongTable":
        file = TableFile.open(Path(options.take("series")), frozenset(_ROLES))
        roles = dict(word.partition("=")[::2] for word in options.take("series_columns") or ())
        if unknown := sorted(roles.keys() - set(_ROLES)):
            raise InputError(f"--series-columns {unknown[0]}: give time=A,node=B,values=C:D")
        flag = "--series-columns"
        time, node = (file.column(roles.get(role) or role, flag) for role in ("time", "node"))
        given = [name for name in roles.get("values", "").split(":") if name]
        columns = [file.column(name, flag) for name in given] or [
            column
            for column in range(len(file.names))
            if column not in (time, node) and file.numeric[column]
        ]
        if not columns or {time, node} & set(columns) or len(set(columns)) < len(columns):
            raise InputError(f"{flag}: {file.path} needs columns of values besides time and node")
        return cls(
            file=file,
            time=time,
            node=node,
            values={file.describe(column): column for column in columns},
            named=source.nodes.names is not None,
            nodes=source.nodes,
            num_nodes=source.num_nodes,
            dtype=np.dtype(options.take("dtype") or "float32"),
        )

    def read(self) -> Series:
        """Return the series."""
        times, first, num_nodes, num_rows = self._sizes()
        if len(times) * num_nodes > _MOST_EMPTY * (num_rows + 1):
            raise InputError(
                f"{self.file.path}: {num_rows} rows are of {len(times)} times and {num_nodes} "
                "nodes: nearly all values would be missing; round the times to few steps"
            )
        columns = list(self.values.values())
        shape = (len(columns), len(times), num_nodes)
        held = _mapped(shape, self.dtype, np.nan)
        seen = _mapped(shape[1:], np.dtype(np.bool_), False)
        for table, rows, nodes in self._blocks(columns, num_nodes):
            steps = np.searchsorted(times, rows)
            cells = steps * num_nodes + nodes
            order = np.argsort(cells, kind="stable")
            twice = np.zeros(len(cells), np.bool_)
            twice[order[1:]] = np.diff(cells[order]) == 0
            twice |= seen[steps, nodes]
            if (row := first_true(twice)) is not None:
                raise InputError(
                    f"{table.locate(row)}: this time and node have a row already; remove one"
                )
            seen[steps, nodes] = True
            for place, column in enumerate(columns):
                with np.errstate(over="ignore"):
                    held[place, steps, nodes] = table.numbers(column).astype(self.dtype)
        fields = [
            FieldArray(
                name=name,
                shape=shape[1:],
                dtype=self.dtype,
                read=_reader(held[place]),
                where=f"{self.file.path}: {name}",
            )
            for place, name in enumerate(self.values)
        ]
        unit = "" if self.file.numeric[self.time] else "s"
        return join_fields(fields, times - first, unit=unit, where=str(self.file.path))

    def _sizes(self) -> tuple[Array, float, int, int]:
        """Return the times, which of them is 0, the number of nodes, and of rows."""
        times, num_rows, largest = np.empty(0), 0, -1
        for _, rows, nodes in self._blocks([], self.num_nodes):
            times = np.union1d(times, rows)
            num_rows += len(rows)
            largest = max(largest, int(nodes.max(initial=-1)))
        if not num_rows:
            raise InputError(f"{self.file.path}: has no row of a time and a node")
        first = 0.0 if self.file.numeric[self.time] else float(times[0])
        return times, first, largest + 1 if self.num_nodes is None else self.num_nodes, num_rows

    def _blocks(
        self, columns: list[int], num_nodes: int | None
    ) -> Iterator[tuple[Table, Array, GlobalIndices]]:
        """Yield rows with their times and nodes."""
        kinds: dict[int, Kind] = dict.fromkeys(columns, "number")
        kinds[self.time] = "number" if self.file.numeric[self.time] else "text"
        kinds[self.node] = "text" if self.named else "integer"
        find = self._finder()
        for table in self.file.blocks(kinds):
            nodes = find(table)
            wrong = (nodes < 0) | (nodes >= (num_nodes or 1 << 62))
            if (row := first_true(wrong)) is not None:
                raise InputError(
                    f"{table.locate(row)}: its node is none of the graph; remove the row"
                )
            yield table, self._times(table), nodes
            watchdog.beat()

    def _times(self, table: Table) -> Array:
        """Return times as numbers, seconds where they are dates."""
        if self.file.numeric[self.time]:
            times = table.numbers(self.time)
        else:
            texts = np.array(table.words(self.time), dtype=np.str_)
            try:
                times = texts.astype("datetime64[us]").astype(np.int64) / 1e6
            except ValueError as error:
                raise InputError(f"{table.locate(0)} or below: {error}; give ISO dates") from None
        if (row := first_true(~np.isfinite(times))) is not None:
            raise InputError(f"{table.locate(row)}: its time is missing; remove the row")
        return times

    def _finder(self) -> Callable[[Table], GlobalIndices]:
        """Return what finds the nodes of rows, -1 for none."""
        if self.nodes.names is not None:
            numbers: dict[bytes, int] = {}
            for offsets, data in self.nodes.names():
                raw = data.tobytes()
                for low, high in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                    numbers[raw[low:high]] = len(numbers)
            return lambda table: np.array(
                [numbers.get(text, -1) for text in table.texts(self.node).to_pylist()], np.int64
            )
        ids = self.nodes.original_id
        if ids is None:
            return lambda table: table.integers(self.node)
        order = np.argsort(ids, kind="stable")

        def find(table: Table) -> GlobalIndices:
            given = table.integers(self.node)
            places = order[np.minimum(np.searchsorted(ids[order], given), len(ids) - 1)]
            return np.where(ids[places] == given, places, -1)

        return find


def _reader(values: Array) -> Callable[[int, int, int], Array]:
    return lambda step, start, stop: values[step, start:stop]


def _mapped(shape: tuple[int, ...], dtype: np.dtype[Any], value: float | bool) -> Array:
    """Return an array in a file without a name, filled step by step."""
    with tempfile.TemporaryFile() as file:
        mapped = np.memmap(file, dtype, "w+", shape=shape)
    if value:
        for part in mapped.reshape(-1, shape[-1]):
            part[:] = value
    return mapped
