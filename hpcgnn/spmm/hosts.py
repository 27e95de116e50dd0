"""The hierarchical ghost exchange: a host fetches a row once, whatever number of its ranks need it.

The ranks of a host (*mates*) share one array a product. It holds, for every mate, the rows that it
owns and other mates need, and the rows that it fetched from other hosts on behalf of all::

    | rank 0: own rows | rank 0: fetched | rank 1: own rows | rank 1: fetched | ...

Columns of the remote block are rows of that array, so nothing is copied a second time. All rows of
one owner are fetched by one mate: a pair of an owner and a host exchanges one message. The adjoint
sums the mates' partial sums in shared memory, in mate order, and returns one row for each ghost of
the host.
"""

from collections.abc import Iterator

import numpy as np

from hpcgnn import kernels
from hpcgnn.comm import CommPlan, HostMemory, ProcessGrid, Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire
from hpcgnn.spmm.host_shares import find_shares, matches, shared_rows
from hpcgnn.spmm.spans import Moved, exchange_span, world_ranks
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

__all__ = ["HostExchange"]


class HostExchange:
    """Fetch every ghost of a host once.

    Collective.

    Parameters
    ----------
    grid, ghosts, wire, trace, carrier
        As for `PlannedExchange`, in main memory. Partial sums stay in their own dtype until they
        leave the host.
    """

    sequential = False

    def __init__(
        self,
        grid: ProcessGrid,
        ghosts: Ghosts,
        wire: Wire,
        trace: TraceRecorder,
        carrier: Carrier,
    ) -> None:
        self.wire, self.trace, self.carrier = wire, trace, carrier
        self.memory: HostMemory = grid.host_memory()
        mates = grid.host_ranks
        self.mate = int(np.searchsorted(mates, grid.layer.rank))
        self.needs: list[GlobalIndices] = self.memory.comm.allgather(ghosts.nodes)
        self.shares = find_shares(ghosts.row_map, self.needs, mates)
        mine = self.shares[self.mate]
        self.plan = CommPlan.from_ghosts(grid, ghosts.row_map, mine.fetched, ghosts.positions)
        volume, ranks = self.plan.volume(), world_ranks(grid)
        self.sent = Moved.of_counts(volume.sent, ranks)
        self.received = Moved.of_counts(volume.received, ranks)
        self.pool = grid.buffers
        self.own_rows = _positions(ghosts, mine.own)
        self.num_shared = self.shares[-1].stop
        self._columns = shared_rows(ghosts.row_map, ghosts.nodes, self.shares, mates)
        self.push_starts: Offsets = np.cumsum([0, *map(len, self.needs)])
        self.own_parts = [matches(nodes, mine.own) for nodes in self.needs]
        self.fetched_parts = [matches(nodes, mine.fetched) for nodes in self.needs]

    @property
    def read_rows(self) -> LocalIndices:
        """Rows of the arrays that are fetched from which any rank needs, int32 increasing."""
        rows: LocalIndices = np.union1d(self.plan.send_rows, self.own_rows)
        return rows

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return the block with the rows of the shared array as columns.

        Not collective.
        """
        return (block.select(self._columns, self.num_shared),)

    def split_push(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return the block as it is.

        Not collective.
        """
        return (block,)

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each row of the shared array is, -1 for none.

        Not collective.
        """
        assert index == 0
        ghosts = np.full(self.num_shared, -1, np.int32)
        ghosts[self._columns] = np.arange(len(self._columns), dtype=np.int32)
        return ghosts

    def push_ghosts_of(self, index: int) -> LocalIndices:
        """Return all ghosts in order.

        Not collective.
        """
        assert index == 0
        return np.arange(len(self._columns), dtype=np.int32)

    def start_fetch(self, x: Array, *, keep: bool = False) -> "_Fetch":
        """Write own rows, and start to fetch from other hosts into shared memory.

        Collective. Rows to keep are copied from there.
        """
        return _Fetch(self, x, keep=keep)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> "_Push":
        """Prepare the return of partial sums, which are added up on every host.

        Collective.
        """
        if not additive:
            raise ValueError("the hierarchical exchange pushes sums only")
        return _Push(self, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch that leave a host, and only those.

        Not collective.
        """
        return self.plan.volume()


def _positions(ghosts: Ghosts, nodes: GlobalIndices) -> LocalIndices:
    rows = ghosts.row_map.to_local(nodes)
    return rows if ghosts.positions is None else ghosts.positions[rows]


class _Fetch:
    def __init__(self, exchange: HostExchange, x: Array, *, keep: bool) -> None:
        self._exchange, self._keep = exchange, keep
        width, dtype = x.shape[1], exchange.wire.dtype(x)
        memory, half = exchange.memory, exchange.wire.half
        self._shared = memory.get("fetch", (exchange.num_shared, width), dtype)
        exchange.pool.ghosts.hold(self, self._shared.nbytes // len(exchange.shares))
        self._packed = exchange.pool.take((exchange.plan.num_sent, width), dtype)
        share = exchange.shares[exchange.mate]
        fetched = share.start + len(share.own)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.sent, self._packed, exchange.pool
        ):
            kernels.gather_rows(x, exchange.plan.send_rows, self._packed, half=half)
            # Mates may still read the previous product's rows.
            memory.synchronise("fetch")
            self._transfer = exchange.plan.start_forward(
                self._packed, self._shared[fetched : share.stop]
            )
            own = self._shared[share.start : fetched]
            kernels.gather_rows(x, exchange.own_rows, own, half=half)

    def stage(self, index: int) -> Array:
        assert index == 0
        self._transfer.wait()
        self._exchange.memory.synchronise("fetch")
        if not self._keep:
            return self._shared
        kept = self._exchange.pool.take(self._shared.shape, self._shared.dtype, ghosts=True)
        kept[:] = self._shared
        return kept


class _Push:
    def __init__(self, exchange: HostExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._combine = exchange, combine
        width = like.shape[1]
        starts = exchange.push_starts
        self._shared = exchange.memory.get("push", (int(starts[-1]), width), like.dtype)
        # Mates may still read the previous product's sums.
        exchange.memory.synchronise("push")
        self._partial = self._shared[starts[exchange.mate] : starts[exchange.mate + 1]]
        dtype = exchange.wire.dtype(like)
        exchange.pool.ghosts.hold(self, self._partial.nbytes)
        self._sums = exchange.pool.take((exchange.plan.num_ghosts, width), like.dtype, ghosts=True)
        self._outgoing = self._sums
        if dtype != like.dtype:
            self._outgoing = exchange.pool.take(self._sums.shape, dtype)
        self._arrived = exchange.pool.take((exchange.plan.num_sent, width), dtype)

    def buffer(self, index: int) -> Array:
        assert index == 0
        return self._partial

    def send(self, index: int) -> None:
        assert index == 0
        exchange = self._exchange
        exchange.memory.synchronise("push")
        self._sums[:] = 0
        for rows, partial in self._mates(exchange.fetched_parts):
            kernels.scatter_add_rows(partial, rows, self._sums)
        with exchange_span(
            exchange.trace, "exchange.reverse", exchange.received, self._outgoing, exchange.pool
        ):
            if self._outgoing is not self._sums:
                kernels.gather_rows(self._sums, None, self._outgoing, half=exchange.wire.half)
            self._transfer = exchange.plan.start_reverse(self._outgoing, self._arrived)

    def finish(self) -> None:
        exchange = self._exchange
        with exchange.trace.span("boundary.add"):
            for rows, partial in self._mates(exchange.own_parts):
                self._combine(exchange.own_rows[rows], partial)
        with exchange.trace.span("wait.reverse"):
            self._transfer.wait()
        with exchange.trace.span("boundary.add"):
            for start, stop in exchange.plan.send_ranges:
                self._combine(exchange.plan.send_rows[start:stop], self._arrived[start:stop])

    def _mates(
        self, parts: list[tuple[LocalIndices, LocalIndices]]
    ) -> Iterator[tuple[LocalIndices, Array]]:
        """Yield the sums of the mates in mate order, so that results do not depend on timing."""
        starts, width = self._exchange.push_starts, self._shared.shape[1]
        for mate, (sources, targets) in enumerate(parts):
            segment = self._shared[starts[mate] : starts[mate + 1]]
            picked = self._exchange.pool.take((len(sources), width), segment.dtype)
            kernels.gather_rows(segment, sources, picked)
            yield targets, picked
