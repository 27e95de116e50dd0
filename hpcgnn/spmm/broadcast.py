"""The sparsity-oblivious ghost exchange: every block row is broadcast whole.

The baseline of CAGNET and of "Sparsity-Aware Communication ..." (its section 4): a stage for each
block column, with the next broadcast under way while the current block is multiplied. Memory is two
block rows; bytes do not depend on the graph. Its push is a reduction for each block column, in the
dtype of the arrays: MPI does not add 16-bit floats.
"""

import numpy as np

from hpcgnn import kernels
from hpcgnn.comm import (
    BufferPool,
    CommPlan,
    ProcessGrid,
    Transfer,
    Volume,
    start_broadcast,
    start_reduce,
)
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire, exchange_span, world_ranks
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices

__all__ = ["BroadcastExchange"]


class BroadcastExchange:
    """Broadcast the block rows that this layer of the grid handles.

    Collective.

    Parameters
    ----------
    grid, ghosts, wire, trace
        As for `PlannedExchange`.
    """

    def __init__(self, grid: ProcessGrid, ghosts: Ghosts, wire: Wire, trace: TraceRecorder) -> None:
        self.comm, self.wire, self.trace = grid.layer, wire, trace
        self.roots = [block for block in range(grid.num_blocks) if grid.handles(block)]
        self.sizes = np.array(self.comm.allgather(ghosts.num_rows), np.int64)
        self.peers = world_ranks(grid)
        self.pool = BufferPool()
        self._owners = ghosts.row_map.owner(ghosts.nodes)
        self._columns = _rows_at_owners(grid, ghosts)
        self.sequential = True

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block for each block column; columns are the rows of its owner.

        Not collective.
        """
        owners = self._owners[block.indices]
        return tuple(
            block.select(self._columns, int(self.sizes[root]), kept=owners == root)
            for root in self.roots
        )

    split_push = split

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each row of a block is, -1 for none.

        Not collective.
        """
        root = self.roots[index]
        chosen = np.flatnonzero(self._owners == root).astype(np.int32)
        ghosts = np.full(int(self.sizes[root]), -1, np.int32)
        ghosts[self._columns[chosen]] = chosen
        return ghosts

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array) -> "_Fetch":
        """Start the first broadcast.

        Collective.
        """
        return _Fetch(self, x)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> "_Push":
        """Prepare the reductions; each starts with `send`.

        Collective.
        """
        if not additive:
            raise ValueError("the oblivious exchange pushes sums only")
        return _Push(self, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch, however the MPI library forwards them.

        Not collective.
        """
        mine = self.comm.rank
        received = np.zeros(len(self.sizes), np.int64)
        received[self.roots] = self.sizes[self.roots]
        sent = np.full(len(self.sizes), self.sizes[mine] if mine in self.roots else 0, np.int64)
        sent[mine] = received[mine] = 0
        return Volume(sent, received)

    def buffer(self, index: int, width: int, dtype: np.dtype[np.generic]) -> Array:
        """Return one of two alternating arrays for the block row of stage `index`."""
        rows = int(self.sizes[self.roots[index]])
        return self.pool.get(f"block {index % 2}", (rows, width), dtype)


def _rows_at_owners(grid: ProcessGrid, ghosts: Ghosts) -> LocalIndices:
    """Return (num_ghosts,) int32: the row of each ghost in its owner's array."""
    row_map = ghosts.row_map
    if ghosts.positions is None:
        return (ghosts.nodes - row_map.starts[row_map.owner(ghosts.nodes)]).astype(np.int32)
    plan = CommPlan.from_ghosts(grid, row_map, ghosts.nodes)
    # float64 holds every int32 exactly, and plans move floats.
    rows = plan.forward(ghosts.positions.astype(np.float64)[:, None])
    return rows[:, 0].astype(np.int32)


class _Fetch:
    def __init__(self, exchange: BroadcastExchange, x: Array) -> None:
        self._exchange, self._width = exchange, x.shape[1]
        self._dtype = exchange.wire.dtype(x)
        self._transfers: dict[int, Transfer] = {}
        self._own = x
        if self._dtype != x.dtype:
            self._own = exchange.pool.get("own", x.shape, self._dtype)
            kernels.gather_rows(x, None, self._own, half=exchange.wire.half)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.volume().sent, self._own, exchange.peers
        ):
            self._start(0)

    def stage(self, index: int) -> Array:
        self._transfers.pop(index).wait()
        # The other buffer is free: its block was multiplied before this stage was asked for.
        self._start(index + 1)
        return self._block(index)

    def _start(self, index: int) -> None:
        if index < len(self._exchange.roots):
            root = self._exchange.roots[index]
            rows = self._block(index)
            self._transfers[index] = start_broadcast(self._exchange.comm, rows, root)

    def _block(self, index: int) -> Array:
        if self._exchange.roots[index] == self._exchange.comm.rank:
            return self._own
        return self._exchange.buffer(index, self._width, self._dtype)


class _Push:
    def __init__(self, exchange: BroadcastExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._like, self._combine = exchange, like, combine
        shape = (int(exchange.sizes[exchange.comm.rank]), like.shape[1])
        self._arrived = exchange.pool.get("arrived", shape, like.dtype)
        self._transfers: dict[int, Transfer] = {}

    def buffer(self, index: int) -> Array:
        self._transfers.pop(index - 2, Transfer()).wait()
        return self._exchange.buffer(index, self._like.shape[1], self._like.dtype)

    def send(self, index: int) -> None:
        exchange = self._exchange
        root = exchange.roots[index]
        rows = np.zeros(len(exchange.sizes), np.int64)
        if root != exchange.comm.rank:
            rows[root] = exchange.sizes[root]
        partial = self.buffer(index)
        with exchange_span(exchange.trace, "exchange.reverse", rows, partial, exchange.peers):
            self._transfers[index] = start_reduce(exchange.comm, partial, self._arrived, root)

    def finish(self) -> None:
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            for transfer in self._transfers.values():
                transfer.wait()
        if exchange.comm.rank in exchange.roots:
            self._combine(np.arange(len(self._arrived), dtype=np.int32), self._arrived)
