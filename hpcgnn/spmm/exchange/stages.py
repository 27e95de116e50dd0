"""Parts shared by exchanges in stages: columns by stage, cyclic buffers, arrivals and spans."""

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
    """Combines pushed rows on the owner's side: called with ``(rows, arrived)``.

    `rows` are int32 rows of the owner's array and `arrived` (len(rows), width) what one other rank
    pushed to each, in the dtype of `like` or of the wire. Rows may repeat between calls but not
    within one. The order of calls depends only on the plan, not on timing. If it `adds`, partial
    sums may be added up on their way.
    """

    take: Callable[[LocalIndices, Array], None]
    adds: bool = True

    def __call__(self, rows: LocalIndices, arrived: Array) -> None:
        """Combine rows that arrived."""
        self.take(rows, arrived)


@dataclass(frozen=True, eq=False)
class StageColumns:
    """The stage of each ghost, and its column among the `widths` columns of that stage.

    Both are (ghosts,) int32; None: all ghosts are the columns of one stage, in order.
    """

    widths: tuple[int, ...]
    stages: LocalIndices | None = None
    columns: LocalIndices | None = None

    @classmethod
    def of_stages(cls, ghosts: Sequence[LocalIndices]) -> "StageColumns":
        """Return the columns of stages with the given ghosts, in this order."""
        widths = tuple(map(len, ghosts))
        stages, columns = np.zeros((2, sum(widths)), np.int32)
        for index, rows in enumerate(ghosts):
            stages[rows] = index
            columns[rows] = np.arange(len(rows))
        return cls(widths, stages, columns)

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return the int32 position among all ghosts of each column of a stage.

        It is -1 for columns without entries in this rank's block.
        """
        if self.stages is None or self.columns is None:
            return np.arange(self.widths[index], dtype=np.int32)
        rows = np.flatnonzero(self.stages == index).astype(np.int32)
        ghosts = np.full(self.widths[index], -1, np.int32)
        ghosts[self.columns[rows]] = rows
        return ghosts

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Divide a block with a column for each ghost into stages."""
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
            # A stable sort keeps the order of rows and columns within a stage, and so the order of
            # sums and the bits of the result.
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
        """Select the values of a stage's columns from those of all columns."""
        if of_columns is None:
            return None
        if self.stages is None:
            return of_columns
        ghosts = self.ghosts_of(index)
        values = np.ones(len(ghosts), of_columns.dtype)
        # All other columns have entries on other ranks only.
        values[ghosts >= 0] = of_columns[ghosts[ghosts >= 0]]
        return values

    def _kinds(self, block: LocalCSR, index: int) -> Kinds | None:
        kinds = block.kinds
        if kinds is None:
            return None
        return replace(kinds, of_columns=self.of_stage(kinds.of_columns, index))


class _StagePart:
    """The `count` entries of a block in one stage, which are added piece by piece."""

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
        # Store only the few rows with entries in the stage, so that products over all stages cost
        # as much as one over the block, not rows times stages.
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
    """Buffers of stages in the memory of `carrier`; stages i and ``i + window`` share one."""

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
            # A slot is as large as the largest of the stages that share it.
            carrier.take((max(sizes[slot::window]), width), dtype, ghosts=ghosts)
            for slot in range(min(window, len(sizes)))
        ]

    def rows(self, index: int) -> Array:
        """Return the rows (rows of the stage, width) of stage `index`."""
        return self._buffers[index % self._window][: self._sizes[index]]


def combine_stage(send_rows: LocalIndices, stage: Stage, arrived: Array, combine: Combine) -> None:
    """Call `combine` with the rows that a stage brought to the owner's side, peer by peer."""
    first = 0
    for message in stage.owned:
        # Two peers may push to the same row, but kernels add only distinct rows.
        rows = send_rows[message.rows]
        combine(rows, arrived[first : first + len(rows)])
        first += len(rows)


RowsTo: TypeAlias = tuple[tuple[int, int], ...]
"""Rank in the whole grid and number of rows, for each receiving rank."""


def world_ranks(grid: ProcessGrid) -> LocalIndices:
    """Return the rank in the whole grid of each rank of this layer, (layer ranks,) int32."""
    ranks = np.arange(grid.num_blocks, dtype=np.int32)
    return ranks * np.int32(grid.replication) + np.int32(grid.replica)


def rows_to(messages: Sequence[Message], ranks: LocalIndices) -> RowsTo:
    """Return the rows that messages take to each rank; `ranks` as in `world_ranks`."""
    return tuple((int(ranks[message.peer]), message.num_rows) for message in messages)


def exchange_span(
    trace: TraceRecorder, name: str, sent: RowsTo, row_bytes: int | Sequence[int], carrier: Carrier
) -> Span:
    """Return the span of an exchange; `row_bytes` are bytes of a row, or of all rows by rank."""
    if not trace.enabled:
        return trace.span(name)
    sizes = [rows * row_bytes for _, rows in sent] if isinstance(row_bytes, int) else row_bytes
    peers = [(*to, size) for to, size in zip(sent, sizes, strict=True)]
    total, ghost_bytes = sum(rows for _, rows in sent), carrier.ghosts.now
    return trace.span(name, rows=total, bytes=sum(sizes), peers=peers, ghost_bytes=ghost_bytes)
