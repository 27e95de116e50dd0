"""The rows of one process in a store that several processes write at the same time.

Each writes some consecutive rows of every dataset. HDF5 alone lets one process write. That one
creates each dataset at its full size, so that every chunk has its place in the file, and tells the
others the places. A process has HDF5 make the bytes of its chunks in a file in memory, checksums
included, and writes them at their places. The rows before its first border of chunks are its
`head`: the process in whose rows their chunk begins writes them.
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
from hpcgnn.storage.graph.field_share import FieldShare, SharedColumn
from hpcgnn.storage.graph.fields import FieldColumn, FieldInfo
from hpcgnn.storage.graph.names import NameOrder
from hpcgnn.storage.graph.schema import StoreHeader
from hpcgnn.storage.graph.writer import StoreWriter
from hpcgnn.typing import Array, Offsets

PAGED = {"alignment_threshold": 1, "alignment_interval": mmap.PAGESIZE}
"""How HDF5 gives places: no two chunks, nor a chunk and metadata, have bytes in one page, which
clients of NFS may write whole."""


class ColumnShare(SharedColumn):
    """The rows `span` of a dataset; `place` comes before the first row that is appended.

    `file` is None on all processes but the one that has the HDF5 file open.
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
        """The first row of the chunk that this process's first row is in."""
        self._next = -(-span.start // self._chunk[0]) * self._chunk[0]
        self._head: list[Array] = []
        self._places: Offsets = np.empty(0, np.int64)
        self._maker = ChunkMaker(self._chunk, self.dtype)

    def create(self) -> Offsets:
        """Create the dataset; return the places (chunks,) int64 of its chunks in the file."""
        shape = (self.span.total, *self.row_shape)
        self._dataset = self._create(shape, self._limit, self._chunk, dcpl=early())
        return places_in(self._dataset)

    def place(self, offsets: Offsets) -> None:
        """Take what `create` has returned."""
        self._places = offsets

    def _gather(self, rows: Array) -> None:
        if self.rows > self.span.stop:
            raise InputError(f"{self.path}: has more rows than were announced")
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
        """Return the rows that another process writes; raises `InputError` for missing ones."""
        if self.rows != self.span.stop:
            missing = self.span.stop - self.rows
            raise InputError(f"{self.path}: {missing} rows of a process are missing")
        none = np.empty((0, *self.row_shape), self.dtype)
        head, self._head = np.concatenate([none, *self._head]), []
        return head

    def finish_share(self, rows: Array) -> None:
        """Write what is left, with the `rows` behind this process's own that are in its chunks."""
        super()._gather(rows)
        if self._pending_rows:
            self._write(np.concatenate(self._pending))
        self._pending, self._pending_rows = [], 0
        self.release()

    def join(self, crc: int) -> None:
        """Stand for the whole dataset from now on, which has this checksum."""
        self.rows, self.crc = self.span.total, crc


_NODES = "/nodes"


@dataclass(frozen=True)
class ShareSizes:
    """What a process writes of a store: consecutive rows, behind those of the process before.

    `nodes` are also the rows of each relation unless `rows` says otherwise; `edges` the non-zeros
    of each relation, in the same order on all processes; `nodes_of_type` the nodes of each type, in
    a graph with node types; `features` the values of sparse ones. The names with their bytes may be
    those of other nodes, and `edge_rows` of fields those of other edges.
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
        """Return all of them, int64."""
        several = (*self.nodes_of_type, *self.edges.values())
        rows = self.nodes if self.rows is None else self.rows
        edge_rows = self.edges.get("", 0) if self.edge_rows is None else self.edge_rows
        whole = (self.nodes, rows, self.names, self.name_bytes, self.features, edge_rows)
        return np.array([*whole, *several], np.int64)


ShareEnds: TypeAlias = tuple[NameOrder | None, tuple[int, int]]
"""What the processes' rows must agree on where they meet: names, least and largest id."""


class StoreShare(StoreWriter):
    """Write one process's rows of a store.

    First all that there will be is declared: every process appends blocks without rows. Then the
    first process creates the datasets, all `place` them, and append their rows. `columns` are the
    datasets; what is between two shares is for their `head` and `finish_share`. At last all `join`,
    and the first process's ``with`` block completes the file.

    This process writes `sizes`; `bounds` are the `counts` of all processes before it, and of all.
    `temporary` is where the first process has begun the file; None on the first.
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
        for announced in bounds[1][:2].tolist():
            if announced != header.num_nodes:
                raise InputError(
                    f"{path}: {announced} rows are announced for {header.num_nodes} nodes"
                )
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
        """Where the file is until it has its name."""
        return self._output.temporary

    def declared(self) -> None:
        """Declare what a store has in any case, once the caller has declared the rest."""
        if "original_id" not in self._nodes:
            self._gives_ids = True
            self.append_original_id(np.empty(0, np.int64))

    def create(self) -> list[Offsets]:
        """Create all datasets, on the first process; return what `place` takes."""
        offsets = [column.create() for column in self.columns]
        self._output.raise_on_error()
        return offsets

    def place(self, offsets: Sequence[Offsets]) -> None:
        """Take the places of the chunks of `columns`."""
        for column, chunk_offsets in zip(self.columns, offsets, strict=True):
            column.place(chunk_offsets)

    def heads(self) -> list[Array]:
        """Return the head of each of `columns`; raises `InputError` where rows are missing."""
        if self._gives_ids:
            span = self._spans[_NODES]
            self._append_default_ids(span.start, span.stop)
        if not np.array_equal(self._type_counts, self._type_bounds[1]):
            raise self._fault("type", "the nodes of a type are not as many as were announced")
        return [column.head() for column in self.columns]

    def complete(self, rows: Sequence[Array]) -> None:
        """Write what is left, with the heads of others, and wait until it is on disk."""
        for column, part in zip(self.columns, rows, strict=True):
            column.finish_share(part)
        self._output.sync()

    def ends(self) -> ShareEnds:
        """Return what `join` compares."""
        return None if self._names is None else self._names.order, self._id_range

    def join(self, crcs: Sequence[int], ends: Sequence[ShareEnds]) -> None:
        """Stand for the whole store from now on, given its checksums and all processes' ends."""
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
        """Return this process's rows of datasets, or of all others in a group, by path."""
        counts = sizes.counts()
        spans = [RowSpan(b, b + m, t) for b, m, t in np.stack([before, counts, total], 1).tolist()]
        nodes, rows, names, name_bytes, features, edge_rows, *several = spans
        num_types = len(self.header.node_types)
        if len(sizes.nodes_of_type) != num_types:
            raise ValueError("give the nodes of each type")
        types = slice(len(spans) - len(several), len(spans) - len(several) + num_types)
        self._type_bounds = before[types], (before + counts)[types], total[types]
        arrays = {schema.NAME_OFFSETS: self._offsets_of(names), schema.NAME_BYTES: name_bytes}
        sparse = schema.relation_path(schema.SPARSE_FEATURES)
        arrays |= {f"{sparse}/indptr": self._offsets_of(nodes), sparse: features}
        for name, span in zip(self.header.node_types, several[:num_types], strict=True):
            arrays[f"/nodes/features/{schema.link_name(name)}"] = span
        for name, span in zip(sizes.edges, several[num_types:], strict=True):
            group = schema.relation_path(name)
            arrays[f"{group}/indptr"] = self._offsets_of(rows)
            arrays[group] = span
        return arrays | {_NODES: nodes, schema.EDGE_VALUES: edge_rows}

    def _offsets_of(self, rows: RowSpan) -> RowSpan:
        """Return the span of offsets, of which there is one more than rows."""
        start = 0 if self.is_first else rows.start + 1
        return RowSpan(start, rows.stop + 1, rows.total + 1)
