"""Read fields from a long table with a row for each time and node or edge, as sensors write.

Times are numbers, or dates and times of day (ISO 8601), which become seconds after the first. The
table is read twice, for its times and then its values, which are kept in a file under TMPDIR.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn import watchdog
from hpcgnn.console import report
from hpcgnn.convert.read.arrays import Narrowing, scratch_array
from hpcgnn.convert.read.tables import Kind, Table, TableFile
from hpcgnn.convert.series import FieldArray, FieldSeries, join_fields
from hpcgnn.convert.source import ConvertOptions, EdgeChunk, GraphSource, NodeArrays
from hpcgnn.convert.tables.ids import Numbers
from hpcgnn.convert.tables.node_rows import node_finder
from hpcgnn.convert.tables.times import plain_numbers, read_times, seconds_after_first
from hpcgnn.errors import InputError
from hpcgnn.storage import first_true
from hpcgnn.typing import Array, GlobalIndices

_MOST_EMPTY = 1000
"""Most values of a field in the store per row of the table; the others are missing values."""

_LARGEST_ID = (1 << 32) - 1
"""Largest node id in an edge."""


def read_series(source: GraphSource, options: ConvertOptions) -> FieldSeries:
    """Return the series of the table that the options name; raises `InputError`.

    Reads all edges once if the source does not know the number of nodes.
    """
    count, remedy = source.num_nodes, "remove the row"
    if count is None:
        ends = (
            max(chunk.src.max(initial=-1), chunk.dst.max(initial=-1)) for chunk in _chunks(source)
        )
        count, remedy = 1 + int(max(ends, default=-1)), "remove the row, or give --num-nodes"
    return _LongTable.open("series", source.nodes, _NodeRows(count, remedy), options).read()


def read_edge_series(source: GraphSource, options: ConvertOptions) -> FieldSeries:
    """Return the series of the table of edges that the options name, in the order of the input.

    Reads all edges once; memory is 24 bytes for each. Raises `InputError`.
    """
    pairs = _EdgeRows.of(source, options)
    return _LongTable.open("edge_series", source.nodes, pairs, options).read()


def _chunks(source: GraphSource) -> Iterator[EdgeChunk]:
    """Yield the edges of an input with checked node ids."""
    with closing(source.edges()) as chunks:
        for chunk in chunks:
            chunk.check_ends((_LARGEST_ID, _LARGEST_ID), "number the nodes from 0")
            yield chunk
            watchdog.beat()


@dataclass(frozen=True)
class _NodeRows:
    """Assigns the rows of a table to `count` nodes; `remedy` is the advice for other rows."""

    count: int
    remedy: str
    unit = "node"
    roles = ("node",)
    repeated_remedy = "remove one"

    def find(self, nodes: GlobalIndices) -> GlobalIndices:
        """Return the nodes, with -1 for those that are not in the graph."""
        return np.where(nodes < self.count, nodes, -1)

    def signs(self, name: str, nodes: GlobalIndices) -> Any:
        """Return the factors of a field's values in the rows of these nodes."""
        return 1

    def of_input(self, name: str, values: Array, start: int, stop: int) -> Array:
        """Return a field at nodes `start` to `stop` - 1 from the `values` (count,) of a step."""
        return values[start:stop]


@dataclass(frozen=True, eq=False)
class _EdgeRows:
    """Assigns the rows of a table to the pairs of nodes that edges of the input join.

    `keys` (pairs,) uint64 are sorted; `slots` (edges,) int64 is the pair of each edge of the input.
    If edges are `mirrored`, a pair and its reverse are one, from the lower id to the higher, and
    `turned` (edges,) marks edges in the other direction. `fluxes` are the fields negated for these.
    """

    keys: Array
    slots: GlobalIndices
    turned: Array
    mirrored: bool
    fluxes: tuple[str, ...]
    remedy = "remove the row"
    unit = "edge"
    roles = ("source", "target")

    @classmethod
    def of(cls, source: GraphSource, options: ConvertOptions) -> "_EdgeRows":
        mirrored = options.undirected or source.undirected
        parts, turned = [np.empty(0, np.uint64)], [np.empty(0, np.bool_)]
        for chunk in _chunks(source):
            parts.append(cls._keys(chunk.src, chunk.dst, mirrored))
            turned.append(chunk.src > chunk.dst)
        keys, slots = np.unique(np.concatenate(parts), return_inverse=True)
        fluxes = (options.fluxes or ()) if mirrored else ()
        return cls(keys, slots, np.concatenate(turned), mirrored, fluxes)

    @staticmethod
    def _keys(sources: Array, targets: Array, mirrored: bool) -> Array:
        if mirrored:
            sources, targets = np.minimum(sources, targets), np.maximum(sources, targets)
        return sources.astype(np.uint64) << np.uint64(32) | targets.astype(np.uint64)

    @property
    def repeated_remedy(self) -> str:
        if not self.mirrored:
            return "remove one"
        return "remove one, or give all edges in both directions and leave out --undirected"

    @property
    def count(self) -> int:
        return len(self.keys)

    def find(self, sources: GlobalIndices, targets: GlobalIndices) -> GlobalIndices:
        """Return the indices of pairs, -1 for those that no edge joins."""
        ends = np.stack([sources, targets])
        valid = ((ends >= 0) & (ends <= _LARGEST_ID)).all(0)
        sources, targets = np.where(valid, ends, 0)
        keys = self._keys(sources, targets, self.mirrored)
        return np.where(valid, Numbers(self.keys).positions(keys), -1)

    def signs(self, name: str, sources: GlobalIndices, targets: GlobalIndices) -> Any:
        """Return the factors of a field's values in the rows of these pairs."""
        return np.where(sources > targets, -1, 1) if name in self.fluxes else 1

    def of_input(self, name: str, values: Array, start: int, stop: int) -> Array:
        """Return a field at edges `start` to `stop` - 1 from the `values` (pairs,) of a step."""
        rows = values[self.slots[start:stop]]
        if name in self.fluxes:
            np.negative(rows, out=rows, where=self.turned[start:stop])
        return rows


@dataclass(frozen=True, eq=False)
class _LongTable:
    file: TableFile
    time: int
    ends: tuple[int, ...]
    values: dict[str, int]
    nodes: NodeArrays
    rows: _NodeRows | _EdgeRows
    dtype: np.dtype[Any]

    @classmethod
    def open(
        cls, option: str, nodes: NodeArrays, rows: _NodeRows | _EdgeRows, options: ConvertOptions
    ) -> "_LongTable":
        """Find the columns of the table that `option` names; raises `InputError`."""
        flag, expected = f"--{option}-columns".replace("_", "-"), ("time", *rows.roles, "values")
        file = TableFile.open(Path(options.take(option)), frozenset(expected))
        words = options.take(f"{option}_columns") or ()
        roles = dict(word.partition("=")[::2] for word in words)
        if unknown := sorted(roles.keys() - set(expected)):
            example = ",".join(map("{}={}".format, expected[:-1], "ABC"))
            raise InputError(f"{flag} {unknown[0]}: is no role; give {example},values=D:E")
        time, *ends = (file.column(roles.get(role) or role, flag) for role in expected[:-1])
        fields = [name for name in roles.get("values", "").split(":") if name]
        used = {time, *ends}
        columns = [file.column(name, flag) for name in fields] or [
            column
            for column in range(len(file.names))
            if column not in {*used, file.index} and file.numeric[column]
        ]
        if not columns or used & set(columns) or len(set(columns)) < len(columns):
            names = " and ".join(expected[:-1])
            raise InputError(
                f"{flag}: {file.path} needs columns of values besides {names}; name those that "
                "begin with empty fields: values=A:B"
            )
        described = list(map(file.describe, columns))
        for name in described:
            if described.count(name) > 1:
                raise InputError(f"{file.path}: two columns are called {name!r}; rename one")
        unused = {*range(len(file.names))} - {*used, *columns, file.index}
        if unused and not fields:
            names = ", ".join(file.describe(column) for column in sorted(unused))
            report(
                f"{file.path}: columns without numbers in the first rows are left out: {names}; "
                f"{flag} values=A:B reads them"
            )
        return cls(
            file=file,
            time=time,
            ends=tuple(ends),
            values=dict(zip(described, columns, strict=True)),
            nodes=nodes,
            rows=rows,
            dtype=np.dtype(options.take("dtype") or "float32"),
        )

    def read(self) -> FieldSeries:
        times, num_rows = self._sizes()
        count, unit = self.rows.count, self.rows.unit
        if len(times) * count > _MOST_EMPTY * (num_rows + 1):
            raise InputError(
                f"{self.file.path}: has {num_rows} rows for {len(times)} times and {count} "
                f"{unit}s: nearly all values would be missing; round the times to few steps"
            )
        columns = list(self.values.values())
        shape = (len(columns), len(times), count)
        values = _mapped(shape, self.dtype, np.nan)
        seen = _mapped(shape[1:], np.dtype(np.bool_), False)
        escaped = [name.replace("{", "{{").replace("}", "}}") for name in self.values]
        narrowings = [Narrowing(self.dtype, f"the value of {e}", missing=True) for e in escaped]
        for table, rows, ends, numbers in self._blocks(columns):
            steps = np.searchsorted(times, rows)
            cells = steps * count + numbers
            order = np.argsort(cells, kind="stable")
            repeated = np.zeros(len(cells), np.bool_)
            repeated[order[1:]] = np.diff(cells[order]) == 0
            repeated |= seen[steps, numbers]
            if (row := first_true(repeated)) is not None:
                raise InputError(
                    f"{table.locate(row)}: this time and {unit} already have a row; "
                    f"{self.rows.repeated_remedy}"
                )
            seen[steps, numbers] = True
            for index, (name, column) in enumerate(self.values.items()):
                numbers_read = table.numbers(column)[:, None]
                block = narrowings[index].rows(numbers_read, table.locate)[:, 0]
                values[index, steps, numbers] = block * self.rows.signs(name, *ends)
        of_edges = isinstance(self.rows, _EdgeRows)
        size = len(self.rows.slots) if isinstance(self.rows, _EdgeRows) else count
        fields = [
            FieldArray(
                name=name,
                shape=(len(times), size),
                dtype=self.dtype,
                read=self._reader(name, values[index]),
                where=f"{self.file.path}: {name}",
                of_edges=of_edges,
            )
            for index, name in enumerate(self.values)
        ]
        where = str(self.file.path)
        if not self._numeric:
            return join_fields(fields, seconds_after_first(times), unit="s", where=where)
        plain, first = plain_numbers(times)
        if first:
            report(f"{where}: times are counted from the first, {first}, to fit float64 exactly")
        return join_fields(fields, plain, where=where)

    @property
    def _numeric(self) -> bool:
        return self.file.numeric[self.time]

    def _sizes(self) -> tuple[Array, int]:
        """Return the times, see `read_times`, and the number of rows."""
        times, num_rows = np.empty(0, np.complex128), 0
        for _, rows, *_ in self._blocks([]):
            times = np.union1d(times, rows)
            num_rows += len(rows)
        if not num_rows:
            raise InputError(f"{self.file.path}: has no row with a time and a {self.rows.unit}")
        return times, num_rows

    def _blocks(
        self, columns: list[int]
    ) -> Iterator[tuple[Table, Array, list[GlobalIndices], GlobalIndices]]:
        """Yield blocks with their times, nodes or ends, and the indices of these in `rows`."""
        types: dict[int, Kind] = dict.fromkeys(columns, "number")
        types[self.time] = "text"
        types |= dict.fromkeys(self.ends, "integer" if self.nodes.names is None else "text")
        find = node_finder(self.nodes)
        for table in self.file.blocks(types):
            ends = [find(table, column) for column in self.ends]
            numbers = self.rows.find(*ends)
            if (row := first_true(numbers < 0)) is not None:
                raise InputError(
                    f"{table.locate(row)}: its {self.rows.unit} is not in the graph; "
                    f"{self.rows.remedy}"
                )
            yield table, read_times(table, self.time, numeric=self._numeric), ends, numbers
            watchdog.beat()

    def _reader(self, name: str, values: Array) -> Callable[[int, int, int], Array]:
        of_input = self.rows.of_input
        return lambda step, start, stop: of_input(name, values[step], start, stop)


def _mapped(shape: tuple[int, ...], dtype: np.dtype[Any], value: float | bool) -> Array:
    """Return a `scratch_array` filled with `value` one step at a time."""
    mapped = scratch_array(shape, dtype)
    if value:
        for part in mapped.reshape(-1, shape[-1]):
            part[:] = value
    return mapped
