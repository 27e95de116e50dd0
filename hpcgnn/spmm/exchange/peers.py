"""The information that an exchange needs from other ranks when it is set up.

An exchange is made only from its own rank's data and the answers of `Peers`. So code that knows the
whole graph can answer for ranks that do not exist: `hpcgnn.plan` rehearses every exchange that way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, Request, RowMap, allreduce_sum, redistribute
from hpcgnn.operator import OperatorSize
from hpcgnn.sparse import DistCSR
from hpcgnn.sparse.pieces import distinct
from hpcgnn.spmd import collective
from hpcgnn.spmm.cover import CoverSplit, PushedEntries
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets


@dataclass(frozen=True, eq=False)
class Ghosts:
    """The rows that a ghost exchange moves.

    `nodes` (num_ghosts,) int64 are ascending global nodes of other ranks. This rank's arrays for
    fetches and pushes have `num_rows`; `positions` (num_local,) int32 are the rows of its local
    nodes in them, -1 for none; None: they hold all local nodes in order. With `pushed`, products
    push to the ghosts and adjoints fetch them. `ids` (num_rows,) int64 identify these rows in
    stochastic rounding, whatever their distribution; None without it.
    """

    row_map: RowMap
    nodes: GlobalIndices
    positions: LocalIndices | None
    num_rows: int
    pushed: bool = False
    ids: GlobalIndices | None = None

    def rows_of(self, nodes: GlobalIndices) -> LocalIndices:
        """Return the rows of own nodes in this rank's arrays."""
        rows = self.row_map.to_local(nodes)
        if self.positions is not None:
            rows = self.positions[rows]
            assert len(rows) == 0 or rows.min() >= 0, "a ghost is not among its owner's rows"
        return rows

    def ids_of(self, rows: LocalIndices) -> GlobalIndices | None:
        """Return the ids of some of the rows; None without stochastic rounding."""
        return None if self.ids is None else self.ids[rows]


@dataclass(frozen=True, eq=False)
class LayerGhosts:
    """The ghosts of all ranks of a layer, which only a planner knows at once.

    `starts` (ranks + 1,) int64 are the owners' first rows, `nodes` the ascending nodes of each
    rank's ghosts, and `hosts` (ranks,) int32 the hosts of the ranks. `terms` are the numbers of
    terms of each rank's sum for each ghost; None if they are not needed.
    """

    starts: Offsets
    nodes: Sequence[GlobalIndices]
    hosts: LocalIndices
    sequential: bool
    terms: Sequence[Array] | None = None


Received: TypeAlias = Callable[[LayerGhosts], Sequence[Request]]
"""Returns for each rank of a layer the rows that it receives in messages, by sender."""


class Peers:
    """Answers of the other ranks of a grid."""

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid

    @collective
    def plan(self, ghosts: Ghosts, request: Request) -> tuple[CommPlan, GlobalIndices]:
        """Return the plan for a request, and the nodes to send; see `CommPlan.from_request`."""
        return CommPlan.from_request(self._grid, request)

    @collective
    def plan_of_owners(self, ghosts: Ghosts, nodes: GlobalIndices) -> CommPlan:
        """Return the plan by which owners send ascending `nodes`, (n,) int64, from their arrays."""
        plan, requested = self.plan(ghosts, Request.of_owners(ghosts.row_map, nodes))
        return replace(plan, send_rows=ghosts.rows_of(requested))

    @collective
    def sent_by_host(self, ghosts: Ghosts, requested: GlobalIndices) -> list[GlobalIndices]:
        """Return the nodes that each rank of this host sends; valid until the next call."""
        return _split(*self._grid.shared_window().gather("wanted", requested))

    @collective
    def ids(self, plan: CommPlan, own_ids: GlobalIndices) -> GlobalIndices:
        """Return the ids of the ghosts of a plan, given those of the rows that it sends."""
        ghosts = np.empty((plan.num_ghosts, 1), np.int64)
        plan.start_forward(np.ascontiguousarray(own_ids)[:, None], ghosts).wait()
        return ghosts[:, 0]

    @collective
    def ghosts_of_host(self, ghosts: Ghosts) -> list[GlobalIndices]:
        """Return the ghosts of each rank of this host; valid until the next call."""
        return _split(*self._grid.shared_window().gather("ghosts", ghosts.nodes))

    @collective
    def united(self, ghosts: Ghosts, lists: Sequence[GlobalIndices]) -> GlobalIndices:
        """Return the ascending union of the host's `lists`; valid until the next call."""
        window = self._grid.shared_window()
        rank, size, rows = window.comm.rank, window.comm.size, ghosts.row_map.num_rows
        # Every rank unites a range of nodes, so that no rank has to sort all of them.
        first, last = rank * rows // size, (rank + 1) * rows // size
        local = [nodes[slice(*np.searchsorted(nodes, [first, last]))] for nodes in lists]
        return window.gather("united", unite(local))[0]

    @collective
    def sizes(self, ghosts: Ghosts) -> Array:
        """Return (ranks of the layer,) int64 the number of rows of each rank's array."""
        return np.array(self._grid.layer.allgather(ghosts.num_rows), np.int64)

    @collective
    def all_ids(self, ghosts: Ghosts) -> Sequence[GlobalIndices]:
        """Return the ids of the rows of each rank of the layer."""
        assert ghosts.ids is not None, "stochastic rounding needs ids"
        return self._grid.layer.allgather(ghosts.ids)

    @collective
    def rows_at_owners(self, ghosts: Ghosts) -> LocalIndices:
        """Return (num_ghosts,) int32 the row of each ghost in its owner's array."""
        row_map = ghosts.row_map
        if ghosts.positions is None:
            return (ghosts.nodes - row_map.starts[row_map.owner(ghosts.nodes)]).astype(np.int32)
        plan = CommPlan.from_ghosts(self._grid, row_map, ghosts.nodes)
        # Plans gather floats; float64 holds every int32 exactly.
        rows = plan.forward(ghosts.positions.astype(np.float64)[:, None])
        return rows[:, 0].astype(np.int32)

    @collective
    def pushed_entries(self, pattern: DistCSR, split: CoverSplit) -> PushedEntries | None:
        """Return the entries that other ranks push to this one; None if no rank pushes any."""
        # All ranks must agree whether there is a second exchange, since making one is collective.
        pushed = np.array([split.pushed.sum()])
        self._grid.sum_over_blocks(pushed)
        if pushed[0] == 0:
            return None
        owners = split.owners_of_pushed(pattern)
        entries = split.pushed_entries(pattern)
        return PushedEntries.of(pattern, *redistribute(self._grid.layer, owners, *entries))

    @collective
    def pushed_values(self, owners: LocalIndices, values: Array) -> Array:
        """Return the values (n, ...) of `pushed_entries` in their order of arrival."""
        (arrived,) = redistribute(self._grid.layer, owners, values)
        return arrived

    @collective
    def size(self, matrix: DistCSR, num_moved: int) -> OperatorSize:
        """Return the size of the whole matrix; this rank moves `num_moved` rows per product."""
        counts = np.array([*matrix.shape, matrix.nnz, num_moved], np.int64)
        # Replicas hold the same rows and entries, but each moves a share of its own.
        counts[:3] *= self._grid.group == self._grid.replica == 0
        allreduce_sum(self._grid.world, counts)
        return OperatorSize(*counts.tolist())


def unite(lists: Sequence[GlobalIndices]) -> GlobalIndices:
    """Return the ascending union of lists of nodes, int64."""
    return distinct(np.concatenate([np.empty(0, np.int64), *lists]))


def _split(whole: GlobalIndices, ends: Offsets) -> list[GlobalIndices]:
    return np.split(whole, ends[1:-1])
