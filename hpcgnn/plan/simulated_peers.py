"""Known answers of other ranks to a rank that sets up its exchanges; see `hpcgnn.spmm.Peers`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from hpcgnn.comm import CommPlan, ProcessGrid, Request
from hpcgnn.operator import OperatorSize
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm import CoverSplit, Ghosts, Peers, PushedEntries
from hpcgnn.spmm.exchange.peers import unite
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of other ranks to one ghost exchange of a rank.

    `peers`, `send_counts` and `recv_counts` are those of its plan, see `hpcgnn.comm.CommPlan`, and
    `wanted` the nodes that it sends, by peer. If its exchange needs them, `of_host` and
    `sent_by_host` are the ghosts of every rank of its host and the nodes that each sends, and
    `rows_at_owners` the row of each ghost in its owner's array. `sizes` (blocks,) int64 count the
    rows of each rank's array.
    """

    peers: LocalIndices
    wanted: GlobalIndices
    send_counts: LocalIndices
    recv_counts: LocalIndices
    of_host: tuple[GlobalIndices, ...]
    sent_by_host: tuple[GlobalIndices, ...]
    sizes: Array
    rows_at_owners: LocalIndices | None = None


@dataclass(frozen=True, eq=False)
class PatternShare:
    """One matrix of a rank.

    `block` is the block row; `size` is that of the whole matrix. `fetch` and `push` are the answers
    to the two ghost exchanges of the rank. `pushed` are the entries that it multiplies for others;
    None if no rank pushes any.
    """

    block: DistCSR
    size: OperatorSize
    fetch: Answers
    push: Answers
    pushed: PushedEntries | None


class KnownPeers(Peers):
    """Other ranks with the answers of `share`; `grid` has one rank, which plays that rank."""

    def __init__(self, grid: ProcessGrid, share: PatternShare) -> None:
        super().__init__(grid)
        self._share = share

    @override
    def ids(self, plan: CommPlan, own: GlobalIndices) -> GlobalIndices:
        # Only their number matters, here and for values below.
        return np.zeros(plan.num_ghosts, np.int64)

    def _to(self, ghosts: Ghosts) -> Answers:
        return self._share.push if ghosts.pushed else self._share.fetch

    @override
    def plan(self, ghosts: Ghosts, request: Request) -> tuple[CommPlan, GlobalIndices]:
        known, grid = self._to(ghosts), self._grid
        received = request.counts[known.peers]
        assert np.array_equal(received, known.recv_counts), "the request differs from the survey"
        neighbours = grid.neighbourhood(known.peers[:0])
        rows = np.arange(len(known.wanted), dtype=np.int32)
        counts = known.send_counts, known.recv_counts
        return CommPlan(neighbours, grid.num_blocks, known.peers, rows, *counts), known.wanted

    @override
    def sent_by_host(self, ghosts: Ghosts, wanted: GlobalIndices) -> list[GlobalIndices]:
        return list(self._to(ghosts).sent_by_host)

    @override
    def ghosts_of_host(self, ghosts: Ghosts) -> list[GlobalIndices]:
        return list(self._to(ghosts).of_host)

    @override
    def united(self, ghosts: Ghosts, lists: Sequence[GlobalIndices]) -> GlobalIndices:
        return unite(lists)

    @override
    def sizes(self, ghosts: Ghosts) -> Array:
        return self._to(ghosts).sizes

    @override
    def all_ids(self, ghosts: Ghosts) -> Sequence[GlobalIndices]:
        return [np.zeros(size, np.int64) for size in self.sizes(ghosts)]

    @override
    def rows_at_owners(self, ghosts: Ghosts) -> LocalIndices:
        rows = self._to(ghosts).rows_at_owners
        assert rows is not None, "rows at owners are known only for exchanges without a plan"
        return rows

    @override
    def pushed_entries(self, pattern: DistCSR, split: CoverSplit) -> PushedEntries | None:
        return self._share.pushed

    @override
    def pushed_values(self, owners: LocalIndices, values: Array) -> Array:
        assert self._share.pushed is not None
        shape = self._share.pushed.pattern.nnz, *values.shape[1:]
        return np.ones(shape, values.dtype)

    @override
    def size(self, matrix: DistCSR, num_moved: int) -> OperatorSize:
        return self._share.size
