"""The remote parts of a product: matrix blocks with their ghost exchanges, made by an `Exchange`.

A `RemotePart` is a matrix ``C F``: F fetches ghost rows, C multiplies them. Its adjoint ``Fᵀ Cᵀ``
multiplies first and pushes. A product has up to two parts: it applies one for its fetched entries,
and the adjoint of another for its pushed entries.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace

import numpy as np

from hpcgnn.comm import Volume
from hpcgnn.operator import OperatorSize
from hpcgnn.sparse import DistCSR, EdgeTable, Kinds, LocalCSR, LocalMatrix, turned
from hpcgnn.spmd import collective
from hpcgnn.spmm.cover import Cover, CoverSplit
from hpcgnn.spmm.exchange.ghosts import Channel, Fetch, GhostExchange, GhostFactory, Push
from hpcgnn.spmm.exchange.peers import Ghosts
from hpcgnn.spmm.exchange.stages import Combine, StageColumns
from hpcgnn.spmm.replicas import ReplicaShares, ReplicaSum, SumFactory
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Offsets


class RemotePart:
    """``C F`` and its adjoint: C is the `block` (rows, num_ghosts), F the exchange `ghosts`.

    Matrices of one pattern share F. With `coded` column indices they can only multiply.
    """

    def __init__(self, ghosts: GhostExchange, block: LocalCSR, *, coded: bool = False) -> None:
        self.ghosts, self.memory = ghosts, ghosts.carrier.memory
        self._form = self.memory.coded if coded else self.memory.matrix
        self.blocks = self._stages(ghosts.columns, block)
        # Most exchanges push the columns that they fetch and so need each transpose once only.
        self.push_blocks = self.blocks
        if ghosts.push_columns is not ghosts.columns:
            self.push_blocks = self._stages(ghosts.push_columns, block)

    def _stages(self, columns: StageColumns, block: LocalCSR) -> tuple[LocalMatrix, ...]:
        return tuple(map(self._form, columns.split(block)))

    def turned(self, factors: FloatArray) -> "RemotePart":
        """Return a part that shares the pattern and whose entries are `factors` (ghosts,)."""
        part = copy(self)
        part.blocks = part.push_blocks = tuple(
            turned(block, self.ghosts.columns.of_stage(factors, index))
            for index, block in enumerate(self.blocks)
        )
        return part

    @collective
    def start_fetch(self, x: Array) -> Fetch:
        """Start to fetch the rows for ``C F x``."""
        return self.ghosts.start_fetch(x)

    @collective
    def finish_fetch(self, fetch: Fetch, out: Array, trace: TraceRecorder) -> None:
        """Add ``C F x`` to `out`."""
        half = self.ghosts.wire.half
        for index, block in enumerate(self.blocks):
            with trace.span("wait.forward"):
                rows = fetch.stage(index)
            with trace.span("boundary.forward"):
                block.matmul(rows, out, accumulate=True, half=half)

    @collective
    def start_push(self, x: Array, out: Array, trace: TraceRecorder) -> "Pushing":
        """Start to add ``Fᵀ Cᵀ x`` to `out`, which may be uninitialised until `Pushing.finish`."""
        # Partial sums of 16-bit rows are float32 until they are sent.
        like = out if out.dtype != np.uint16 else self.memory.empty((0, out.shape[1]), np.float32)
        push = self.ghosts.start_push(like, self.adding(out))
        return Pushing(self, push, lambda push: self.push(x, push, trace))

    @collective
    def push(self, x: Array, push: Push, trace: TraceRecorder) -> None:
        """Compute ``Cᵀ x`` and send it, stage by stage."""
        half = self.ghosts.wire.half
        for index, block in enumerate(self.push_blocks):
            partial = push.buffer(index)
            with trace.span("boundary.reverse"):
                block.transposed.matmul(x, partial, half=half)
            push.send(index)

    def adding(self, out: Array) -> Combine:
        """Return the `Combine` that adds arriving rows to `out`."""
        wire, kernels = self.ghosts.wire, self.memory.kernels

        # A method would form a reference cycle, which keeps buffers until garbage collection.
        def add(rows: LocalIndices, arrived: Array) -> None:
            # A single rank gets no rows, and GPUs cannot add to its `out` if that has 16 bits.
            if len(arrived):
                kernels.scatter_add_rows(arrived, rows, out, half=wire.half)

        return Combine(add)


class Pushing:
    """A push that has started: it is computed now, to overlap with other work, or in `finish`.

    `fill` computes and sends all stages; `then` is called when everything has arrived.
    """

    @collective
    def __init__(
        self,
        part: RemotePart,
        push: Push,
        fill: Callable[[Push], None],
        then: Callable[[], None] | None = None,
    ) -> None:
        # A sequential push has to wait for memory that the pending fetch still holds.
        self._push, self._fill, self._late = push, fill, part.ghosts.sequential
        self._then = then
        if not self._late:
            fill(push)

    @collective
    def finish(self) -> None:
        """Combine what other ranks pushed to this one."""
        if self._late:
            self._fill(self._push)
        self._push.finish()
        if self._then is not None:
            self._then()


class Exchange:
    """The exchanges for the remote part of a matrix; it serves all matrices of a pattern.

    Scalings of one adjacency share plans and buffers. `cover` chooses the entries to push, and
    `make_ghosts` makes the ghost exchanges. `sum_rows` and `sum_columns`, made by `make_sum`, sum
    results of the matrix and of its transpose over the replicas of the block row.
    """

    @collective
    def __init__(
        self,
        channel: Channel,
        pattern: DistCSR,
        cover: Cover,
        make_ghosts: GhostFactory,
        make_sum: SumFactory = ReplicaSum,
    ) -> None:
        self.grid, self.trace = channel.grid, channel.trace
        self.carrier, self._peers = channel.carrier, channel.peers
        grid, self.run_position = channel.grid, channel.grid.run_position
        # The split depends on the pattern alone, so all scalings of one adjacency share it.
        self._split = CoverSplit.of(pattern, cover, grid.replication, grid.replica)
        nodes, positions = pattern.ghosts[self._split.used], pattern.column_positions()
        ids = _row_ids(channel, pattern, pattern.column_nodes, pattern.shape[1])
        fetched = Ghosts(pattern.row_map, nodes, positions, pattern.shape[1], ids=ids)
        self._fetch = make_ghosts(channel, fetched)
        self.hides = not channel.schedule.sequential or channel.schedule.prefetch > 0
        """Whether rows travel while others are multiplied."""
        # The second exchange is made only if some rank pushes.
        self._push: GhostExchange | None = None
        self._pushed = self._peers.pushed_entries(pattern, self._split)
        if self._pushed is not None:
            nodes, positions = self._pushed.targets, pattern.row_positions()
            ids = _row_ids(channel, pattern, pattern.row_nodes, pattern.shape[0])
            targets = Ghosts(
                pattern.result_map, nodes, positions, pattern.shape[0], pushed=True, ids=ids
            )
            self._push = make_ghosts(channel, targets)
        self.sum_rows, self.sum_columns = (
            make_sum(grid, channel.carrier, channel.trace, shares(pattern, grid.replication))
            for shares in (ReplicaShares.of_product, ReplicaShares.of_adjoint)
        )

    @collective
    def bind(self, matrix: DistCSR, *, coded: bool = False) -> tuple[RemotePart, RemotePart | None]:
        """Return ``C F`` of a matrix of the exchange's pattern, and ``Rᵀ G`` if any rank pushes.

        The values of pushed entries are sent to the owners of their columns. With `coded` column
        indices the parts can only multiply.
        """
        fetched = RemotePart(self._fetch, self._split.block(matrix), coded=coded)
        if self._pushed is None or self._push is None:
            return fetched, None
        values = matrix.remote.entries(self._split.pushed)
        if values is not None:
            owners = self._split.owners_of_pushed(matrix)
            arrived = self._peers.pushed_values(owners, values)
            values = arrived[self._pushed.order]
        pushed = self._pushed.pattern.with_values(values)
        if matrix.diagonal.kinds is not None:
            kinds = Kinds(matrix.num_relations, None, matrix.relations_of(self.targets))
            pushed = replace(pushed, kinds=kinds)
        return fetched, RemotePart(self._push, pushed, coded=coded)

    @collective
    def bind_edges(
        self, matrix: DistCSR, table: EdgeTable
    ) -> tuple[RemotePart, EdgeTable, Offsets] | None:
        """Exchange pushed edges; return None if no rank pushes.

        The values of `matrix` are the numbers of its entries in `table`. Return ``Rᵀ G``, whose
        values are numbers of entries in the table that follows; the table of other ranks' edges
        that this rank computes; and (rows,) int64 the number of edges of each own row that other
        ranks compute.
        """
        if self._pushed is None or self._push is None:
            return None
        values = matrix.remote.entries(self._split.pushed)
        numbers = np.empty(0, np.int64) if values is None else values.astype(np.int64)
        counts, edges = table.edges_of(numbers)
        owners, send = self._split.owners_of_pushed(matrix), self._peers.pushed_values
        arrived = EdgeTable.of_counts(
            send(owners, counts), send(np.repeat(owners, counts), table.features[edges])
        )
        rows = matrix.remote.entry_rows()[self._split.pushed]
        per_row = np.bincount(rows, counts, minlength=matrix.shape[0]).astype(np.int64)
        pattern = self._pushed.pattern.with_values(self._pushed.order.astype(np.float64))
        return RemotePart(self._push, pattern), arrived, per_row

    @collective
    def size(self, matrix: DistCSR) -> OperatorSize:
        """Return the size of the whole matrix and the rows that all ranks move for a product."""
        moved = int(self.volume().sent.sum()) + self.sum_rows.num_sent
        size = self._peers.size(matrix, moved)
        return replace(size, is_sequential=self.is_sequential)

    def joining(self, x: Array, *, adjoint: bool) -> AbstractContextManager[None]:
        """Join messages of the two exchanges of a product with `x` inside the block, if it has two.

        The `adjoint`, a product with the transpose, fetches what the product pushes.
        """
        fetch, push = (self._push, self._fetch) if adjoint else (self._fetch, self._push)
        # A sequential push begins only after the fetch has ended.
        if fetch is None or push is None or fetch.sequential:
            return nullcontext()
        if fetch.plan is None or push.plan is None:
            return nullcontext()
        size = fetch.wire.row_bytes(x, self.run_position.now.way)
        return self.carrier.joining(fetch.plan, push.plan, size)

    @property
    def fetches_all(self) -> bool:
        """Whether this replica fetches the columns of all remote entries."""
        return self._pushed is None and self._split.fetched is None

    @property
    def targets(self) -> GlobalIndices:
        """(n,) int64 ascending global rows that this rank pushes to."""
        return np.empty(0, np.int64) if self._pushed is None else self._pushed.targets

    @property
    def is_sequential(self) -> bool:
        """Whether stages come one by one and fetched rows are not kept."""
        return self._fetch.sequential

    @property
    def volumes(self) -> tuple[Volume, ...]:
        """The rows that one product fetches and the partial sums that it pushes, if any."""
        fetched = self._fetch.volume()
        # Pushed sums go from the owner of a column, as fetched rows do, so reverse their "fetch".
        return (fetched,) if self._push is None else (fetched, self._push.volume().reversed())

    def volume(self) -> Volume:
        """Return the rows and sums that one product moves; its adjoint moves them the other way."""
        fetched, *pushed = self.volumes
        return sum(pushed, start=fetched)


_RELATION_BITS = 40
"""In the id of a row of a node and a relation, the node's id has this many low bits."""


def _row_ids(
    channel: Channel, pattern: DistCSR, numbers: LocalIndices | None, num_rows: int
) -> GlobalIndices | None:
    """Return (num_rows,) int64 ids of rows or columns; None if the wire does not round randomly."""
    if not channel.wire.quantises:
        return None
    row_map, ids = pattern.row_map, channel.node_ids
    if ids is None:
        ids = np.arange(row_map.start, row_map.stop, dtype=np.int64)
    if numbers is None:
        numbers = np.arange(num_rows, dtype=np.int32)
    relations, nodes = np.divmod(numbers, max(row_map.num_local, 1))
    row_ids: GlobalIndices = ids[nodes] + (relations.astype(np.int64) << _RELATION_BITS)
    return row_ids
