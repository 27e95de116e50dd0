"""A world of one process that stands for a rank of many: messages bring zeros, and are counted.

Everything above the messages is the code that trains. A rehearsed plan knows who would send which
rows to whom; starting it writes zeros where rows would arrive, which takes the memory and the
stores of a real arrival.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, Stage, Transfer, Volume
from hpcgnn.plan.share import Messages, PatternShare, Share
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import (
    Carrier,
    Combine,
    Fetch,
    GhostExchange,
    Ghosts,
    Halves,
    HostCarrier,
    PlannedExchange,
    Push,
    RemoteHalf,
    Schedule,
    StagedExchange,
    make_wire,
)
from hpcgnn.trace import TraceRecorder
from hpcgnn.train.config import ExchangeConfig
from hpcgnn.typing import Array

__all__ = ["Movement", "RehearsedExchange", "RehearsedGrid"]


@dataclass(frozen=True)
class Movement:
    """One exchange, as all ranks run it.

    Parameters
    ----------
    pattern
        Key of the matrix.
    half
        "fetched" or "pushed".
    reverse
        Whether rows go from ghosts to owners.
    row_bytes
        Of one row.
    """

    pattern: str
    half: str
    reverse: bool
    row_bytes: int


Log = Callable[[Movement], None]


class RehearsedGrid(ProcessGrid):
    """The place of a rank in a grid, without the other ranks.

    Collective over `alone`.

    Parameters
    ----------
    alone
        A grid of one rank, whose communicator is duplicated.
    share
        Says which place.
    """

    def __init__(self, alone: ProcessGrid, share: Share) -> None:
        super().__init__(alone.world)
        self.num_blocks, self.block, self.replica = share.num_blocks, share.block, share.replica
        self.replication = share.config.exchange.replication


class _SilentPlan(CommPlan):
    """A plan whose messages are not sent."""

    def start_forward(self, packed: Array, ghosts: Array) -> Transfer:
        """Fill the ghosts.

        Not collective.
        """
        del packed
        ghosts[...] = 0
        return Transfer()

    def start_reverse(self, ghosts: Array, arrived: Array) -> Transfer:
        """Fill what arrives.

        Not collective.
        """
        del ghosts
        arrived[...] = 0
        return Transfer()

    def start_stage_forward(
        self, stage: Stage, packed: Array, ghosts: Array
    ) -> tuple[Transfer, Transfer]:
        """Fill the ghosts of a stage.

        Not collective.
        """
        del stage
        return Transfer(), self.start_forward(packed, ghosts)

    def start_stage_reverse(
        self, stage: Stage, ghosts: Array, arrived: Array
    ) -> tuple[Transfer, Transfer]:
        """Fill what arrives in a stage.

        Not collective.
        """
        del stage
        return Transfer(), self.start_reverse(ghosts, arrived)


@dataclass(frozen=True, eq=False)
class _KnownGhosts(Ghosts):
    """Ghosts whose messages are known without asking other ranks."""

    messages: Messages

    def make_plan(self, grid: ProcessGrid) -> CommPlan:
        """Return the plan of the messages.

        Not collective.
        """
        each = self.messages
        peers = grid.alone().neighbourhood(each.peers[:0])
        counts = each.send_counts, each.recv_counts
        return _SilentPlan(peers, grid.num_blocks, each.peers, each.send_rows, *counts)


class _Counted:
    """A ghost exchange that tells a log of every start."""

    def __init__(self, inner: GhostExchange, log: Log, pattern: str, half: str) -> None:
        self._inner, self._log, self._pattern, self._half = inner, log, pattern, half
        self.wire, self.sequential, self.carrier = inner.wire, inner.sequential, inner.carrier
        self.split, self.split_push = inner.split, inner.split_push
        self.ghosts_of, self.push_ghosts_of = inner.ghosts_of, inner.push_ghosts_of
        self.volume = inner.volume

    def start_fetch(self, x: Array, *, keep: bool = False) -> Fetch:
        """Start to deliver rows.

        Not collective.
        """
        self._note(x, reverse=False)
        return self._inner.start_fetch(x, keep=keep)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> Push:
        """Start to return partial sums.

        Not collective.
        """
        self._note(like, reverse=True)
        return self._inner.start_push(like, combine, additive=additive)

    def _note(self, rows: Array, *, reverse: bool) -> None:
        row_bytes = rows.shape[1] * self.wire.dtype(rows).itemsize
        self._log(Movement(self._pattern, self._half, reverse, row_bytes))


class RehearsedExchange:
    """The exchange of one pattern of a share; see `hpcgnn.spmm.exchange.CoveredExchange`.

    Not collective.

    Parameters
    ----------
    grid
        The place of the rank.
    key, share
        The pattern.
    config
        Wire format and schedule.
    trace
        Where times, rows and bytes are recorded.
    log
        Hears of every exchange.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        key: str,
        share: PatternShare,
        config: ExchangeConfig,
        trace: TraceRecorder,
        log: Log,
    ) -> None:
        self._grid, self._key, self._config = grid, key, config
        self.carrier: Carrier = HostCarrier(grid)
        self._trace, self._log, self._halves = trace, log, share.halves
        block, halves = share.block, share.halves
        used = np.zeros(len(block.ghosts), np.bool_)
        used[block.remote.indices[halves.fetched]] = True
        self._columns = (np.cumsum(used) - 1).astype(np.int32)
        self._num_fetched = int(used.sum())
        self._fetch = self._ghosts("fetched", halves.fetch, block, block.shape[1])
        self._push: GhostExchange | None = None
        if halves.push is not None:
            self._push = self._ghosts("pushed", halves.push, block, block.shape[0])

    def bind(self, matrix: DistCSR) -> Halves:
        """Return both halves.

        Not collective.
        """
        block = matrix.remote.select(self._columns, self._num_fetched, kept=self._halves.fetched)
        fetched = RemoteHalf(self._fetch, block)
        if self._push is None:
            return fetched, None
        pattern = self._halves.pattern
        assert pattern is not None
        values = None
        if matrix.remote.values is not None:
            values = np.ones(pattern.nnz, matrix.remote.values.dtype)
        return fetched, RemoteHalf(self._push, pattern.with_values(values))

    def volume(self) -> Volume:
        """Return fetched and pushed rows of this rank.

        Not collective.
        """
        volume = self._fetch.volume()
        return volume if self._push is None else volume + self._push.volume().reversed()

    def _ghosts(
        self, half: str, messages: Messages, block: DistCSR, num_rows: int
    ) -> GhostExchange:
        config = self._config
        ghosts = _KnownGhosts(block.row_map, block.ghosts, None, num_rows, messages)
        wire = make_wire(config.wire)
        made: GhostExchange
        if config.schedule == "sequential":
            schedule = Schedule(sequential=True, prefetch=config.prefetch)
            made = StagedExchange(self._grid, ghosts, wire, self._trace, schedule, self.carrier)
        else:
            made = PlannedExchange(self._grid, ghosts, wire, self._trace, self.carrier)
        return _Counted(made, self._log, self._key, half)
