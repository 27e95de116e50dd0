"""Write one process's rows of a store that several processes write at the same time.

Each process writes consecutive rows of every dataset. HDF5 itself allows only one writer. That
process creates each dataset at its full size, so that all chunks are allocated, and sends their
file offsets to the others. Each process lets HDF5 encode its chunks, checksums included, in a file
in memory, and writes the bytes at these offsets. The rows before a process's first chunk border are
its `head`; they are written by the process in whose rows their chunk begins.
"""

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from hpcgnn.errors import InputError
from hpcgnn.storage.atomic import OutputFile, OutputPart
from hpcgnn.storage.datasets import Column
from hpcgnn.storage.files import LIBRARY_VERSIONS
from hpcgnn.storage.format import chunk_shape
from hpcgnn.storage.graph import schema
from hpcgnn.storage.graph.chunks import ChunkMaker, RowSpan, early, places_in
from hpcgnn.storage.graph.fields import FieldColumn, FieldInfo
from hpcgnn.storage.graph.names import NameOrder
from hpcgnn.storage.graph.parallel_field_writer import FieldShare, SharedColumn
from hpcgnn.storage.graph.schema import StoreHeader
from hpcgnn.storage.graph.writer import StoreWriter
from hpcgnn.typing import Array, Offsets

PAGED = {"alignment_threshold": 1, "alignment_interval": mmap.PAGESIZE}
"""Make HDF5 align chunks to pages: NFS clients may write whole pages, so no page may hold bytes of
two chunks, or of a chunk and metadata."""


class ColumnShare(SharedColumn):
    """The rows `span` of a dataset; call `place` before the first row is appended.

    `file` is None on all processes except the one that has the HDF5 file open.
    """

    def __init__(
        self,
        file: h5py.File | None,
        output: OutputFile,
        span: RowSpan,
        described: tuple[str, np.dtype[Any], tuple[int, ...]],
    ) -> None:
        super().__init__(file, *described)
        self.span, self._output = span, output
        self.rows = span.start
        self._limit: tuple[int | None, ...] = (None, *self.row_shape)
        if span.total < self._chunk[0]:
            shape = (span.total, *self.row_shape)
            self._chunk = chunk_shape(shape, self.dtype.itemsize)
            self._limit = shape if span.total else self._limit
        self.head_chunk = span.start // self._chunk[0] * self._chunk[0]
        """The first row of the chunk that contains this process's first row."""
        self._next = -(-span.start // self._chunk[0]) * self._chunk[0]
        self._head: list[Array] = []
        self._places: Offsets = np.empty(0, np.int64)
        self._maker = ChunkMaker(self._chunk, self.dtype)

    def create(self) -> Offsets:
        """Create the dataset; return the file offsets (chunks,) int64 of its chunks."""
        shape = (self.span.total, *self.row_shape)
        self._dataset = self._create(shape, self._limit, self._chunk, dcpl=early())
        return places_in(self._dataset)

    def place(self, offsets: Offsets) -> None:
        """Take the offsets that `create` returned."""
        self._places = offsets

    def _gather(self, rows: Array) -> None:
        if self.rows > self.span.stop:
            raise InputError(f"{self.path}: has more rows than declared")
        before = max(0, min(len(rows), self._next - (self.rows - len(rows))))
        if before:
            self._head.append(rows[:before].copy())
        if before < len(rows):
            super()._gather(rows[before:])

    def _write(self, rows: Array) -> None:
        for low in range(0, len(rows), self._chunk[0]):
            content = self._maker.bytes_of(rows[low : low + self._chunk[0]])
            self._output.write_at(int(self._places[self._next // self._chunk[0]]), content)
            self._next += self._chunk[0]

    def head(self) -> Array:
        """Return the rows that another process writes; raises `InputError` if rows are missing."""
        if self.rows != self.span.stop:
            missing = self.span.stop - self.rows
            raise InputError(f"{self.path}: {missing} rows of a process are missing")
        none = np.empty((0, *self.row_shape), self.dtype)
        head, self._head = np.concatenate([none, *self._head]), []
        return head

    def finish_share(self, rows: Array) -> None:
        """Write the remaining rows, and the `rows` of later processes that share their chunks."""
        super()._gather(rows)
        if self._pending_rows:
            self._write(np.concatenate(self._pending))
        self._pending, self._pending_rows = [], 0
        self.release()

    def join(self, crc: int) -> None:
        """Represent the whole dataset from now on, whose checksum is `crc`."""
        self.rows, self.crc = self.span.total, crc


_NODES = "/nodes"


@dataclass(frozen=True)
class ShareSizes:
    """How many rows of a store a process writes, after those of the processes before it.

    `nodes` is also the number of rows of each relation, unless `rows` is given; `edges` are the
    non-zeros of each relation, in the same order on all processes; `nodes_of_type` the nodes of
    each type, in a graph with node types; `features` the number of values of sparse features.
    `names`, with their `name_bytes`, may belong to other nodes than the process's own, and
    `edge_rows`, rows of fields of edges, to other edges.
    """

    nodes: int
    edges: Mapping[str, int]
    nodes_of_type: tuple[int, ...] = ()
    names: int = 0
    name_bytes: int = 0
    rows: int | None = None
    features: int = 0
    edge_rows: int | None = None

    def counts(self) -> Array:
        """Return all numbers as one int64 array."""
        by_name = (*self.nodes_of_type, *self.edges.values())
        rows = self.nodes if self.rows is None else self.rows
        edge_rows = self.edges.get("", 0) if self.edge_rows is None else self.edge_rows
        whole = (self.nodes, rows, self.names, self.name_bytes, self.features, edge_rows)
        return np.array([*whole, *by_name], np.int64)


ShareEnds: TypeAlias = tuple[NameOrder | None, tuple[int, int]]
"""For checks across processes: the order of a process's names, its smallest and largest id."""


class StoreShare(StoreWriter):
    """Write one process's rows of a store.

    Every process first declares all datasets by appending empty blocks. Then the first process
    creates them, and all processes `place` them and append their rows. `columns` are the datasets;
    `heads` and `complete` handle chunks that two processes share. At last the first process calls
    `join`, and its ``with`` block completes the file.

    This process writes `sizes`; `bounds` are the summed `counts` of all processes before it, and of
    all processes. `temporary` is the file that the first process created; None on the first.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: StoreHeader,
        sizes: ShareSizes,
        bounds: tuple[Array, Array],
        temporary: Path | None,
    ) -> None:
        super().__init__(path, header)
        for declared in bounds[1][:2].tolist():
            if declared != header.num_nodes:
                nodes = header.num_nodes
                raise InputError(f"{path}: {declared} rows are declared for {nodes} nodes")
        self._temporary = temporary
        self.columns: list[ColumnShare | FieldShare] = []
        self._spans = self._divide(sizes, *bounds)
        self._type_counts = self._type_bounds[0].copy()
        self._gives_ids = False

    @property
    def is_first(self) -> bool:
        """Whether this is the process that has the file open."""
        return self._temporary is None

    @property
    def temporary(self) -> Path:
        """The path of the file until it is published."""
        return self._output.temporary

    def declared(self) -> None:
        """Declare the datasets that every store has, after the caller has declared the others."""
        if "original_id" not in self._nodes:
            self._gives_ids = True
            self.append_original_id(np.empty(0, np.int64))

    def create(self) -> list[Offsets]:
        """Create all datasets, on the first process; return the offsets for `place`."""
        offsets = [column.create() for column in self.columns]
        self._output.raise_on_error()
        return offsets

    def place(self, offsets: Sequence[Offsets]) -> None:
        """Take the offsets of the chunks of `columns`."""
        for column, chunk_offsets in zip(self.columns, offsets, strict=True):
            column.place(chunk_offsets)

    def heads(self) -> list[Array]:
        """Return the head of each of `columns`; raises `InputError` if rows are missing."""
        if self._gives_ids:
            span = self._spans[_NODES]
            self._append_default_ids(span.start, span.stop)
        if not np.array_equal(self._type_counts, self._type_bounds[1]):
            raise self._fault("type", "has more or fewer nodes of a type than declared")
        return [column.head() for column in self.columns]

    def complete(self, rows: Sequence[Array]) -> None:
        """Write the remaining `rows`, heads of other processes included, and sync the file."""
        for column, part in zip(self.columns, rows, strict=True):
            column.finish_share(part)
        self._output.sync()

    def ends(self) -> ShareEnds:
        """Return the ends of this process's rows, for `join`."""
        return None if self._names is None else self._names.order, self._id_range

    def join(self, crcs: Sequence[int], ends: Sequence[ShareEnds]) -> None:
        """Represent the whole store from now on, given its checksums and all processes' ends."""
        for column, crc in zip(self.columns, crcs, strict=True):
            column.join(crc)
        self._type_counts = self._type_bounds[2]
        orders, id_ranges = zip(*ends, strict=True)
        lows, highs = zip(*id_ranges, strict=True)
        self._id_range = (min(lows), max(highs))
        if self._names is not None:
            self._names.join(order for order in orders if order is not None)

    def _open(self) -> OutputFile:
        if self._temporary is None:
            return OutputFile(self.path)
        return OutputPart(self.path, self._temporary)

    def _begin(self) -> None:
        self._file: Any = None
        if self.is_first:
            self._file = h5py.File(self._output, "w", libver=LIBRARY_VERSIONS, **PAGED)

    def _end(self, *, complete: bool) -> None:
        for column in self.columns:
            column.release()
        if self.is_first:
            super()._end(complete=complete)

    def _column(self, path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...] = ()) -> Column:
        group = path.rpartition("/")[0]
        span = self._spans.get(path) or self._spans[group if group in self._spans else _NODES]
        column = ColumnShare(self._file, self._output, span, (path, dtype, row_shape))
        self.columns.append(column)
        return column

    def _num_edges(self) -> int:
        return self._spans[schema.EDGE_VALUES].total

    def _field_column(self, info: FieldInfo, shape: tuple[int, int, int]) -> FieldColumn:
        described = (info.path, info.dtype, shape)
        span = self._spans[schema.EDGE_VALUES if info.of_edges else _NODES]
        column = FieldShare(self._file, self._output, described, span)
        self.columns.append(column)
        return column

    def _divide(self, sizes: ShareSizes, before: Array, total: Array) -> dict[str, RowSpan]:
        """Return this process's span of rows by path of a dataset, or of a group as default."""
        counts = sizes.counts()
        spans = [RowSpan(b, b + m, t) for b, m, t in np.stack([before, counts, total], 1).tolist()]
        nodes, rows, names, name_bytes, features, edge_rows, *by_name = spans
        num_types = len(self.header.node_types)
        if len(sizes.nodes_of_type) != num_types:
            raise ValueError("give the nodes of each type")
        types = slice(len(spans) - len(by_name), len(spans) - len(by_name) + num_types)
        self._type_bounds = before[types], (before + counts)[types], total[types]
        arrays = {schema.NAME_OFFSETS: self._offsets_of(names), schema.NAME_BYTES: name_bytes}
        sparse = schema.relation_path(schema.SPARSE_FEATURES)
        arrays |= {f"{sparse}/indptr": self._offsets_of(nodes), sparse: features}
        for name, span in zip(self.header.node_types, by_name[:num_types], strict=True):
            arrays[f"/nodes/features/{schema.link_name(name)}"] = span
        for name, span in zip(sizes.edges, by_name[num_types:], strict=True):
            group = schema.relation_path(name)
            arrays[f"{group}/indptr"] = self._offsets_of(rows)
            arrays[group] = span
        return arrays | {_NODES: nodes, schema.EDGE_VALUES: edge_rows}

    def _offsets_of(self, rows: RowSpan) -> RowSpan:
        """Return the span of the offsets of some rows; there is one offset more than rows."""
        start = 0 if self.is_first else rows.start + 1
        return RowSpan(start, rows.stop + 1, rows.total + 1)
