"""Rounds of refinement: each brings other parts together on ranks; those that fail are undone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import sparse

from hpcgnn.comm import Communicator, allreduce_sum, bcast
from hpcgnn.partition.groups import Counts, GroupShare
from hpcgnn.partition.metis import weighted_metis
from hpcgnn.partition.nets import Pins
from hpcgnn.partition.volume_balanced import METIS_SEEDS, Objective, Preset
from hpcgnn.spmd import collective
from hpcgnn.typing import LocalIndices, Offsets

Report: TypeAlias = Callable[[str], None]

ROUNDS: dict[Preset, int] = {"fast": 4, "default": 8}
ROUNDS_ALONE: dict[Preset, int] = {"fast": 1, "default": 2}
LEAST_GAIN = 0.02
"""`fast` ends, after a round with each kind of groups, if a round gains less than this."""

AVERAGE_SHARE = 0.5
PARTS_PER_GROUP = 4
"""Least parts of a group; with fewer parts per rank, some ranks get none to refine."""

HEAVIEST_EDGE = 1000
GROUP_IMBALANCE = 0.05


@dataclass(frozen=True)
class Terms:
    """The request: number of parts, objective, effort, limit of weights, and seed."""

    num_parts: int
    objective: Objective
    preset: Preset
    imbalance: float
    seed: int


@dataclass(frozen=True, eq=False)
class CountedPartition:
    """A partition: the parts (num_local,) int32 of this rank's nodes, and their counts."""

    part: LocalIndices
    counts: Counts

    def describe(self) -> str:
        """Return the busiest sender and receiver and the total, as text."""
        send, recv = self.counts.loads.max(axis=0).tolist()
        return f"rows {send} sent, {recv} received at most, {self.counts.loads[:, 0].sum()} in all"

    def score(self, terms: Terms) -> tuple[int, float]:
        """Return the figures to compare: weight above the limits, then the price."""
        send, recv = self.counts.loads[:, 0], self.counts.loads[:, 1]
        busiest = {
            "total": send.sum(),
            "max_send": send.max(),
            "max_recv": recv.max(),
        }.get(terms.objective, max(send.max(), recv.max()))
        price = float(busiest) + AVERAGE_SHARE * float(send.sum()) / terms.num_parts
        return self.counts.excess(terms.imbalance), price


@collective
def refine(
    comm: Communicator, pins: Pins, part: LocalIndices, terms: Terms, report: Report
) -> CountedPartition:
    """Refine `part` in rounds and return the best partition; all ranks choose the same."""
    part = separate_heavy(comm, pins, part, terms.num_parts)
    grouping = Grouping(comm, terms.seed)
    share = GroupShare(comm, pins, grouping.at_random(terms.num_parts), part)
    best = CountedPartition(part, share.count(part))
    priced = terms.objective in ("max_recv", "max_both", "joint")
    report(f"start: {best.describe()}")
    average = float(best.counts.work.sum()) / terms.num_parts
    bound = share.receive_bound(average, terms.imbalance) if priced else 0
    # With several groups rounds can differ.
    several = grouping.num_groups(terms.num_parts) > 1
    rounds = (ROUNDS if several else ROUNDS_ALONE)[terms.preset]
    for cycle in range(rounds):
        share.return_nets()
        del share
        seed = terms.seed * 1_000_003 + 7919 * cycle
        share = GroupShare(comm, pins, grouping.next(best.counts), best.part)
        options = (terms.objective, terms.preset, terms.imbalance)
        # Seeds of ranks differ by more than those of rounds and runs, so that none coincide.
        own_seed = (seed + comm.rank * 2_654_435_761) % 2**63
        share.refine(best.part, best.counts, options, bound, own_seed, (cycle, rounds))
        part = share.bring_home(best.part)
        tried = CountedPartition(part, share.count(part))
        improves = tried.score(terms) < best.score(terms)
        report(f"round {cycle + 1} of {rounds}: {tried.describe()}{'' if improves else ', undone'}")
        gained = 1 - tried.score(terms)[1] / max(best.score(terms)[1], 1.0)
        if improves:
            best = tried
        if terms.preset == "fast" and cycle > 0 and gained < LEAST_GAIN:
            break
    share.return_nets()
    return best


class Grouping:
    """Assigns parts to ranks: parts that share many nets meet, and different ones in each round.

    Each rank gets a group of parts of about equal work, if there are enough parts. `seed` decides
    between equal choices.
    """

    def __init__(self, comm: Communicator, seed: int) -> None:
        self._comm, self._seed = comm, seed
        self._before: list[LocalIndices] = []

    def at_random(self, num_parts: int) -> LocalIndices:
        """Return a random rank, int32, for each part."""
        generator = np.random.default_rng(self._seed)
        return generator.permutation(num_parts).astype(np.int32) % self.num_groups(num_parts)

    def num_groups(self, num_parts: int) -> int:
        """Return the number of groups."""
        # A part that is alone on a rank could not exchange nodes with any other.
        return max(1, min(self._comm.size, num_parts // PARTS_PER_GROUP))

    @collective
    def next(self, counts: Counts) -> LocalIndices:
        """Return the rank of each part, int32, for the next round."""
        num_groups = self.num_groups(len(counts.work))
        group: LocalIndices | None = None
        if self._comm.rank == 0:
            generator = np.random.default_rng(self._seed + len(self._before))
            # Start with neighbours. But if the busiest parts are neighbours, they cannot give nodes
            # to each other, so every other round separates them.
            if num_groups == 1:
                group = np.zeros(len(counts.work), np.int32)
            elif len(self._before) % 2 == 0:
                group = self._near(counts, num_groups, generator)
            else:
                group = dealt(counts.loads.max(axis=1), num_groups, generator)
        common = bcast(self._comm, group)
        self._before.append(common)
        return common

    def _near(
        self, counts: Counts, num_groups: int, generator: np.random.Generator
    ) -> LocalIndices:
        num_parts = len(counts.work)
        has_nearest = counts.nearest >= 0
        row = np.repeat(np.arange(num_parts), has_nearest.sum(axis=1))
        column = counts.nearest[has_nearest]
        nets = counts.nearest_nets[has_nearest].astype(np.float64)
        met = sum((labels[row] == labels[column] for labels in self._before), np.zeros(len(row)))
        # Parts that have met before gain less from each other.
        nets *= 0.5**met
        near = sparse.csr_matrix((nets, (row, column)), shape=(num_parts, num_parts))
        near = near + near.T
        near.data *= HEAVIEST_EDGE / max(float(near.data.max(initial=0)), 1.0)
        near = near.tocsr()
        near.sort_indices()
        weights = np.ceil(near.data).astype(np.int64)
        graph = (near.indptr, near.indices, weights, np.maximum(counts.work, 1))
        seed = int(generator.integers(METIS_SEEDS))
        return weighted_metis(graph, num_groups, seed, GROUP_IMBALANCE)


def dealt(loads: Offsets, num_groups: int, generator: np.random.Generator) -> LocalIndices:
    """Deal parts at random to groups of equal size so that each gets some busy parts.

    Parts are dealt in the order of their loads, one to each group at a time. Returns their groups.
    """
    order = np.lexsort((generator.random(len(loads)), -loads))
    group = np.empty(len(loads), np.int32)
    for first in range(0, len(order), num_groups):
        members = order[first : first + num_groups]
        group[members] = generator.permutation(num_groups)[: len(members)]
    return group


@collective
def separate_heavy(
    comm: Communicator, pins: Pins, part: LocalIndices, num_parts: int
) -> LocalIndices:
    """Put nodes that are heavier than the average part into different parts, if there are enough.

    All but the heaviest of a part go to the lightest parts without a heavy node.
    """
    work = np.zeros(num_parts, np.int64)
    np.add.at(work, part, pins.weights)
    allreduce_sum(comm, work)
    heavy = np.flatnonzero(pins.weights > work.sum() // num_parts)
    rows = np.stack([heavy + pins.row_map.start, pins.weights[heavy], part[heavy]], axis=1)
    # There are at most as many as parts, since each is heavier than the average part.
    node, weight, home = np.concatenate(comm.allgather(rows)).T
    occupied = np.zeros(num_parts, bool)
    crowded = []
    for index in np.lexsort((node, -weight)).tolist():
        if occupied[home[index]]:
            crowded.append(index)
        occupied[home[index]] = True
    moved = part.copy()
    for node_index in crowded:
        free = np.flatnonzero(~occupied)
        if not len(free):
            break
        lightest = int(free[np.argmin(work[free])])
        occupied[lightest] = True
        work[home[node_index]] -= weight[node_index]
        work[lightest] += weight[node_index]
        if pins.row_map.start <= node[node_index] < pins.row_map.stop:
            moved[node[node_index] - pins.row_map.start] = lightest
    return moved
