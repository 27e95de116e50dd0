"""The edges of a distributed pattern, and the rows of their sources under every exchange.

Edges are with the owners of their targets, and so are their states; only rows of sources travel,
and their gradients come back. Edges are in the order in which rows arrive: first those of own
sources, then those of each stage, so that the states of a part are one range. This is case 2 of
"Sequential Aggregation and Rematerialization": the resident schedule keeps fetched rows from the
forward pass, the sequential one fetches them again, stage by stage.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcgnn.attention.remote import push_order, store_rows
from hpcgnn.attention.softmax import widen
from hpcgnn.comm import Communicator, Instant, ProcessGrid
from hpcgnn.sparse import DistCSR, EdgeTable, LocalCSR, LocalMatrix
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.spmm.exchange.ghosts import Fetch, Push
from hpcgnn.spmm.product import DistributedSpMM
from hpcgnn.spmm.remote import Exchange, Pushing
from hpcgnn.spmm.wire import Columns
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class EdgePart:
    """The edges whose sources are rows of one array, target after target.

    `block` has an entry for each edge: its row is the target, its column the row of its source.
    `sources` (edges,) int32 are columns of the sources where gradients are pushed, which a push may
    number otherwise than the fetch. `edges` are their places among all edges of the rank.
    """

    block: LocalCSR
    sources: LocalIndices
    edges: slice


Gradient = Callable[[int, Array | None], FloatArray]
"""Returns the gradients (rows, width) of the rows of a stage, from its number and these rows."""


@dataclass(frozen=True, eq=False)
class Fetched:
    """What a backward pass knows of the rows that were fetched.

    `kept` are those of each stage; None: they are fetched again, rounded as they were when `drawn`.
    """

    kept: list[Array] | None
    drawn: Instant | None = None


class MessageOperator(DistributedSpMM):
    """A pattern whose entries are edges with features; multiplies as one without values.

    Parameters
    ----------
    grid, exchange, trace
        As for `DistributedSpMM`; the exchange pushes nothing.
    matrix
        Its values are numbers of entries of the table.
    table
        The edges of the rank.
    states_again
        Whether models compute states of edges again in the backward pass, instead of keeping them.

    Attributes
    ----------
    numbers
        (E,) int64 of the edges in the table; None: they are in its order.
    """

    @collective
    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        exchange: Exchange,
        trace: TraceRecorder,
        table: EdgeTable,
        *,
        states_again: bool = False,
    ) -> None:
        self.states_again = states_again
        super().__init__(grid, matrix, exchange, trace)
        fetched, own = self._fetched, self._diagonal
        assert fetched is not None
        assert self._pushed is None, "edges stay with their targets"
        self._table, self._part = table, fetched
        self._columns = matrix.row_map.start, matrix.column_nodes
        self._order = [
            None if order is None else self.memory.put(order) for order in push_order(fetched)
        ]
        blocks = [_expanded(block, table) for block in (own, *fetched.blocks)]
        ends = np.cumsum([0, *(block.nnz for block, _ in blocks)])
        same = fetched.push_blocks is fetched.blocks
        pushed = None if same else [_expanded(block, table)[0] for block in fetched.push_blocks]
        # All other users of these blocks multiply.
        self._diagonal, fetched.blocks, fetched.push_blocks = (
            self._multiplied(own),
            tuple(map(self._multiplied, fetched.blocks)),
            () if same else tuple(map(self._multiplied, fetched.push_blocks)),
        )
        if same:
            fetched.push_blocks = fetched.blocks
        self.own, *self.stages = (
            EdgePart(block, block.indices, slice(int(ends[i]), int(ends[i + 1])))
            for i, (block, _) in enumerate(blocks)
        )
        if pushed is not None:
            self.stages = [
                EdgePart(stage.block, block.indices, stage.edges)
                for stage, block in zip(self.stages, pushed, strict=True)
            ]
        self.num_edges = int(ends[-1])
        numbers = np.concatenate([of_block for _, of_block in blocks])
        # A sampled pattern has few of the edges of its table.
        whole = len(numbers) == len(table.features)
        in_order = whole and np.array_equal(numbers, np.arange(len(numbers)))
        self.numbers: GlobalIndices | None = None if in_order else numbers
        self._kept: tuple[MessageOperator, LocalIndices] | None = None

    def _multiplied(self, block: LocalMatrix | None) -> LocalMatrix:
        return self.memory.matrix(_pattern(_on_host(block)))

    @property
    def comm(self) -> Communicator:
        """The ranks that share the edges, one for each block row."""
        return self.grid.layer

    @property
    def parts(self) -> tuple[EdgePart, ...]:
        """All edges."""
        return (self.own, *self.stages)

    @property
    def column_numbers(self) -> GlobalIndices:
        """(columns,) int64 what number each input row has among those of all ranks."""
        start, nodes = self._columns
        return start + (np.arange(self.shape[1]) if nodes is None else nodes.astype(np.int64))

    @cached_property
    def features(self) -> FloatArray:
        """(E, F) of the edges, in their order."""
        return self._table.features if self.numbers is None else self._table.features[self.numbers]

    @cached_property
    def targets(self) -> GlobalIndices:
        """(E,) int64 rows that the edges end at."""
        parts = [part.block.entry_rows() for part in self.parts]
        return np.concatenate(parts).astype(np.int64)

    @cached_property
    def degrees(self) -> Offsets:
        """(rows,) int64 edges of each row."""
        return np.bincount(self.targets, minlength=self.shape[0])

    @cached_property
    def places(self) -> LocalIndices | None:
        """(E,) int32 where each edge of the table is among all; None: they are in its order."""
        return None if self.numbers is None else np.argsort(self.numbers).astype(np.int32)

    def places_in(self, before: "MessageOperator") -> LocalIndices | None:
        """Return the (E,) int32 places of the edges among those of another; None: the same ones.

        The other, `before`, is of the same edges, or of more of them.
        """
        if before is self or (self.numbers is None and before.numbers is None):
            return None
        if self._kept is None or self._kept[0] is not before:
            places = np.empty(len(self._table.features), np.int32)
            known = slice(None) if before.numbers is None else before.numbers
            places[known] = np.arange(before.num_edges)
            own = slice(None) if self.numbers is None else self.numbers
            self._kept = before, places[own]
        return self._kept[1]

    @collective
    def start_fetch(
        self, rows: Array, drawn: Instant | None = None, *, keep: bool = False
    ) -> Fetch:
        """Start to fetch the rows (columns, width) of sources; see `arrived`.

        `drawn` is when the product was whose rows these are; None: they are those of the next one.
        With `keep` they are kept where the schedule is resident.
        """
        ghosts = self._part.ghosts
        columns = [Columns(rows.shape[1], drawn or self._next_product())]
        return ghosts.start_fetch(rows, keep=keep and not ghosts.sequential, columns=columns)

    def _next_product(self) -> Instant:
        self.grid.moment.next_product()
        return self.grid.moment.now

    @property
    def keeps(self) -> bool:
        """Whether what is fetched may be kept from pass to pass."""
        return not self._part.ghosts.sequential

    @neighborwise_collective
    def arrived(self, fetch: Fetch, index: int, dtype: np.dtype[np.generic]) -> Array:
        """Return the rows of a stage in the dtype of those that were sent."""
        rows = fetch.stage(index)
        return rows if rows.dtype == dtype else widen(rows, self._part.ghosts.wire.half)

    @collective
    def start_push(
        self, rows: Array, fetched: Fetched, total: FloatArray, gradient: Gradient
    ) -> Pushing:
        """Start to return the gradients of fetched rows to their owners.

        `rows` are as of `start_fetch`. Arriving gradients are added to `total` (columns, width),
        float32 or float64; `gradient` computes those of a stage.
        """
        ghosts, memory = self._part.ghosts, self._part.memory

        def fill(push: Push) -> None:
            for index, arrived in self.again(rows, fetched):
                with self.trace.span("wait.reverse"):
                    buffer = push.buffer(index)
                with self.trace.span("boundary.reverse"):
                    rows_back = gradient(index, arrived)
                    store_rows(rows_back, buffer, ghosts.wire.format, memory)
                push.send(index)

        columns = [Columns(total.shape[1], self._next_product())]
        push = ghosts.start_push(total, self._part.adding(total), columns)
        return Pushing(self._part, push, fill)

    def again(self, rows: Array, fetched: Fetched) -> Iterator[tuple[int, Array]]:
        """Yield each stage and its rows, in the order of `EdgePart.sources`; collective."""
        kept = fetched.kept
        fetch = self.start_fetch(rows, fetched.drawn) if kept is None else None
        for index, order in enumerate(self._order):
            if kept is None:
                assert fetch is not None
                with self.trace.span("wait.reverse"):
                    arrived = self.arrived(fetch, index, rows.dtype)
            else:
                arrived = kept[index]
            yield index, arrived if order is None else arrived[order]


def _expanded(block: LocalMatrix | None, table: EdgeTable) -> tuple[LocalCSR, GlobalIndices]:
    """Return a block with an entry for each edge, and the numbers of the edges."""
    block = _on_host(block)
    # What has no entries may have no values.
    values = np.zeros(block.nnz) if block.values is None else block.values
    assert block.values is not None or block.nnz == 0
    counts, numbers = table.edges_of(values.astype(np.int64))
    if bool((counts == 1).all()):
        return _pattern(block), numbers
    ends = np.concatenate([[0], np.cumsum(counts)])
    columns = np.repeat(block.indices, counts)
    return LocalCSR(ends[block.indptr], columns, None, block.shape, block.rows), numbers


def _on_host(block: LocalMatrix | None) -> LocalCSR:
    assert isinstance(block, LocalCSR | DeviceCSR)
    return block.host if isinstance(block, DeviceCSR) else block


def _pattern(block: LocalCSR) -> LocalCSR:
    return block.with_values(None)
