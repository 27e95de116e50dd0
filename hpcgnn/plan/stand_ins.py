"""A world of one process that stands for a rank of many: messages bring zeros, and are counted.

Everything above the messages is the code that trains. Answers of other ranks are known, see
`hpcgnn.spmm.Peers`; starting a message writes zeros where rows would arrive, which takes the memory
and the stores of a real arrival.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpcgnn.comm import CommPlan, Communicator, Moment, ProcessGrid, Request, Stage, Transfer
from hpcgnn.graph.products import Operators
from hpcgnn.operator import Aggregation, OperatorSize, RankSums
from hpcgnn.plan.moves import Kind, Log, Movement, Reduction
from hpcgnn.plan.share import Share
from hpcgnn.plan.survey import Answers, PatternShare
from hpcgnn.plan.traffic import ALL, PatternKey
from hpcgnn.sparse import MAIN, DistCSR
from hpcgnn.spmm import (
    Carrier,
    Channel,
    Combine,
    CoverSplit,
    Exchange,
    Fetch,
    GhostExchange,
    Ghosts,
    Peers,
    Push,
    PushedEntries,
    ReplicaSum,
    Wire,
    find_method,
)
from hpcgnn.spmm.exchange.peers import unite
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, FloatArray, GlobalIndices, LocalIndices, Mask


class SilentTransport:
    """A transport whose messages are not sent; see `hpcgnn.spmm.Transport`.

    Parameters
    ----------
    rank
        Of the layer, that this process stands for.
    log
        Hears of sums over replicas that are not of rows.
    """

    in_step = False

    def __init__(self, rank: int, log: Log) -> None:
        self._rank, self._log = rank, log

    def start(
        self, plan: CommPlan, stage: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Fill what arrives."""
        # Written and not left as it is: the pages of a buffer count as memory when they are first
        # touched, and zeros are safe in every product.
        received[...] = 0
        return Transfer(), Transfer()

    def start_broadcast(self, comm: Communicator, rows: Array, root: int) -> Transfer:
        """Fill the rows of another rank."""
        if root != self._rank:
            rows[...] = 0
        return Transfer()

    def start_reduce(self, comm: Communicator, partial: Array, total: Array, root: int) -> Transfer:
        """Fill the total of this rank."""
        if root == self._rank:
            total[...] = 0
        return Transfer()

    def combine(self, comm: Communicator, values: Array) -> None:
        """Leave what other ranks would add to."""
        self._log(Reduction(values.nbytes))


class KnownPeers(Peers):
    """Other ranks whose answers are known.

    Parameters
    ----------
    grid
        Of one rank, which has the place of the share.
    share
        The answers.
    """

    def __init__(self, grid: ProcessGrid, share: PatternShare) -> None:
        super().__init__(grid)
        self._share = share

    def ids(self, plan: CommPlan, own: GlobalIndices) -> GlobalIndices:
        """Return zeros: the number of ids matters, not they."""
        return np.zeros(plan.num_ghosts, np.int64)

    def _to(self, ghosts: Ghosts) -> Answers:
        return self._share.push if ghosts.pushed else self._share.fetch

    def plan(self, ghosts: Ghosts, request: Request) -> tuple[CommPlan, GlobalIndices]:
        """Return the plan; see `Peers`."""
        known, grid = self._to(ghosts), self._grid
        received = request.counts[known.peers]
        assert np.array_equal(received, known.recv_counts), "an exchange asks what was foreseen"
        neighbours = grid.neighbourhood(known.peers[:0])
        rows = np.arange(len(known.wanted), dtype=np.int32)
        counts = known.send_counts, known.recv_counts
        return CommPlan(neighbours, grid.num_blocks, known.peers, rows, *counts), known.wanted

    def sent_by_host(self, ghosts: Ghosts, wanted: GlobalIndices) -> list[GlobalIndices]:
        """Return the nodes that every rank on this host sends; see `Peers`."""
        return list(self._to(ghosts).sent_by_host)

    def ghosts_of_host(self, ghosts: Ghosts) -> list[GlobalIndices]:
        """Return the nodes of the ghosts of every rank on this host; see `Peers`."""
        return list(self._to(ghosts).of_host)

    def united(self, ghosts: Ghosts, lists: Sequence[GlobalIndices]) -> GlobalIndices:
        """Return the increasing nodes of the lists of this host's ranks; see `Peers`."""
        return unite(lists)

    def sizes(self, ghosts: Ghosts) -> Array:
        """Return the rows that each rank fetches from; see `Peers`."""
        return self._to(ghosts).sizes

    def rows_at_owners(self, ghosts: Ghosts) -> LocalIndices:
        """Return the row of each ghost in its owner's array; see `Peers`."""
        rows = self._to(ghosts).rows_at_owners
        assert rows is not None, "rows at owners are known to exchanges without a plan"
        return rows

    def pushed_entries(self, pattern: DistCSR, split: CoverSplit) -> PushedEntries | None:
        """Return the entries that other ranks leave to this one; see `Peers`."""
        return self._share.pushed

    def pushed_values(self, owners: LocalIndices, values: FloatArray) -> FloatArray:
        """Return ones: the size of values matters, not they."""
        assert self._share.pushed is not None
        return np.ones(self._share.pushed.pattern.nnz, values.dtype)

    def size(self, matrix: DistCSR, num_moved: int) -> OperatorSize:
        """Return the size of the whole matrix; see `Peers`."""
        return self._share.size


class _Counted:
    """A ghost exchange that tells a log of every start."""

    def __init__(
        self, inner: GhostExchange, log: Log, key: PatternKey, moment: Moment, *, pushed: bool
    ) -> None:
        self._inner, self._log, self._key, self._pushed = inner, log, key, pushed
        self._moment = moment
        self.wire, self.push_wire, self.carrier = inner.wire, inner.push_wire, inner.carrier
        self.sequential, self.volume = inner.sequential, inner.volume
        self.columns, self.push_columns = inner.columns, inner.push_columns
        self.plan = inner.plan

    def start_fetch(self, x: Array, *, keep: bool = False) -> Fetch:
        """Start to deliver rows."""
        self._note(x, self.wire, reverse=False)
        return self._inner.start_fetch(x, keep=keep)

    def start_push(self, like: Array, combine: Combine, *, additive: bool = False) -> Push:
        """Start to return partial sums."""
        self._note(like, self.push_wire, reverse=True)
        return self._inner.start_push(like, combine, additive=additive)

    def _note(self, rows: Array, wire: Wire, *, reverse: bool) -> None:
        what: Kind = "pushed" if self._pushed else "fetched"
        size = wire.row_bytes(rows, backward=self._moment.is_backward)
        self._log(Movement(self._key, what, reverse, size, self.carrier.joined_row_bytes))


class _CountedSum(ReplicaSum):
    """A sum over replicas that tells a log of every start."""

    def __init__(self, log: Log, key: PatternKey, *made_of: Any) -> None:
        super().__init__(*made_of)
        *_, shares = made_of
        self._log, self._key, self._is_adjoint = log, key, shares.is_adjoint

    def bring(self, partial: Array, join: Combine) -> None:
        """Bring partial results to their homes; the results are spread in the same width."""
        if self.has_peers:
            size = partial.shape[1] * partial.itemsize
            self._log(Movement(self._key, "summed", self._is_adjoint, size))
        super().bring(partial, join)


@dataclass(frozen=True, eq=False, kw_only=True)
class RehearsedOperators(Operators):
    """Operators of a share.

    Parameters
    ----------
    share
        Tells what other ranks would.
    log
        Hears of every exchange.
    """

    share: Share
    log: Log

    def exchange(self, pattern: DistCSR, node_ids: GlobalIndices) -> Exchange:
        """Return what would move rows for matrices of a pattern of the share."""
        # All scalings of a pattern share its index arrays.
        # Index arrays are shared and not copied, so identity tells the pattern where equal content
        # could not.
        key, known = next(
            item for item in self.share.patterns.items() if item[1].block.ghosts is pattern.ghosts
        )
        method = find_method(self.config.method)

        def make_ghosts(channel: Channel, ghosts: Ghosts) -> GhostExchange:
            # The exchange that trains, unchanged; only messages below it and the count above it are
            # not.
            made = method.make_ghosts(channel, ghosts)
            return _Counted(made, self.log, key, self.grid.moment, pushed=ghosts.pushed)

        channel = self.channel(KnownPeers(self.grid, known), node_ids)
        make_sum = partial(_CountedSum, self.log, key)
        return Exchange(channel, pattern, method.cover, make_ghosts, make_sum)

    def sums(self) -> RankSums:
        """Return what leaves statistics as they are, and counts them."""

        def add_up(share: Array) -> None:
            if self.grid.num_blocks > 1:
                self.log(Reduction(share.nbytes))

        return add_up


def rehearsed_operators(
    grid: ProcessGrid, share: Share, trace: TraceRecorder, log: Log
) -> RehearsedOperators:
    """Return what makes the operators of a share, on a grid of one rank with its place."""
    carrier = Carrier(grid, MAIN, SilentTransport(grid.block, log))
    config = share.config.travel
    return RehearsedOperators(grid, config, trace, carrier, share=share, log=log)


class ShareMatrices:
    """The matrices of a share, with values where training has them; see `hpcgnn.graph`.

    Parameters
    ----------
    share
        Holds their patterns.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self.whole: Mapping[Aggregation, DistCSR] = {
            kind: self._scaled(ALL, kind) for kind in share.aggregations
        }

    def active_sets(self, targets: Mask, depth: int, last: int) -> Sequence[Mask]:
        """Return the sets of local nodes, which were found with the same `last`."""
        sets = self._share.sets
        assert len(sets) == depth + 1
        assert np.array_equal(targets, sets[-1])
        return sets

    def restricted(self, kind: Aggregation, inputs: Mask, outputs: Mask) -> DistCSR | None:
        """Return the matrix over two sets; None where these are all nodes."""
        sets = self._share.sets
        place = next(i for i in range(len(sets) - 1) if sets[i] is inputs)
        assert sets[place + 1] is outputs
        known = (place, kind.direction) in self._share.patterns
        return self._scaled((place, kind.direction), kind) if known else None

    def _scaled(self, key: PatternKey, kind: Aggregation) -> DistCSR:
        block = self._share.patterns[key].block
        if kind.attends:
            return block.with_values(None, None)
        parts = block.diagonal, block.remote
        if not kind.is_scaled and all(part.values is None for part in parts):
            return block
        dtype = self._share.config.train.dtype
        return block.with_values(*(np.ones(part.nnz, dtype) for part in parts))
