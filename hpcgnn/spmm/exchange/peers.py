"""What an exchange needs from the other ranks when it is set up.

An exchange is made of what its own rank holds and of these answers alone. Whoever knows the whole
graph can answer for ranks that do not exist: `hpcgnn.plan` rehearses every exchange that way.
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
    """What a ghost exchange is made for.

    `nodes` (num_ghosts,) int64 are increasing global nodes of other ranks. `positions` (num_local,)
    int32 are the rows of the local nodes in the arrays that are fetched from and pushed to, which
    have `num_rows` on this rank; -1 for none, None when they hold all local nodes in order. With
    `pushed` a product pushes to them, and its adjoint fetches them. `ids` (num_rows,) int64 name
    those rows wherever they are; None where nothing is drawn.
    """

    row_map: RowMap
    nodes: GlobalIndices
    positions: LocalIndices | None
    num_rows: int
    pushed: bool = False
    ids: GlobalIndices | None = None

    def rows_of(self, nodes: GlobalIndices) -> LocalIndices:
        """Return where the rows of own nodes are in the arrays."""
        rows = self.row_map.to_local(nodes)
        if self.positions is not None:
            rows = self.positions[rows]
            assert len(rows) == 0 or rows.min() >= 0, "a ghost is not among its owner's rows"
        return rows

    def ids_of(self, rows: LocalIndices) -> GlobalIndices | None:
        """Return the names of some of the rows; None where nothing is drawn."""
        return None if self.ids is None else self.ids[rows]


@dataclass(frozen=True, eq=False)
class LayerGhosts:
    """The ghosts of all ranks of a layer, which only a planner sees at once.

    `starts` (ranks + 1,) int64 are rows of the owners, `nodes` the increasing nodes of each rank's
    ghosts, `hosts` (ranks,) int32 the host of each. `terms` are those of the sum that the rank has
    for each ghost; None: nobody asks.
    """

    starts: Offsets
    nodes: Sequence[GlobalIndices]
    hosts: LocalIndices
    sequential: bool
    terms: Sequence[Array] | None = None


Received: TypeAlias = Callable[[LayerGhosts], Sequence[Request]]
"""Returns for each rank of a layer the rows that messages bring it, by who sends them."""


class Peers:
    """The other ranks of a grid."""

    def __init__(self, grid: ProcessGrid) -> None:
        self._grid = grid

    @collective
    def plan(self, ghosts: Ghosts, request: Request) -> tuple[CommPlan, GlobalIndices]:
        """Return who sends which rows to whom, and the nodes; see `CommPlan.from_request`."""
        return CommPlan.from_request(self._grid, request)

    @collective
    def plan_of_owners(self, ghosts: Ghosts, nodes: GlobalIndices) -> CommPlan:
        """Return the plan by which owners send increasing `nodes`, (n,) int64, from their rows."""
        plan, requested = self.plan(ghosts, Request.of_owners(ghosts.row_map, nodes))
        return replace(plan, send_rows=ghosts.rows_of(requested))

    @collective
    def sent_by_host(self, ghosts: Ghosts, requested: GlobalIndices) -> list[GlobalIndices]:
        """Return the nodes that each rank of this host sends, in rank order; until asked again."""
        return _split(*self._grid.shared_window().gather("wanted", requested))

    @collective
    def ids(self, plan: CommPlan, own_ids: GlobalIndices) -> GlobalIndices:
        """Return the ids of the ghosts of a plan, by those of the rows that it sends."""
        # Moved and not computed with: every pattern of 64 bits arrives as it is.
        ghosts = np.empty((plan.num_ghosts, 1), np.int64)
        plan.start_forward(np.ascontiguousarray(own_ids)[:, None], ghosts).wait()
        return ghosts[:, 0]

    @collective
    def ghosts_of_host(self, ghosts: Ghosts) -> list[GlobalIndices]:
        """Return the ghosts of each rank of this host, in rank order; until asked again."""
        return _split(*self._grid.shared_window().gather("ghosts", ghosts.nodes))

    @collective
    def united(self, ghosts: Ghosts, lists: Sequence[GlobalIndices]) -> GlobalIndices:
        """Return the increasing nodes of the lists of this host's ranks; until the next call."""
        window = self._grid.shared_window()
        rank, size, rows = window.comm.rank, window.comm.size, ghosts.row_map.num_rows
        # Every rank unites a range of nodes, so that none sorts all of them.
        first, last = rank * rows // size, (rank + 1) * rows // size
        local = [nodes[slice(*np.searchsorted(nodes, [first, last]))] for nodes in lists]
        return window.gather("united", unite(local))[0]

    @collective
    def sizes(self, ghosts: Ghosts) -> Array:
        """Return (ranks of the layer,) int64: the rows that each fetches from."""
        return np.array(self._grid.layer.allgather(ghosts.num_rows), np.int64)

    @collective
    def all_ids(self, ghosts: Ghosts) -> Sequence[GlobalIndices]:
        """Return the names of the rows that each rank of the layer fetches from."""
        assert ghosts.ids is not None, "rows that are rounded at random have names"
        return self._grid.layer.allgather(ghosts.ids)

    @collective
    def rows_at_owners(self, ghosts: Ghosts) -> LocalIndices:
        """Return (num_ghosts,) int32: the row of each ghost in its owner's array."""
        row_map = ghosts.row_map
        if ghosts.positions is None:
            return (ghosts.nodes - row_map.starts[row_map.owner(ghosts.nodes)]).astype(np.int32)
        plan = CommPlan.from_ghosts(self._grid, row_map, ghosts.nodes)
        # float64 holds every int32 exactly, and plans move floats.
        rows = plan.forward(ghosts.positions.astype(np.float64)[:, None])
        return rows[:, 0].astype(np.int32)

    @collective
    def pushed_entries(self, pattern: DistCSR, split: CoverSplit) -> PushedEntries | None:
        """Return the entries that other ranks leave to this one; None where no rank leaves any."""
        # All ranks must agree that there is no second exchange, for making one is collective.
        pushed = np.array([split.pushed.sum()])
        self._grid.sum_over_blocks(pushed)
        if pushed[0] == 0:
            return None
        owners = split.owners_of_pushed(pattern)
        entries = split.pushed_entries(pattern)
        return PushedEntries.of(pattern, *redistribute(self._grid.layer, owners, *entries))

    @collective
    def pushed_values(self, owners: LocalIndices, values: Array) -> Array:
        """Return the values (n, ...) of `pushed_entries` in order of their arrival."""
        (arrived,) = redistribute(self._grid.layer, owners, values)
        return arrived

    @collective
    def size(self, matrix: DistCSR, num_moved: int) -> OperatorSize:
        """Return the size of the whole matrix; this rank moves `num_moved` rows a product."""
        counts = np.array([*matrix.shape, matrix.nnz, num_moved], np.int64)
        # Replicas hold the same rows and entries, but each moves a share of its own.
        counts[:3] *= self._grid.group == self._grid.replica == 0
        allreduce_sum(self._grid.world, counts)
        return OperatorSize(*counts.tolist())


def unite(lists: Sequence[GlobalIndices]) -> GlobalIndices:
    """Return the increasing nodes that are in some of the lists, int64."""
    return distinct(np.concatenate([np.empty(0, np.int64), *lists]))


def _split(whole: GlobalIndices, ends: Offsets) -> list[GlobalIndices]:
    return np.split(whole, ends[1:-1])
