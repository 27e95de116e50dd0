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
from hpcgnn.comm import ProcessGrid, Transfer, Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.ghosts import Combine, Ghosts, Wire
from hpcgnn.spmm.host_walk import HostWalk
from hpcgnn.spmm.schedule import Schedule, refuse_to_keep
from hpcgnn.spmm.slots import combine_stage, split_columns
from hpcgnn.spmm.spans import exchange_span
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices

__all__ = ["StagedHostExchange"]


class StagedHostExchange:
    """Fetch every ghost of a host once, host by host.

    Collective.

    Parameters
    ----------
    grid, ghosts, wire, trace, carrier
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
        carrier: Carrier,
    ) -> None:
        self.wire, self.carrier = wire, carrier
        self._walk = HostWalk(grid, ghosts, wire, trace, schedule)

    @property
    def read_rows(self) -> LocalIndices:
        """Rows of the arrays that are fetched from which any rank needs, int32 increasing."""
        rows: LocalIndices = np.union1d(self._walk.plan.send_rows, self._walk.own_rows)
        return rows

    def split(self, block: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return a block for each visit; columns are the rows of its owner that the host needs.

        Not collective.
        """
        walk = self._walk
        widths = [walk.num_columns(index) for index in range(walk.num_stages)]
        return split_columns(block, walk.visited, walk.columns, widths)

    def split_push(self, block: LocalCSR) -> None:
        """Return None: a push has the stages of a fetch.

        Not collective.
        """

    def ghosts_of(self, index: int) -> LocalIndices:
        """Return which ghost each row of a visit is, -1 for those that only mates read.

        Not collective.
        """
        ghosts = np.full(self._walk.num_columns(index), -1, np.int32)
        chosen = np.flatnonzero(self._walk.visited == index).astype(np.int32)
        ghosts[self._walk.columns[chosen]] = chosen
        return ghosts

    push_ghosts_of = ghosts_of

    def start_fetch(self, x: Array, *, keep: bool = False) -> "_Fetch":
        """Start the stages of the first hosts.

        Collective.
        """
        refuse_to_keep(keep)
        return _Fetch(self._walk, x)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> "_Push":
        """Prepare the return of partial sums, which are added up on every host.

        Collective.
        """
        if not additive:
            raise ValueError("the hierarchical exchange pushes sums only")
        return _Push(self._walk, like, combine)

    def volume(self) -> Volume:
        """Return the rows of one fetch that leave a host, and only those.

        Not collective.
        """
        return self._walk.plan.volume()


class _Fetch:
    def __init__(self, walk: HostWalk, x: Array) -> None:
        self._walk, self._x = walk, x
        sizes = [stage.num_rows for stage in walk.hosts]
        window = walk.window
        slots = [max(sizes[slot::window]) for slot in range(window)]
        self._starts = np.cumsum([0, *slots]).tolist()
        width, self._dtype = x.shape[1], walk.wire.dtype(x)
        self._shared = walk.memory.get("fetch", (sum(slots), width), self._dtype)
        walk.pool.ghosts.hold(self, self._shared.nbytes // walk.num_mates)
        # Mates may still read the previous product's rows.
        walk.memory.synchronise("fetch")
        self._sent: deque[tuple[Transfer, Array]] = deque()
        self._received: deque[Transfer] = deque()
        for place in range(window):
            self._start(place)

    def stage(self, index: int) -> Array:
        walk = self._walk
        place, turn = divmod(index, walk.num_visits)
        if turn == 0:
            self._enter(place)
        stage, owner = walk.visit(index)
        return self._slot(place)[stage.part(owner)]

    def _enter(self, place: int) -> None:
        """Wait for the rows of a host, after all mates are done with the host before."""
        walk = self._walk
        if place > 0:
            walk.memory.synchronise("fetch")
            self._sent.popleft()[0].wait()
            self._start(place - 1 + walk.window)
        self._received.popleft().wait()
        if place == len(walk.hosts) - 1:
            while self._sent:
                self._sent.popleft()[0].wait()
        walk.memory.synchronise("fetch")

    def _start(self, place: int) -> None:
        walk = self._walk
        if place >= len(walk.hosts):
            return
        stage, slot = walk.stages[place], self._slot(place)
        mine = slot[walk.hosts[place].share(walk.mate)]
        half = walk.wire.half
        packed = walk.pool.take((stage.num_owned, self._x.shape[1]), self._dtype)
        with exchange_span(walk.trace, "exchange.forward", walk.sent[place], packed, walk.pool):
            if place == 0:
                kernels.gather_rows(self._x, walk.own_rows, mine, half=half)
            kernels.gather_rows(self._x, walk.plan.rows_of(stage), packed, half=half)
            sent, received = walk.plan.start_stage_forward(stage, packed, mine)
        self._sent.append((sent, packed))
        self._received.append(received)

    def _slot(self, place: int) -> Array:
        start = self._starts[place % self._walk.window]
        return self._shared[start : start + self._walk.hosts[place].num_rows]


class _Push:
    def __init__(self, walk: HostWalk, like: Array, combine: Combine) -> None:
        self._walk, self._like, self._combine = walk, like, combine
        self._partial: Array | None = None
        self._sent: deque[tuple[Transfer, Array]] = deque()
        self._received: deque[tuple[int, Transfer, Array]] = deque()

    def buffer(self, index: int) -> Array:
        walk = self._walk
        if self._partial is None:
            # Not before: until now the ghosts of a fetch may be in memory.
            self._partial = self._allocate()
        place, turn = divmod(index, walk.num_visits)
        if turn == 0:
            # Mates may still read the sums of the host before, or of the previous product.
            walk.memory.synchronise("push")
            self._sums[walk.hosts[place].share(walk.mate)] = 0
            walk.memory.synchronise("push")
        return self._partial[: walk.num_columns(index)]

    def send(self, index: int) -> None:
        walk = self._walk
        assert self._partial is not None, "a stage is filled before it is sent"
        stage, owner = walk.visit(index)
        part = stage.part(owner)
        self._sums[part] += self._partial[: part.stop - part.start]
        walk.memory.synchronise("push")
        place, turn = divmod(index, walk.num_visits)
        if turn == walk.num_visits - 1:
            self._ship(place)

    def finish(self) -> None:
        while self._received:
            self._combine_next()
        with self._walk.trace.span("wait.reverse"):
            while self._sent:
                self._sent.popleft()[0].wait()

    def _allocate(self) -> Array:
        walk, width = self._walk, self._like.shape[1]
        rows = max(stage.num_rows for stage in walk.hosts)
        self._sums = walk.memory.get("push", (rows, width), self._like.dtype)
        walk.pool.ghosts.hold(self, self._sums.nbytes // walk.num_mates)
        largest = max(walk.num_columns(index) for index in range(walk.num_stages))
        return walk.pool.take((largest, width), self._like.dtype, ghosts=True)

    def _ship(self, place: int) -> None:
        """Send the sums of a host to their owners, or take them in when the owner is here."""
        walk, stage = self._walk, self._walk.stages[place]
        mine = self._sums[walk.hosts[place].share(walk.mate)]
        if place == 0:
            with walk.trace.span("boundary.add"):
                self._combine(walk.own_rows, mine)
            return
        if len(self._received) >= walk.window:
            self._combine_next()
            self._sent.popleft()[0].wait()
        width, dtype = self._like.shape[1], walk.wire.dtype(self._like)
        outgoing = walk.pool.take((stage.num_ghosts, width), dtype)
        arrived = walk.pool.take((stage.num_owned, width), dtype)
        with exchange_span(
            walk.trace, "exchange.reverse", walk.received[place], outgoing, walk.pool
        ):
            kernels.gather_rows(mine, None, outgoing, half=walk.wire.half)
            sent, received = walk.plan.start_stage_reverse(stage, outgoing, arrived)
        self._sent.append((sent, outgoing))
        self._received.append((place, received, arrived))

    def _combine_next(self) -> None:
        place, received, arrived = self._received.popleft()
        with self._walk.trace.span("wait.reverse"):
            received.wait()
        walk = self._walk
        with walk.trace.span("boundary.add"):
            combine_stage(walk.plan.send_rows, walk.stages[place], arrived, self._combine)
