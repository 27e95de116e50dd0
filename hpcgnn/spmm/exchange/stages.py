"""What exchanges in stages share: columns by stage, buffers used in turn, arrivals, and spans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn.comm import Message, ProcessGrid, Stage
from hpcgnn.sparse import Kinds, LocalCSR
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.typing import Array, FloatArray, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class Combine:
    """Takes ``(rows, arrived)`` on the owner's side of a push.

    They are int32 rows of the owner's array, and what one other rank pushed to each, (len(rows),
    width) in the dtype of `like` or of the wire. Rows repeat between calls, never inside one. Calls
    come in an order that depends on the plan alone, not on timing. If it `adds`, partial sums may
    be added up on their way.
    """

    take: Callable[[LocalIndices, Array], None]
    adds: bool = True

    def __call__(self, rows: LocalIndices, arrived: Array) -> None:
        """Take in rows that arrived."""
        self.take(rows, arrived)


@dataclass(frozen=True, eq=False)
class StageColumns:
    """The stage of each ghost, and its column there: every stage numbers its rows anew.

    Both are (ghosts,) int32; None: all ghosts are the columns of one stage, in order.
    """

    widths: tuple[int, ...]
    stages: LocalIndices | None = None
    columns: LocalIndices | None = None

    @classmethod
    def of_stages(cls, ghosts: Sequence[LocalIndices]) -> "StageColumns":
        """Return the columns of stages that have these ghosts in this order."""
        widths = tuple(map(len, ghosts))
        stages, columns = np.zeros((2, sum(widths)), np.int32)
        for index, rows in enumerate(ghosts):
            stages[rows] = index
            columns[rows] = np.arange(len(rows))
        return cls(widths, stages, columns)

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each column of a stage is, int32 positions in all ghosts.

        It is -1 for a column that no entry of this rank's block has.
        """
        if self.stages is None or self.columns is None:
            return np.arange(self.widths[index], dtype=np.int32)
        rows = np.flatnonzero(self.stages == index).astype(np.int32)
        ghosts = np.full(self.widths[index], -1, np.int32)
        ghosts[self.columns[rows]] = rows
        return ghosts

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block with a column for each ghost, cut into stages."""
        if self.stages is None or self.columns is None:
            return (block,)
        if len(self.widths) == 1:
            return (block.select(self.columns, self.widths[0]),)
        counts = np.zeros(len(self.widths), np.int64)
        for _, entries in block.pieces():
            stages = self.stages[block.indices[entries]]
            counts += np.bincount(stages, minlength=len(counts))
        parts = [_StagePart(block, count) for count in counts.tolist()]
        for stored, entries in block.pieces():
            stages = self.stages[block.indices[entries]]
            # Stable: inside a stage the entries keep the order of rows and columns, on which the
            # order of sums depends, and with it the bits of the result.
            order = np.argsort(stages, kind="stable")
            ends = np.cumsum(np.bincount(stages, minlength=len(counts)))
            rows, columns = block.entry_rows(stored), self.columns[block.indices[entries]]
            values = None if block.values is None else block.values[entries]
            for part, chosen in zip(parts, np.split(order, ends)[:-1], strict=True):
                part.add(rows[chosen], columns[chosen], None if values is None else values[chosen])
        return tuple(
            part.csr(width, self.of_stage(block.column_factors, index), self._kinds(block, index))
            for index, (part, width) in enumerate(zip(parts, self.widths, strict=True))
        )

    def of_stage(self, of_columns: Array | None, index: int) -> Array | None:
        """Return the numbers of the columns of a stage, of those of all columns."""
        if of_columns is None:
            return None
        if self.stages is None:
            return of_columns
        ghosts = self.ghosts_of(index)
        values = np.ones(len(ghosts), of_columns.dtype)
        # Other columns are of other ranks' entries.
        values[ghosts >= 0] = of_columns[ghosts[ghosts >= 0]]
        return values

    def _kinds(self, block: LocalCSR, index: int) -> Kinds | None:
        """Return the relations of a stage."""
        kinds = block.kinds
        if kinds is None:
            return None
        return replace(kinds, of_columns=self.of_stage(kinds.of_columns, index))


class _StagePart:
    """The entries of a block in one stage, `count` of them, which come piece by piece."""

    def __init__(self, block: LocalCSR, count: int) -> None:
        self._num_rows, self._end, self._row_factors = block.shape[0], 0, block.row_factors
        self._columns = np.empty(count, np.int32)
        self._values = None if block.values is None else np.empty(count, block.values.dtype)
        self._rows: list[LocalIndices] = []
        self._starts: list[Offsets] = []

    def add(self, rows: LocalIndices, columns: LocalIndices, values: FloatArray | None) -> None:
        """Add entries of further rows."""
        piece = slice(self._end, self._end + len(rows))
        self._columns[piece] = columns
        if self._values is not None:
            self._values[piece] = values
        # A stage meets few of the rows; storing only these keeps a product of all stages at the
        # cost of one, not of rows times stages.
        first = np.flatnonzero(np.diff(rows, prepend=-1))
        self._rows.append(rows[first])
        self._starts.append(self._end + first)
        self._end += len(rows)

    def csr(self, width: int, factors: FloatArray | None, kinds: Kinds | None) -> LocalCSR:
        """Return the matrix of all entries, with `width` columns, their factors and relations."""
        starts = np.concatenate([*self._starts, np.array([self._end])])
        rows = np.concatenate([np.empty(0, np.int32), *self._rows])
        entries, shape = (starts, self._columns, self._values), (self._num_rows, width)
        return LocalCSR(*entries, shape, rows, None, self._row_factors, factors, kinds)


class Slots:
    """Buffers for stages in the memory of `carrier`; stages i and ``i + window`` share one."""

    def __init__(
        self,
        carrier: Carrier,
        sizes: Sequence[int],
        window: int,
        width: int,
        dtype: DTypeLike,
        *,
        ghosts: bool = False,
    ) -> None:
        self._sizes, self._window = sizes, window
        self._buffers = [
            # Stage i and i + window never live together: a slot is as large as the largest stage
            # that will ever use it.
            carrier.take((max(sizes[slot::window]), width), dtype, ghosts=ghosts)
            for slot in range(min(window, len(sizes)))
        ]

    def rows(self, index: int) -> Array:
        """Return the rows (rows of the stage, width) of stage `index`."""
        return self._buffers[index % self._window][: self._sizes[index]]


def combine_stage(send_rows: LocalIndices, stage: Stage, arrived: Array, combine: Combine) -> None:
    """Hand what a stage brought to the owner's side to `combine`, peer by peer."""
    first = 0
    for message in stage.owned:
        # Peer by peer: two peers may push to the same row, and a kernel that adds rows needs them
        # without repeats.
        rows = send_rows[message.rows]
        combine(rows, arrived[first : first + len(rows)])
        first += len(rows)


RowsTo: TypeAlias = tuple[tuple[int, int], ...]
"""Rank in the whole grid and number of rows, for each rank that some messages go to."""


def world_ranks(grid: ProcessGrid) -> LocalIndices:
    """Return the rank in the whole grid of each rank of this layer, (layer ranks,) int32."""
    ranks = np.arange(grid.num_blocks, dtype=np.int32)
    return ranks * np.int32(grid.replication) + np.int32(grid.replica)


def rows_to(messages: Sequence[Message], ranks: LocalIndices) -> RowsTo:
    """Return what messages take to other ranks; `ranks` as in `world_ranks`."""
    return tuple((int(ranks[message.peer]), message.num_rows) for message in messages)


def exchange_span(
    trace: TraceRecorder, name: str, sent: RowsTo, row_bytes: int | Sequence[int], carrier: Carrier
) -> Span:
    """Return the span of an exchange of rows of `row_bytes` on their way; by rank, those of all."""
    if not trace.enabled:
        return trace.span(name)
    sizes = [rows * row_bytes for _, rows in sent] if isinstance(row_bytes, int) else row_bytes
    peers = [(*to, size) for to, size in zip(sent, sizes, strict=True)]
    total, ghost_bytes = sum(rows for _, rows in sent), carrier.ghosts.now
    return trace.span(name, rows=total, bytes=sum(sizes), peers=peers, ghost_bytes=ghost_bytes)
