"""The sparsity-oblivious ghost exchange: every block row is broadcast whole.

This is the baseline of CAGNET and of "Sparsity-Aware Communication ..." (its section 4), with a
stage for each block column; its traffic does not depend on the graph. A resident schedule starts
all broadcasts at once. A sequential one holds ``1 + prefetch`` block rows; with a prefetch of 1 the
next broadcast is under way while a block is multiplied. The push is a reduction for each block
column in the dtype of the arrays, since MPI adds neither 16-bit floats nor packed rows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcgnn.comm import Transfer, Volume
from hpcgnn.spmd import collective
from hpcgnn.spmm.exchange.ghosts import Channel
from hpcgnn.spmm.exchange.peers import Ghosts
from hpcgnn.spmm.exchange.route import pack_rows, unpack_rows
from hpcgnn.spmm.exchange.stages import (
    Combine,
    Slots,
    StageColumns,
    exchange_span,
    world_ranks,
)
from hpcgnn.spmm.schedule import refuse_to_keep
from hpcgnn.spmm.wire import Packing, Wire
from hpcgnn.typing import Array


class BroadcastExchange:
    """Broadcasts the block rows that this layer of the grid handles."""

    @collective
    def __init__(self, channel: Channel, ghosts: Ghosts) -> None:
        grid, self.carrier, self.trace = channel.grid, channel.carrier, channel.trace
        # Sums of integers are not shortened either, as reductions are in the arrays' dtype.
        self.wire, self.push_wire, self.plan = replace(channel.wire, integers=False), Wire(), None
        self.rank, self.ranks = grid.block, world_ranks(grid)
        self.roots = [block for block in range(grid.num_blocks) if grid.handles(block)]
        self.sizes, self.run_position = channel.peers.sizes(ghosts), grid.run_position
        # The ids of the rows of each rank, from which the draws of their rounding are derived.
        self.ids = channel.peers.all_ids(ghosts) if self.wire.quantises else []
        peers = self.volume().sent.nonzero()[0].tolist()
        self.sent = tuple((int(self.ranks[i]), ghosts.num_rows) for i in peers)
        all_rows = np.arange(ghosts.num_rows, dtype=np.int32)
        self.own_rows = self.carrier.memory.put(all_rows)
        # The own block row is used without a copy.
        self.num_ghosts = [int(self.sizes[r]) if r != self.rank else 0 for r in self.roots]
        self.sequential = channel.schedule.sequential
        self.window = channel.schedule.window(len(self.roots))
        self.columns = self.push_columns = StageColumns(
            tuple(self.sizes[self.roots].tolist()),
            np.searchsorted(self.roots, ghosts.row_map.owner(ghosts.nodes)).astype(np.int32),
            channel.peers.rows_at_owners(ghosts),
        )

    @collective
    def start_fetch(
        self, x: Array, *, keep: bool = False, columns: Packing | None = None
    ) -> "_BroadcastFetch":
        """Start the first broadcasts; resident rows are valid as long as they are referenced."""
        refuse_to_keep(keep and self.sequential)
        return _BroadcastFetch(self, x, columns)

    @collective
    def start_push(
        self, like: Array, combine: Combine, columns: Packing | None = None
    ) -> "_BroadcastPush":
        """Prepare the reductions; each starts with `send`."""
        del columns
        if not combine.adds:
            raise ValueError("the oblivious exchange can only push sums")
        return _BroadcastPush(self, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch, as if roots sent them directly to every rank."""
        received = np.zeros(len(self.sizes), np.int64)
        received[self.roots] = self.sizes[self.roots]
        sent = np.full(
            len(self.sizes), self.sizes[self.rank] if self.rank in self.roots else 0, np.int64
        )
        sent[self.rank] = received[self.rank] = 0
        return Volume(sent, received)

    def slots(self, sizes: Sequence[int], width: int, dtype: np.dtype[np.generic]) -> Slots:
        """Return the buffers for block rows."""
        return Slots(self.carrier, sizes, self.window, width, dtype, ghosts=True)


class _BroadcastFetch:
    def __init__(self, exchange: BroadcastExchange, x: Array, columns: Packing | None) -> None:
        self._exchange, wire, run_position = exchange, exchange.wire, exchange.run_position
        dtype = wire.dtype(x)
        self._transfers: dict[int, Transfer] = {}
        # The own block row is sent without a copy unless the wire is narrower.
        self._own = x
        if dtype != x.dtype:
            carrier = exchange.carrier
            self._own = carrier.take(x.shape, dtype)
            carrier.memory.kernels.gather_rows(x, None, self._own, half=wire.half)
        self._blocks = exchange.slots(exchange.num_ghosts, x.shape[1], dtype)
        # If rows are packed, these buffers are broadcast instead; own rows are used unpacked.
        self._parts = wire.packing(x, run_position.now, columns)
        self._packed: Slots | None = None
        if any(bits is not None for *_, bits in self._parts):
            size = sum(size for _, size, _ in self._parts)
            self._packed = exchange.slots(exchange.num_ghosts, size, np.dtype(np.uint8))
            self._own_packed = exchange.carrier.take((len(x), size), np.uint8)
            pack_rows(self._parts, x, self._own_packed, exchange.ids[exchange.rank], None)
        with exchange_span(
            exchange.trace,
            "exchange.forward",
            exchange.sent,
            wire.way_bytes(x, run_position, columns, forward=True),
            exchange.carrier,
        ):
            for index in range(exchange.window):
                self._start(index)

    def stage(self, index: int) -> Array:
        if index > 0:
            # The caller is done with the previous stage, so its buffer is free.
            self._start(index - 1 + self._exchange.window)
        exchange = self._exchange
        self._transfers.pop(index).wait(exchange.trace)
        root, rows = exchange.roots[index], self._block(index, self._own, self._blocks)
        if self._packed is not None and root != exchange.rank:
            senders: list[tuple[int, int | None]] = [(len(rows), None)]
            unpack_rows(self._parts, rows, self._packed.rows(index), exchange.ids[root], senders)
        return rows

    def _start(self, index: int) -> None:
        if index < len(self._exchange.roots):
            root = self._exchange.roots[index]
            rows = self._block(index, self._own, self._blocks)
            if self._packed is not None:
                rows = self._block(index, self._own_packed, self._packed)
            self._transfers[index] = self._exchange.carrier.start_broadcast(rows, root)

    def _block(self, index: int, own: Array, others: Slots) -> Array:
        is_own = self._exchange.roots[index] == self._exchange.rank
        return own if is_own else others.rows(index)


class _BroadcastPush:
    def __init__(self, exchange: BroadcastExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._like, self._combine = exchange, like, combine
        self._transfers: dict[int, Transfer] = {}
        self._blocks: Slots | None = None

    def buffer(self, index: int) -> Array:
        exchange, like = self._exchange, self._like
        if self._blocks is None:
            # Allocate late: until now the ghosts of a fetch may be in memory.
            self._blocks = exchange.slots(exchange.columns.widths, like.shape[1], like.dtype)
            shape = (int(exchange.sizes[exchange.rank]), like.shape[1])
            self._arrived = exchange.carrier.take(shape, like.dtype)
        # A reduction reads its buffer until it has completed, on the root too.
        self._transfers.pop(index - exchange.window, Transfer()).wait()
        return self._blocks.rows(index)

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._blocks is not None, "a stage must be filled before it is sent"
        root, partial = exchange.roots[index], self._blocks.rows(index)
        sent = () if root == exchange.rank else ((int(exchange.ranks[root]), len(partial)),)
        row_bytes = exchange.push_wire.row_bytes(partial)
        with exchange_span(exchange.trace, "exchange.reverse", sent, row_bytes, exchange.carrier):
            self._transfers[index] = exchange.carrier.start_reduce(partial, self._arrived, root)

    def finish(self) -> None:
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            for transfer in self._transfers.values():
                transfer.wait()
        # A single rank has nothing to reduce, and a GPU could not add to its 16-bit result.
        if exchange.rank in exchange.roots and len(exchange.sizes) > 1:
            with exchange.trace.span("boundary.add"):
                self._combine(exchange.own_rows, self._arrived)
