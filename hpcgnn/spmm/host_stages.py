"""What the ranks of a host share, host by host."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm import RowMap
from hpcgnn.typing import GlobalIndices, LocalIndices

__all__ = ["HostStage", "host_stages"]


@dataclass(frozen=True, eq=False)
class HostStage:
    """The rows of the owners on one host that the ranks of this host need.

    They stand in one array by *reader*, the mate that fetches them, and then by owner. Owner number
    u has reader u modulo the number of mates, so on the own host every rank reads itself.

    Parameters
    ----------
    owners
        Ranks of the layer on that host, increasing.
    nodes
        For each owner the increasing global nodes that any mate needs.
    starts
        For each owner the place of its first row in the array.
    num_mates
        Ranks of this host.
    """

    owners: tuple[int, ...]
    nodes: tuple[GlobalIndices, ...]
    starts: tuple[int, ...]
    num_mates: int

    @property
    def num_rows(self) -> int:
        """Rows of all owners."""
        return sum(map(len, self.nodes))

    def part(self, number: int) -> slice:
        """Return where the rows of owner `number` are; nowhere if the host has fewer owners.

        Not collective.
        """
        if number >= len(self.owners):
            return slice(0, 0)
        return slice(self.starts[number], self.starts[number] + len(self.nodes[number]))

    def share(self, mate: int) -> slice:
        """Return where the rows are that `mate` fetches.

        Not collective.
        """
        parts = [self.part(u) for u in range(mate, len(self.owners), self.num_mates)]
        return slice(parts[0].start, parts[-1].stop) if parts else slice(0, 0)

    def fetched(self, mate: int) -> GlobalIndices:
        """Return the nodes that `mate` fetches, increasing.

        Not collective.
        """
        return np.concatenate([np.empty(0, np.int64), *self.nodes[mate :: self.num_mates]])


def host_stages(
    row_map: RowMap, needs: list[GlobalIndices], hosts: LocalIndices, here: int
) -> tuple[HostStage, ...]:
    """Return a stage for each host, from this one on.

    Not collective.

    Parameters
    ----------
    row_map
        Owners of the nodes.
    needs
        For each mate the increasing nodes that it needs.
    hosts
        (ranks of the layer,) int32 the host of each.
    here
        This host.
    """
    everything = np.unique(np.concatenate(needs))
    bounds = np.searchsorted(everything, row_map.starts)
    num_hosts, num_mates = int(hosts.max()) + 1, len(needs)
    stages = []
    for shift in range(num_hosts):
        owners = np.flatnonzero(hosts == (here + shift) % num_hosts).tolist()
        nodes = tuple(everything[bounds[owner] : bounds[owner + 1]] for owner in owners)
        starts, first = [0] * len(owners), 0
        for number in sorted(range(len(owners)), key=lambda u: (u % num_mates, u)):
            starts[number] = first
            first += len(nodes[number])
        stages.append(HostStage(tuple(owners), nodes, tuple(starts), num_mates))
    return tuple(stages)
