"""The sparsity-oblivious ghost exchange: every block row is broadcast whole.

The baseline of CAGNET and of "Sparsity-Aware Communication ..." (its section 4): a stage for each
block column; bytes do not depend on the graph. A resident schedule starts all broadcasts at once; a
sequential one holds ``1 + prefetch`` block rows, and with a prefetch of 1 the next broadcast is
under way while a block is multiplied. Its push is a reduction for each block column, in the dtype
of the arrays: MPI does not add 16-bit floats.
"""

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, Transfer, Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier, Crossing
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire
from hpcgnn.spmm.schedule import Schedule, refuse_to_keep
from hpcgnn.spmm.slots import Slots, split_columns
from hpcgnn.spmm.spans import Moved, exchange_span, world_ranks
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
    schedule
        Says how many block rows are in memory at one time.
    carrier
        Where the rows are.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        ghosts: Ghosts,
        wire: Wire,
        trace: TraceRecorder,
        schedule: Schedule,
        carrier: Carrier,
    ) -> None:
        self.comm, self.wire, self.trace = grid.layer, wire, trace
        self.carrier = carrier
        self.roots = [block for block in range(grid.num_blocks) if grid.handles(block)]
        self.sizes = np.array(self.comm.allgather(ghosts.num_rows), np.int64)
        self.ranks = world_ranks(grid)
        self.sent = Moved.of_counts(self.volume().sent, self.ranks)
        every = np.arange(ghosts.num_rows, dtype=np.int32)
        self.own_rows = self.carrier.memory.put(every)
        # The own block row is there without a copy.
        self.num_ghosts = [int(self.sizes[r]) if r != self.comm.rank else 0 for r in self.roots]
        self.window = schedule.window(len(self.roots))
        owners = ghosts.row_map.owner(ghosts.nodes)
        stages = np.searchsorted(self.roots, owners).astype(np.int32)
        self._stages = np.where(np.isin(owners, self.roots), stages, np.int32(-1))
        self._columns = _rows_at_owners(grid, ghosts)
        self.sequential = schedule.sequential

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block for each block column; columns are the rows of its owner.

        Not collective.
        """
        return split_columns(block, self._stages, self._columns, self.sizes[self.roots].tolist())

    def split_push(self, block: LocalCSR) -> None:
        """Return None: a push has the stages of a fetch.

        Not collective.
        """

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each row of a block is, -1 for none.

        Not collective.
        """
        chosen = np.flatnonzero(self._stages == index).astype(np.int32)
        ghosts = np.full(int(self.sizes[self.roots[index]]), -1, np.int32)
        ghosts[self._columns[chosen]] = chosen
        return ghosts

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array, *, keep: bool = False) -> "_Fetch":
        """Start the first broadcasts; rows of a resident exchange are valid while anyone has them.

        Collective.
        """
        refuse_to_keep(keep and self.sequential)
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

    def slots(self, sizes: list[int], width: int, dtype: np.dtype[np.generic]) -> Slots:
        """Return the buffers for block rows."""
        return Slots(self.carrier, sizes, self.window, width, dtype, ghosts=True)


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
        self._exchange = exchange
        dtype = exchange.wire.dtype(x)
        self._crossings: dict[int, Crossing] = {}
        self._own = x
        if dtype != x.dtype:
            carrier = exchange.carrier
            self._own = carrier.take(x.shape, dtype)
            carrier.memory.kernels.gather_rows(x, None, self._own, half=exchange.wire.half)
        self._blocks = exchange.slots(exchange.num_ghosts, x.shape[1], dtype)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.sent, self._own, exchange.carrier
        ):
            for index in range(exchange.window):
                self._start(index)

    def stage(self, index: int) -> Array:
        if index > 0:
            # The caller is done with the stage before, and its buffer is free.
            self._start(index - 1 + self._exchange.window)
        self._crossings.pop(index).wait()
        return self._block(index)

    def _start(self, index: int) -> None:
        if index < len(self._exchange.roots):
            root = self._exchange.roots[index]
            rows = self._block(index)
            self._crossings[index] = self._exchange.carrier.start_broadcast(rows, root)

    def _block(self, index: int) -> Array:
        if self._exchange.roots[index] == self._exchange.comm.rank:
            return self._own
        return self._blocks.rows(index)


class _Push:
    def __init__(self, exchange: BroadcastExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._like, self._combine = exchange, like, combine
        self._crossings: dict[int, Crossing] = {}
        self._blocks: Slots | None = None

    def buffer(self, index: int) -> Array:
        exchange, like = self._exchange, self._like
        if self._blocks is None:
            # Not before: until now the ghosts of a fetch may be in memory.
            sizes = exchange.sizes[exchange.roots].tolist()
            self._blocks = exchange.slots(sizes, like.shape[1], like.dtype)
            shape = (int(exchange.sizes[exchange.comm.rank]), like.shape[1])
            self._arrived = exchange.carrier.take(shape, like.dtype)
        self._crossings.pop(index - exchange.window, Transfer()).wait()
        return self._blocks.rows(index)

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._blocks is not None, "a stage is filled before it is sent"
        root, partial = exchange.roots[index], self._blocks.rows(index)
        moved = () if root == exchange.comm.rank else ((int(exchange.ranks[root]), len(partial)),)
        with exchange_span(
            exchange.trace, "exchange.reverse", Moved(moved), partial, exchange.carrier
        ):
            self._crossings[index] = exchange.carrier.start_reduce(partial, self._arrived, root)

    def finish(self) -> None:
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            for crossing in self._crossings.values():
                crossing.wait()
        if exchange.comm.rank in exchange.roots:
            with exchange.trace.span("boundary.add"):
                self._combine(exchange.own_rows, self._arrived)
