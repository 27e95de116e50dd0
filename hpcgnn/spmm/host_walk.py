"""The walk of a host over all hosts: who is visited when, and the messages between hosts."""

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid
from hpcgnn.spmm.ghosts import Ghosts, Wire
from hpcgnn.spmm.host_stages import HostStage, host_stages
from hpcgnn.spmm.schedule import Schedule
from hpcgnn.spmm.spans import Moved, world_ranks
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import LocalIndices

__all__ = ["HostWalk"]


class HostWalk:
    """The visits of one rank, and all that a fetch or a push along them needs.

    Collective.

    Parameters
    ----------
    grid, ghosts, wire, trace, schedule
        As for `StagedHostExchange`.
    """

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
        self.visited, self.columns = self._columns_of(ghosts)

    def visit(self, index: int) -> tuple[HostStage, int]:
        """Return the stage and the owner on its host of stage `index` of a product.

        Not collective.
        """
        place, turn = divmod(index, self.num_visits)
        return self.hosts[place], (self.mate + turn) % self.num_visits

    @property
    def num_stages(self) -> int:
        """Visits to all hosts."""
        return len(self.hosts) * self.num_visits

    def num_columns(self, index: int) -> int:
        """Return the rows of a visit; the host has all of them, whichever mate reads them.

        Not collective.
        """
        stage, owner = self.visit(index)
        part = stage.part(owner)
        return int(part.stop - part.start)

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
