"""The sparsity-oblivious exchange: every block row is broadcast whole.

The baseline of CAGNET and of "Sparsity-Aware Communication ..." (its section 4): a stage for each
block column, with the next broadcast under way while the current block is multiplied. Memory is two
block rows; bytes do not depend on the graph.
"""

from mpi4py import MPI

import numpy as np

from hpcgnn.comm import BufferPool, ProcessGrid, RowMap, Volume, start_broadcast, start_reduce
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.exchange import exchange_span
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices

__all__ = ["ObliviousExchange"]


class ObliviousExchange:
    """Broadcast the block rows that this layer of the grid handles.

    Not collective.

    Parameters
    ----------
    grid
        The ranks.
    row_map
        Owners of the rows.
    ghosts
        (num_ghosts,) int64 increasing global rows of the matrix' remote columns.
    trace
        Where rows and bytes are recorded.
    """

    name = "oblivious"

    def __init__(
        self, grid: ProcessGrid, row_map: RowMap, ghosts: GlobalIndices, trace: TraceRecorder
    ) -> None:
        self.comm, self.row_map, self.trace = grid.layer, row_map, trace
        self.roots = [block for block in range(grid.num_blocks) if grid.handles(block)]
        self.peers = np.arange(grid.num_blocks) * grid.replication + grid.replica
        self.pool = BufferPool()
        self._ghosts = ghosts
        self._owners = row_map.owner(ghosts)

    def split(self, remote: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block for each block column; columns are the local rows of its owner.

        Not collective.
        """
        blocks = []
        for root in self.roots:
            inside = self._ghosts - self.row_map.starts[root]
            columns = np.where(self._owners == root, inside, -1).astype(np.int32)
            blocks.append(remote.relabel_columns(columns, self.row_map.size_of(root)))
        return tuple(blocks)

    def start_fetch(self, x: Array) -> "_Fetch":
        """Start the first broadcast.

        Collective.
        """
        return _Fetch(self, x)

    def start_push(self, like: Array) -> "_Push":
        """Prepare the reductions; each starts with `send`.

        Collective.
        """
        return _Push(self, like)

    def volume(self) -> Volume:
        """Return the rows of one fetch, however the MPI library forwards them.

        Not collective.
        """
        mine, blocks = self.comm.rank, self.row_map.num_blocks
        received = np.zeros(blocks, np.int64)
        for root in self.roots:
            received[root] = self.row_map.size_of(root)
        received[mine] = 0
        sent = np.full(blocks, self.row_map.num_local if mine in self.roots else 0, np.int64)
        sent[mine] = 0
        return Volume(sent, received)

    def buffer(self, index: int, like: Array) -> Array:
        """Return one of two alternating arrays for the block row of stage `index`."""
        rows = self.row_map.size_of(self.roots[index])
        return self.pool.get(f"block {index % 2}", (rows, like.shape[1]), like.dtype)


class _Fetch:
    def __init__(self, exchange: ObliviousExchange, x: Array) -> None:
        self._exchange, self._x = exchange, x
        self._requests: dict[int, list[MPI.Request]] = {}
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.volume().sent, x, exchange.peers
        ):
            self._start(0)

    def _start(self, index: int) -> None:
        if index < len(self._exchange.roots):
            root = self._exchange.roots[index]
            rows = self._block(index)
            self._requests[index] = start_broadcast(self._exchange.comm, rows, root)

    def _block(self, index: int) -> Array:
        if self._exchange.roots[index] == self._exchange.comm.rank:
            return self._x
        return self._exchange.buffer(index, self._x)

    def stage(self, index: int) -> Array:
        MPI.Request.Waitall(self._requests.pop(index))
        # The other buffer is free: its block was multiplied before this stage was asked for.
        self._start(index + 1)
        return self._block(index)


class _Push:
    def __init__(self, exchange: ObliviousExchange, like: Array) -> None:
        self._exchange, self._like = exchange, like
        shape = (exchange.row_map.num_local, like.shape[1])
        self._arrived = exchange.pool.get("arrived", shape, like.dtype)
        self._requests: dict[int, list[MPI.Request]] = {}

    def buffer(self, index: int) -> Array:
        MPI.Request.Waitall(self._requests.pop(index - 2, []))
        return self._exchange.buffer(index, self._like)

    def send(self, index: int) -> None:
        exchange = self._exchange
        root = exchange.roots[index]
        rows = np.zeros(exchange.row_map.num_blocks, np.int64)
        if root != exchange.comm.rank:
            rows[root] = exchange.row_map.size_of(root)
        with exchange_span(exchange.trace, "exchange.reverse", rows, self._like, exchange.peers):
            partial = exchange.buffer(index, self._like)
            self._requests[index] = start_reduce(exchange.comm, partial, self._arrived, root)

    def finish(self, out: Array) -> None:
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            for requests in self._requests.values():
                MPI.Request.Waitall(requests)
        if exchange.comm.rank in exchange.roots:
            out += self._arrived
