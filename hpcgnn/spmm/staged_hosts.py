"""The hierarchical ghost exchange host by host: the sequential schedule of `HostExchange`.

The hosts take the part that ranks have in `StagedExchange`: at the stage of shift s the *mates* of
host h share the rows of the owners on host h + s, each row fetched once, and at most
``1 + prefetch`` of these stages are in memory. The mates then visit the owners of a stage one after
another, each mate another one at a time::

    stage of 3 owners      mate 0   mate 1   mate 2
      visit 0                u0       u1       u2
      visit 1                u1       u2       u0
      visit 2                u2       u0       u1

so that a push adds to the sums of a host, one mate to one owner at a time and in a fixed order. Its
ghosts are one block of partial sums, and the rank's share of the sums of its host.
"""

from collections import deque

import numpy as np

from hpcgnn import kernels
from hpcgnn.comm import CommPlan, ProcessGrid, Transfer, Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.ghosts import Combine, Ghosts, Moved, Wire, exchange_span, world_ranks
from hpcgnn.spmm.host_stages import HostStage, host_stages
from hpcgnn.spmm.schedule import Schedule, refuse_to_keep
from hpcgnn.spmm.slots import split_columns
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices

__all__ = ["StagedHostExchange"]


class StagedHostExchange:
    """Fetch every ghost of a host once, host by host.

    Collective.

    Parameters
    ----------
    grid, ghosts, wire, trace
        As for `HostExchange`.
    schedule
        Sequential, with its depth of prefetch.
    """

    sequential = True

    def __init__(
        self,
        grid: ProcessGrid,
        ghosts: Ghosts,
        wire: Wire,
        trace: TraceRecorder,
        schedule: Schedule,
    ) -> None:
        self.wire, self.trace, self.pool = wire, trace, grid.buffers
        self.memory = grid.host_memory()
        hosts, here = grid.hosts, int(grid.hosts[grid.layer.rank])
        needs = self.memory.comm.allgather(ghosts.nodes)
        self.num_mates, self.mate = self.memory.comm.size, self.memory.comm.rank
        self.hosts = host_stages(ghosts.row_map, needs, hosts, here)
        self.num_visits = int(np.bincount(hosts).max())
        self.window = schedule.window(len(self.hosts))
        fetched = [stage.fetched(self.mate) for stage in self.hosts[1:]]
        nodes = np.sort(np.concatenate([ghosts.nodes[:0], *fetched]))
        self.plan = CommPlan.from_ghosts(grid, ghosts.row_map, nodes, ghosts.positions)
        apart = (hosts[self.plan.peers] - here) % len(self.hosts)
        times = range(len(self.hosts))
        self.stages = self.plan.stages(apart, -apart % len(self.hosts), times)
        ranks = world_ranks(grid)
        self.sent = [Moved.of_messages(stage.owned, ranks) for stage in self.stages]
        self.received = [Moved.of_messages(stage.ghosts, ranks) for stage in self.stages]
        own = ghosts.row_map.to_local(self.hosts[0].fetched(self.mate))
        self.own_rows = own if ghosts.positions is None else ghosts.positions[own]
        self._visited, self._columns = self._columns_of(ghosts)

    def visit(self, index: int) -> tuple[HostStage, int]:
        """Return the stage and the owner on its host of the stage `index` of a product.

        Not collective.
        """
        place, turn = divmod(index, self.num_visits)
        return self.hosts[place], (self.mate + turn) % self.num_visits

    def num_columns(self, index: int) -> int:
        """Return the rows of a visit; the host has all of them, whichever mate reads them.

        Not collective.
        """
        stage, owner = self.visit(index)
        part = stage.part(owner)
        return int(part.stop - part.start)

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block for each visit; columns are the rows of its owner that the host needs.

        Not collective.
        """
        num_stages = len(self.hosts) * self.num_visits
        widths = [self.num_columns(index) for index in range(num_stages)]
        return split_columns(block, self._visited, self._columns, widths)

    def split_push(self, block: LocalCSR) -> None:
        """Return None: a push has the stages of a fetch.

        Not collective.
        """

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each row of a visit is, -1 for those that only mates read.

        Not collective.
        """
        ghosts = np.full(self.num_columns(index), -1, np.int32)
        chosen = np.flatnonzero(self._visited == index).astype(np.int32)
        ghosts[self._columns[chosen]] = chosen
        return ghosts

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array, *, keep: bool = False) -> "_Fetch":
        """Start the stages of the first hosts.

        Collective.
        """
        refuse_to_keep(keep)
        return _Fetch(self, x)

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

    def _columns_of(self, ghosts: Ghosts) -> tuple[LocalIndices, LocalIndices]:
        """Return the visit of each ghost and its column there, both (num_ghosts,) int32."""
        owners = ghosts.row_map.owner(ghosts.nodes)
        visits, columns = np.empty((2, len(owners)), np.int32)
        for place, stage in enumerate(self.hosts):
            for number, (owner, nodes) in enumerate(zip(stage.owners, stage.nodes, strict=True)):
                chosen = owners == owner
                turn = (number - self.mate) % self.num_visits
                visits[chosen] = place * self.num_visits + turn
                columns[chosen] = np.searchsorted(nodes, ghosts.nodes[chosen])
        return visits, columns


class _Fetch:
    def __init__(self, exchange: StagedHostExchange, x: Array) -> None:
        self._exchange, self._x = exchange, x
        sizes = [stage.num_rows for stage in exchange.hosts]
        window = exchange.window
        slots = [max(sizes[slot::window]) for slot in range(window)]
        self._starts = np.cumsum([0, *slots]).tolist()
        width, self._dtype = x.shape[1], exchange.wire.dtype(x)
        self._shared = exchange.memory.get("fetch", (sum(slots), width), self._dtype)
        exchange.pool.ghosts.hold(self, self._shared.nbytes // exchange.num_mates)
        # Mates may still read the previous product's rows.
        exchange.memory.synchronise("fetch")
        self._sent: deque[tuple[Transfer, Array]] = deque()
        self._received: deque[Transfer] = deque()
        for place in range(window):
            self._start(place)

    def stage(self, index: int) -> Array:
        exchange = self._exchange
        place, turn = divmod(index, exchange.num_visits)
        if turn == 0:
            self._enter(place)
        stage, owner = exchange.visit(index)
        return self._slot(place)[stage.part(owner)]

    def _enter(self, place: int) -> None:
        """Wait for the rows of a host, after all mates are done with the host before."""
        exchange = self._exchange
        if place > 0:
            exchange.memory.synchronise("fetch")
            self._sent.popleft()[0].wait()
            self._start(place - 1 + exchange.window)
        self._received.popleft().wait()
        if place == len(exchange.hosts) - 1:
            while self._sent:
                self._sent.popleft()[0].wait()
        exchange.memory.synchronise("fetch")

    def _start(self, place: int) -> None:
        exchange = self._exchange
        if place >= len(exchange.hosts):
            return
        stage, slot = exchange.stages[place], self._slot(place)
        mine = slot[exchange.hosts[place].share(exchange.mate)]
        half = exchange.wire.half
        packed = exchange.pool.take((stage.num_owned, self._x.shape[1]), self._dtype)
        with exchange_span(
            exchange.trace, "exchange.forward", exchange.sent[place], packed, exchange.pool
        ):
            if place == 0:
                kernels.gather_rows(self._x, exchange.own_rows, mine, half=half)
            kernels.gather_rows(self._x, exchange.plan.rows_of(stage), packed, half=half)
            sent, received = exchange.plan.start_stage_forward(stage, packed, mine)
        self._sent.append((sent, packed))
        self._received.append(received)

    def _slot(self, place: int) -> Array:
        start = self._starts[place % self._exchange.window]
        return self._shared[start : start + self._exchange.hosts[place].num_rows]


class _Push:
    def __init__(self, exchange: StagedHostExchange, like: Array, combine: Combine) -> None:
        self._exchange, self._like, self._combine = exchange, like, combine
        self._partial: Array | None = None
        self._sent: deque[tuple[Transfer, Array]] = deque()
        self._received: deque[tuple[int, Transfer, Array]] = deque()

    def buffer(self, index: int) -> Array:
        exchange = self._exchange
        if self._partial is None:
            # Not before: until now the ghosts of a fetch may be in memory.
            self._partial = self._allocate()
        place, turn = divmod(index, exchange.num_visits)
        if turn == 0:
            # Mates may still read the sums of the host before, or of the previous product.
            exchange.memory.synchronise("push")
            self._sums[exchange.hosts[place].share(exchange.mate)] = 0
            exchange.memory.synchronise("push")
        return self._partial[: exchange.num_columns(index)]

    def send(self, index: int) -> None:
        exchange = self._exchange
        assert self._partial is not None, "a stage is filled before it is sent"
        stage, owner = exchange.visit(index)
        part = stage.part(owner)
        self._sums[part] += self._partial[: part.stop - part.start]
        exchange.memory.synchronise("push")
        place, turn = divmod(index, exchange.num_visits)
        if turn == exchange.num_visits - 1:
            self._ship(place)

    def finish(self) -> None:
        while self._received:
            self._combine_next()
        with self._exchange.trace.span("wait.reverse"):
            while self._sent:
                self._sent.popleft()[0].wait()

    def _allocate(self) -> Array:
        exchange, width = self._exchange, self._like.shape[1]
        rows = max(stage.num_rows for stage in exchange.hosts)
        self._sums = exchange.memory.get("push", (rows, width), self._like.dtype)
        exchange.pool.ghosts.hold(self, self._sums.nbytes // exchange.num_mates)
        visits = range(len(exchange.hosts) * exchange.num_visits)
        largest = max(exchange.num_columns(index) for index in visits)
        return exchange.pool.take((largest, width), self._like.dtype, ghosts=True)

    def _ship(self, place: int) -> None:
        """Send the sums of a host to their owners, or take them in when the owner is here."""
        exchange, stage = self._exchange, self._exchange.stages[place]
        mine = self._sums[exchange.hosts[place].share(exchange.mate)]
        if place == 0:
            with exchange.trace.span("boundary.add"):
                self._combine(exchange.own_rows, mine)
            return
        if len(self._received) >= exchange.window:
            self._combine_next()
            self._sent.popleft()[0].wait()
        width, dtype = self._like.shape[1], exchange.wire.dtype(self._like)
        outgoing = exchange.pool.take((stage.num_ghosts, width), dtype)
        arrived = exchange.pool.take((stage.num_owned, width), dtype)
        with exchange_span(
            exchange.trace, "exchange.reverse", exchange.received[place], outgoing, exchange.pool
        ):
            kernels.gather_rows(mine, None, outgoing, half=exchange.wire.half)
            sent, received = exchange.plan.start_stage_reverse(stage, outgoing, arrived)
        self._sent.append((sent, outgoing))
        self._received.append((place, received, arrived))

    def _combine_next(self) -> None:
        place, received, arrived = self._received.popleft()
        with self._exchange.trace.span("wait.reverse"):
            received.wait()
        plan, first = self._exchange.plan, 0
        with self._exchange.trace.span("boundary.add"):
            for message in self._exchange.stages[place].owned:
                rows = plan.send_rows[message.rows]
                self._combine(rows, arrived[first : first + len(rows)])
                first += len(rows)
