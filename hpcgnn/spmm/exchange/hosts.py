"""The hierarchical ghost exchange: a host fetches a row once, however many of its ranks need it.

Columns of the remote block are rows of an array that the ranks of a host share (see `host_layout`),
so rows are not copied again. The adjoint adds up the partial sums of the mates in shared memory and
returns one row for each ghost of the host. Two hosts exchange one message in each direction,
however many ranks they have.

With a sequential schedule each owner sends its own rows, one message to each host. At most ``1 +
prefetch`` stages are in memory, and a push holds one block of partial sums and the rank's share of
the host's sums.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from hpcgnn import kernels
from hpcgnn.comm import Request, RowMap, Stage, Transfer, Volume
from hpcgnn.spmd import collective
from hpcgnn.spmm.exchange.ghosts import Channel, Push
from hpcgnn.spmm.exchange.host_layout import HostLayout, Outbox
from hpcgnn.spmm.exchange.peers import Ghosts, LayerGhosts, unite
from hpcgnn.spmm.exchange.route import Route
from hpcgnn.spmm.exchange.stages import (
    Combine,
    StageColumns,
    combine_stage,
)
from hpcgnn.spmm.schedule import refuse_to_keep
from hpcgnn.spmm.wire import Packing
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


def received_by_hosts(layer: LayerGhosts) -> Sequence[Request]:
    """Return the rows that each rank receives: its share of those that its host needs."""
    requests = []
    for rank, host in enumerate(layer.hosts):
        ghosts = [layer.nodes[mate] for mate in np.flatnonzero(layer.hosts == host).tolist()]
        row_map = RowMap(layer.starts, rank)
        all_ghosts = unite(ghosts)
        layout = HostLayout.of(row_map, all_ghosts, layer.hosts, rank, sequential=layer.sequential)
        requests.append(layout.request)
    return requests


class HostExchange:
    """Fetches every ghost of a host once, through a `channel` in main memory.

    Partial sums keep their dtype until they leave the host.
    """

    @collective
    def __init__(self, channel: Channel, ghosts: Ghosts) -> None:
        grid, self.trace, self.carrier = channel.grid, channel.trace, channel.carrier
        self.wire = self.push_wire = channel.wire
        self.sequential = channel.schedule.sequential
        self.window_memory = grid.shared_window()
        hosts, row_map = grid.hosts, ghosts.row_map
        # Use shared memory, and free it below: these lists take the host's ghosts times its ranks.
        by_host = channel.peers.ghosts_of_host(ghosts)
        self.ghost_counts = [len(host_nodes) for host_nodes in by_host]
        all_ghosts = channel.peers.united(ghosts, by_host)
        layout = HostLayout.of(row_map, all_ghosts, hosts, grid.block, sequential=self.sequential)
        # The own host comes first in a sequential schedule too, at distance 0.
        first = layout.stages[0]
        own_nodes = first.nodes[first.owners.index(grid.block)]
        own_rows = row_map.to_local(own_nodes)
        self.own_rows = own_rows if ghosts.positions is None else ghosts.positions[own_rows]
        self.plan, requested = channel.peers.plan(ghosts, layout.request)
        self.outbox: Outbox | None = None
        if self.sequential:
            self.plan = replace(self.plan, send_rows=ghosts.rows_of(requested))
        else:
            sent = channel.peers.sent_by_host(ghosts, requested)
            self.outbox = Outbox.of(ghosts, sent, layout.mate)
        self.stages: tuple[Stage, ...] = (self.plan.everything,)
        self.columns = self.push_columns = layout.columns(row_map, ghosts.nodes)
        if self.sequential:
            # Times are distances of hosts, not of ranks: all mates go through the hosts together,
            # since they read what any of them has fetched.
            apart = (hosts[self.plan.peers] - hosts[grid.block]) % len(layout.stages)
            times = range(len(layout.stages))
            self.stages = self.plan.stages(apart, -apart % len(layout.stages), times)
        else:
            # Every mate's sums are in the order of its own ghosts.
            self.push_columns = StageColumns((len(ghosts.nodes),))
            self.own_parts, self.fetched_parts = (
                [_matches(host_nodes, nodes) for host_nodes in by_host]
                for nodes in (own_nodes, layout.request.nodes)
            )
        self.layout = layout.without_nodes()
        self.window_memory.forget("ghosts", "united", "wanted")
        self.window = channel.schedule.window(len(self.stages))
        self.route = Route(channel, self.plan, self.stages, self._ids_of_sent(ghosts))

    def _ids_of_sent(self, ghosts: Ghosts) -> GlobalIndices | None:
        ids = ghosts.ids
        if ids is None or self.outbox is None:
            return ghosts.ids_of(self.plan.send_rows)

        def name(target: Array, rows: LocalIndices) -> None:
            target[:, 0] = ids[rows]

        names: GlobalIndices = self.lay_out(1, np.int64, name)[:, 0].copy()
        # Wait for all mates before anyone overwrites the memory.
        self.window_memory.synchronise("send")
        return names

    @collective
    def lay_out(
        self, width: int, dtype: DTypeLike, write: Callable[[Array, LocalIndices], None]
    ) -> Array:
        """Return the rows (num_sent, width) that this rank sends, after all mates wrote theirs.

        `write` writes the given rows (rows,) int32 of this rank's arrays to the given array.
        """
        assert self.outbox is not None, "in a sequential exchange each owner sends"
        shape = self.outbox.num_rows, width
        memory = self.window_memory.get("send", shape, dtype)
        for target, rows in self.outbox.own:
            write(memory[target], rows)
        self.window_memory.synchronise("send")
        return memory[self.outbox.sent]

    @property
    def read_rows(self) -> LocalIndices:
        """The int32 ascending rows of this rank's arrays that any rank needs."""
        outbox = self.outbox
        sent = [self.plan.send_rows] if outbox is None else [rows for _, rows in outbox.own]
        return np.unique(np.concatenate([self.own_rows, *sent]))

    @collective
    def start_fetch(
        self, x: Array, *, keep: bool = False, columns: Packing | None = None
    ) -> "_HostFetch":
        """Start the first stages: write own rows and fetch rows of other hosts.

        With `keep` the rows are copied from shared memory.
        """
        refuse_to_keep(keep and self.sequential)
        return _HostFetch(self, x, columns, keep=keep)

    @collective
    def start_push(self, like: Array, combine: Combine, columns: Packing | None = None) -> Push:
        """Prepare the return of partial sums, which are added up on every host."""
        if not combine.adds:
            raise ValueError("the hierarchical exchange can only push sums")
        push_type = _VisitingPush if self.sequential else _HostPush
        return push_type(self, like, combine, columns)

    def volume(self) -> Volume:
        """Return the rows of one fetch that are sent between hosts."""
        return self.plan.volume()

    def fetched_rows(self, stage: int) -> slice:
        """Return the range in a shared stage of the rows that this rank fetches or returns."""
        layout = self.layout
        share = layout.stages[stage].share(layout.mate)
        own_rows = layout.stages[stage].own(layout.rank)
        return slice(share.start + own_rows.stop - own_rows.start, share.stop)


def _matches(nodes: GlobalIndices, subset: GlobalIndices) -> tuple[LocalIndices, LocalIndices]:
    """Return the positions in each of two lists without repeats of their common entries."""
    _, left, right = np.intersect1d(nodes, subset, assume_unique=True, return_indices=True)
    return left.astype(np.int32), right.astype(np.int32)


class _HostFetch:
    def __init__(
        self, exchange: HostExchange, x: Array, columns: Packing | None, *, keep: bool
    ) -> None:
        self._exchange, self._keep, self._columns = exchange, keep, columns
        self._x: Array | None = x
        sizes, window = [stage.num_rows for stage in exchange.layout.stages], exchange.window
        slots = [max(sizes[slot::window]) for slot in range(window)]
        self._starts = np.cumsum([0, *slots]).tolist()
        self._dtype, memory = exchange.wire.dtype(x), exchange.window_memory
        self._shared = memory.get("fetch", (sum(slots), x.shape[1]), self._dtype)
        exchange.carrier.ghosts.hold(self, self._shared.nbytes // len(exchange.ghost_counts))
        # Wait until no mate reads the previous product's rows any more.
        memory.synchronise("fetch")
        self._sent: deque[tuple[Transfer, Array]] = deque()
        self._received: deque[Transfer] = deque()
        for number in range(window):
            self._start(number)

    def stage(self, index: int) -> Array:
        stage, rows = self._exchange.layout.visit(index)
        if self._exchange.layout.begins(index):
            self._enter(stage)
        fetched = self._slot(stage)[rows]
        if not self._keep:
            return fetched
        copied = self._exchange.carrier.take(fetched.shape, fetched.dtype, ghosts=True)
        copied[:] = fetched
        return copied

    def _enter(self, stage: int) -> None:
        """Wait for all mates to finish the previous stage, then for the rows of this one."""
        exchange = self._exchange
        if stage > 0:
            exchange.window_memory.synchronise("fetch")
            self._sent.popleft()[0].wait()
            self._start(stage - 1 + exchange.window)
        self._received.popleft().wait(exchange.trace)
        if stage == len(exchange.stages) - 1:
            while self._sent:
                self._sent.popleft()[0].wait()
        exchange.window_memory.synchronise("fetch")

    def _start(self, number: int) -> None:
        exchange, x = self._exchange, self._x
        if number >= len(exchange.stages):
            return
        assert x is not None, "rows are kept until all are packed"
        stage, slot, form = exchange.stages[number], self._slot(number), exchange.wire.half

        def write(into: Array, rows: LocalIndices) -> None:
            kernels.gather_rows(x, rows, into, half=form)

        like = x[:0] if self._dtype == x.dtype else np.empty((0, x.shape[1]), self._dtype)
        with exchange.route.span(number, like, self._columns, forward=True):
            if exchange.outbox is not None:
                packed = exchange.lay_out(x.shape[1], self._dtype, write)
            else:
                packed = exchange.carrier.take((stage.num_owned, x.shape[1]), self._dtype)
                write(packed, exchange.plan.rows_of(stage))
            into = slot[exchange.fetched_rows(number)]
            sent, received = exchange.route.start(number, packed, into, self._columns, forward=True)
            if number == 0:
                write(slot[exchange.layout.stages[0].own(exchange.layout.rank)], exchange.own_rows)
        self._sent.append((sent, packed))
        self._received.append(received)
        if number == len(exchange.stages) - 1:
            self._x = None

    def _slot(self, stage: int) -> Array:
        start = self._starts[stage % self._exchange.window]
        return self._shared[start : start + self._exchange.layout.stages[stage].num_rows]


class _HostPush:
    """All mates write their sums side by side; each then adds up the rows that it sends or owns.

    It adds in mate order, so that results do not depend on timing.
    """

    def __init__(
        self, exchange: HostExchange, like: Array, combine: Combine, columns: Packing | None
    ) -> None:
        self._exchange, self._combine, self._columns = exchange, combine, columns
        width, take = like.shape[1], exchange.carrier.take
        self._starts = np.cumsum([0, *exchange.ghost_counts]).tolist()
        memory, mate = exchange.window_memory, exchange.layout.mate
        self._shared = memory.get("push", (self._starts[-1], width), like.dtype)
        # Wait until no mate reads the previous product's sums any more.
        memory.synchronise("push")
        self._partial = self._shared[self._starts[mate] : self._starts[mate + 1]]
        dtype = exchange.wire.dtype(like)
        exchange.carrier.ghosts.hold(self, self._partial.nbytes)
        self._sums = take((exchange.plan.num_ghosts, width), like.dtype, ghosts=True)
        self._outgoing = self._sums
        if dtype != like.dtype:
            self._outgoing = take(self._sums.shape, dtype)
        assert exchange.outbox is not None
        # Rows that other hosts return arrive in memory shared by the ranks of this one.
        self._returned = memory.get("return", (exchange.outbox.num_rows, width), dtype)
        self._arrived = self._returned[exchange.outbox.sent]

    def buffer(self, index: int) -> Array:
        assert index == 0
        return self._partial

    def send(self, index: int) -> None:
        assert index == 0
        exchange = self._exchange
        exchange.window_memory.synchronise("push")
        self._sums[:] = 0
        for rows, partial in self._mates(exchange.fetched_parts):
            kernels.scatter_add_rows(partial, rows, self._sums)
        columns = self._columns
        with exchange.route.span(0, self._outgoing, columns, forward=False):
            if self._outgoing is not self._sums:
                kernels.gather_rows(self._sums, None, self._outgoing, half=exchange.wire.half)
            self._transfers = exchange.route.start(
                0, self._outgoing, self._arrived, columns, forward=False
            )

    def finish(self) -> None:
        exchange = self._exchange
        assert exchange.outbox is not None
        with exchange.trace.span("boundary.add"):
            for rows, partial in self._mates(exchange.own_parts):
                self._combine(exchange.own_rows[rows], partial)
        with exchange.trace.span("wait.reverse"):
            for transfer in reversed(self._transfers):
                transfer.wait(exchange.trace)
            exchange.window_memory.synchronise("return")
        with exchange.trace.span("boundary.add"):
            for target, rows in exchange.outbox.own:
                self._combine(rows, self._returned[target])

    def _mates(
        self, parts: list[tuple[LocalIndices, LocalIndices]]
    ) -> Iterator[tuple[LocalIndices, Array]]:
        for mate, (sources, targets) in enumerate(parts):
            segment = self._shared[self._starts[mate] : self._starts[mate + 1]]
            shape = len(sources), segment.shape[1]
            picked = self._exchange.carrier.take(shape, segment.dtype)
            kernels.gather_rows(segment, sources, picked)
            yield targets, picked


class _VisitingPush:
    """Mates add to the sums for one host after another, one mate to one owner at a time."""

    def __init__(
        self, exchange: HostExchange, like: Array, combine: Combine, columns: Packing | None
    ) -> None:
        self._exchange, self._combine, self._columns = exchange, combine, columns
        self._width, self._dtype, self._wire = like.shape[1], like.dtype, exchange.wire.dtype(like)
        self._partial: Array | None = None
        self._sent: deque[tuple[Transfer, Array]] = deque()
        self._received: deque[tuple[int, Transfer, Array]] = deque()

    def buffer(self, index: int) -> Array:
        exchange = self._exchange
        if self._partial is None:
            # Allocate late: until now the ghosts of a fetch may be in memory.
            self._partial = self._allocate()
        stage, _ = exchange.layout.visit(index)
        if exchange.layout.begins(index):
            # Wait until no mate reads the sums for the previous host or product any more.
            exchange.window_memory.synchronise("push")
            self._sums[exchange.layout.stages[stage].share(exchange.layout.mate)] = 0
            exchange.window_memory.synchronise("push")
        return self._partial[: exchange.columns.widths[index]]

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._partial is not None, "a stage must be filled before it is sent"
        stage, rows = exchange.layout.visit(index)
        self._sums[rows] += self._partial[: rows.stop - rows.start]
        exchange.window_memory.synchronise("push")
        if exchange.layout.ends(index):
            self._ship(stage)

    def finish(self) -> None:
        while self._received:
            self._combine_next()
        with self._exchange.trace.span("wait.reverse"):
            while self._sent:
                self._sent.popleft()[0].wait()

    def _allocate(self) -> Array:
        exchange = self._exchange
        rows = max(stage.num_rows for stage in exchange.layout.stages)
        self._sums = exchange.window_memory.get("push", (rows, self._width), self._dtype)
        exchange.carrier.ghosts.hold(self, self._sums.nbytes // len(exchange.ghost_counts))
        shape = max(exchange.columns.widths), self._width
        return exchange.carrier.take(shape, self._dtype, ghosts=True)

    def _ship(self, number: int) -> None:
        """Send the sums for a host to their owners; for the own host, combine them."""
        exchange, stage = self._exchange, self._exchange.stages[number]
        sums = self._sums[exchange.layout.stages[number].share(exchange.layout.mate)]
        if number == 0:
            with exchange.trace.span("boundary.add"):
                self._combine(exchange.own_rows, sums)
            return
        if len(self._received) >= exchange.window:
            self._combine_next()
            self._sent.popleft()[0].wait()
        outgoing = exchange.carrier.take((stage.num_ghosts, self._width), self._wire)
        arrived = exchange.carrier.take((stage.num_owned, self._width), self._wire)
        columns = self._columns
        with exchange.route.span(number, outgoing, columns, forward=False):
            kernels.gather_rows(sums, None, outgoing, half=exchange.wire.half)
            sent, received = exchange.route.start(number, outgoing, arrived, columns, forward=False)
        self._sent.append((sent, outgoing))
        self._received.append((number, received, arrived))

    def _combine_next(self) -> None:
        stage, received, arrived = self._received.popleft()
        exchange = self._exchange
        with exchange.trace.span("wait.reverse"):
            received.wait(exchange.trace)
        with exchange.trace.span("boundary.add"):
            combine_stage(exchange.plan.send_rows, exchange.stages[stage], arrived, self._combine)
