"""The layout of the rows that the ranks of a host share, and the order in which ranks visit them.

The ranks of a host are *mates*. The rows that any of them needs are in one array, grouped by
*reader*, the mate that brings them: first those that it owns and other mates need, then those that
it fetches from other hosts on behalf of all, by owner::

    | rank 0: own rows | rank 0: fetched | rank 1: own rows | rank 1: fetched | ...

All rows of one owner have one reader. A resident schedule has one such array, and all rows of one
host have one reader: the ranks of that host put them into memory that *they* share, from which one
of them sends them (`Outbox`), so that a pair of hosts exchanges one message. Host numbers determine
the sender and the reader, so that this work is divided among the ranks of a host.

In a sequential schedule each owner sends its rows, one message to each host. It goes through the
hosts as the direct exchange goes through ranks: in the stage of shift s the mates of host h share
the rows of the owners on host h + s. The mates visit the owners of a stage one after another, each
mate a different one at a time, so that in a push only one mate adds to the sums of an owner at a
time, and in a fixed order::

    stage of 3 owners      mate 0   mate 1   mate 2
      visit 0                u0       u1       u2
      visit 1                u1       u2       u0
      visit 2                u2       u0       u1
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcgnn.comm import Request, RowMap
from hpcgnn.spmm.exchange.peers import Ghosts
from hpcgnn.spmm.exchange.stages import StageColumns
from hpcgnn.typing import GlobalIndices, LocalIndices

_NO_NODES: GlobalIndices = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class SharedRows:
    """The rows of some owners that the ranks of a host share at one time.

    `owners` are ascending ranks of the layer. For each owner, `nodes` are the ascending global
    nodes that any mate needs (dropped by `HostLayout.without_nodes`), `sizes` is their number,
    `readers` the mate that brings its rows, and `starts` the position of the first in the array.
    """

    owners: tuple[int, ...]
    nodes: tuple[GlobalIndices, ...]
    sizes: tuple[int, ...]
    readers: tuple[int, ...]
    starts: tuple[int, ...]

    @classmethod
    def of(
        cls,
        owners: Sequence[int],
        nodes: Sequence[GlobalIndices],
        readers: Sequence[int],
        mates: LocalIndices,
        senders: LocalIndices,
    ) -> "SharedRows":
        """Lay the rows out in one array; `senders` (layer ranks,) send each owner's rows here."""
        # Sort by reader, so that a mate receives, clears and sends one range. Its own rows come
        # first, so that the rows it fetches are one range too, in the order of messages.
        starts, first = [0] * len(owners), 0
        for number in sorted(
            range(len(owners)),
            key=lambda u: (readers[u], owners[u] != mates[readers[u]], senders[owners[u]], u),
        ):
            starts[number] = first
            first += len(nodes[number])
        sizes = tuple(map(len, nodes))
        return cls(tuple(owners), tuple(nodes), sizes, tuple(readers), tuple(starts))

    @property
    def num_rows(self) -> int:
        """Number of rows of all owners."""
        return sum(self.sizes)

    def part(self, number: int) -> slice:
        """Return the range of the rows of owner `number`; empty if there are fewer owners."""
        if number >= len(self.owners):
            return slice(0, 0)
        return slice(self.starts[number], self.starts[number] + self.sizes[number])

    def own(self, rank: int) -> slice:
        """Return the range of the rows that `rank` owns."""
        return self.part(self.owners.index(rank) if rank in self.owners else len(self.owners))

    def share(self, reader: int) -> slice:
        """Return the range of the rows that mate `reader` brings."""
        parts = [self.part(u) for u, mate in enumerate(self.readers) if mate == reader]
        if not parts:
            return slice(0, 0)
        return slice(min(part.start for part in parts), max(part.stop for part in parts))

    def fetched(self, reader: int, rank: int) -> list[tuple[int, GlobalIndices]]:
        """Return the owners and nodes that mate `reader`, with rank `rank`, fetches."""
        fetches = zip(self.owners, self.nodes, self.readers, strict=True)
        return [
            (owner, fetched) for owner, fetched, mate in fetches if mate == reader and owner != rank
        ]


@dataclass(frozen=True, eq=False)
class Outbox:
    """The rows that the ranks of a host send to other hosts, in memory that they share.

    There are `num_rows`; this rank sends the range `sent`. `own` are pairs of a range of rows that
    this rank owns and their rows in its arrays, without repeats in a pair.
    """

    num_rows: int
    sent: slice
    own: tuple[tuple[slice, LocalIndices], ...]

    @classmethod
    def of(cls, ghosts: Ghosts, sent: Sequence[GlobalIndices], mate: int) -> "Outbox":
        """Return the outbox of a mate; `sent` are the nodes that each rank of the host sends."""
        nodes = np.concatenate([_NO_NODES, *sent])
        ends = np.cumsum([0, *map(len, sent)]).tolist()
        positions = np.flatnonzero(ghosts.row_map.is_local(nodes))
        rows = ghosts.rows_of(nodes[positions])
        # In a message, the rows of an owner are consecutive and do not repeat.
        cuts = np.flatnonzero((np.diff(positions) != 1) | (np.diff(rows) <= 0)) + 1
        parts = zip(np.split(positions, cuts), np.split(rows, cuts), strict=True)
        own = [(slice(int(at[0]), int(at[-1]) + 1), of_at) for at, of_at in parts if len(at) > 0]
        return cls(len(nodes), slice(ends[mate], ends[mate + 1]), tuple(own))


@dataclass(frozen=True, eq=False)
class HostLayout:
    """The rows that a rank shares, and the order in which it visits them.

    `stages` are the rows shared at one time; the first includes the rows that the rank owns.
    `senders` (layer ranks,) int32 send each owner's rows to this host. `mate` is the number of
    `rank` on its host. A stage has `num_visits`; 0: it is used whole.
    """

    stages: tuple[SharedRows, ...]
    senders: LocalIndices
    rank: int
    mate: int
    num_visits: int

    @classmethod
    def of(
        cls,
        row_map: RowMap,
        everything: GlobalIndices,
        hosts: LocalIndices,
        rank: int,
        *,
        sequential: bool,
    ) -> "HostLayout":
        """Return the layout of a `rank` of the layer.

        `everything` are the ascending nodes that any mate needs, `hosts` (layer ranks,) int32 the
        hosts of the ranks.
        """
        host_of_rank = int(hosts[rank])
        mates = np.flatnonzero(hosts == hosts[rank]).astype(np.int32)
        # A row is in the host's memory once, however many mates read it: the columns of their
        # blocks point into this list. Owners own ranges, so each owner's nodes are a range too.
        bounds = np.searchsorted(everything, row_map.starts)

        def shared(owners: Sequence[int], readers: Sequence[int]) -> SharedRows:
            nodes = [everything[bounds[owner] : bounds[owner + 1]] for owner in owners]
            return SharedRows.of(owners, nodes, readers, mates, senders)

        number, senders = int(np.searchsorted(mates, rank)), np.arange(len(hosts), dtype=np.int32)
        if not sequential:
            # Deal hosts out to mates cyclically, so that all receive about equally, and send so.
            readers = hosts % len(mates)
            readers[mates] = np.arange(len(mates))
            for host in range(int(hosts.max()) + 1):
                ranks = np.flatnonzero(hosts == host)
                senders[ranks] = ranks[host_of_rank % len(ranks)]
            whole = shared(range(len(hosts)), readers.tolist())
            return cls((whole,), senders, rank, number, 0)
        num_hosts, stages = int(hosts.max()) + 1, []
        for shift in range(num_hosts):
            owners = np.flatnonzero(hosts == (host_of_rank + shift) % num_hosts).tolist()
            # On the own host every rank is the reader of its own rows.
            stages.append(shared(owners, [u % len(mates) for u in range(len(owners))]))
        return cls(tuple(stages), senders, rank, number, int(np.bincount(hosts).max()))

    def without_nodes(self) -> "HostLayout":
        """Return the layout for products, without the host's nodes, which take much memory."""
        return replace(self, stages=tuple(replace(stage, nodes=()) for stage in self.stages))

    @property
    def request(self) -> Request:
        """The rows that the rank fetches from other hosts."""
        fetched = [pair for stage in self.stages for pair in stage.fetched(self.mate, self.rank)]
        # Sort into the order of messages; within a message, owners are in rank order.
        fetched.sort(key=lambda item: (self.senders[item[0]], item[0]))
        counts = np.zeros(len(self.senders), np.int32)
        for owner, nodes in fetched:
            counts[self.senders[owner]] += len(nodes)
        return Request(np.concatenate([_NO_NODES, *(nodes for _, nodes in fetched)]), counts)

    def visit(self, index: int) -> tuple[int, slice]:
        """Return the stage of this layout, and the rows in it, for stage `index` of a product."""
        if self.num_visits == 0:
            return index, slice(0, self.stages[index].num_rows)
        stage, turn = divmod(index, self.num_visits)
        return stage, self.stages[stage].part((self.mate + turn) % self.num_visits)

    def begins(self, index: int) -> bool:
        """Return whether stage `index` of a product is the first visit of a stage."""
        return self.num_visits == 0 or index % self.num_visits == 0

    def ends(self, index: int) -> bool:
        """Return whether stage `index` of a product is the last visit of a stage."""
        return self.begins(index + 1)

    def columns(self, row_map: RowMap, nodes: GlobalIndices) -> StageColumns:
        """Return the columns of the rank's ghosts `nodes` among the shared rows that it visits."""
        bounds = np.searchsorted(nodes, row_map.starts)
        stages, columns = np.zeros((2, len(nodes)), np.int32)
        for stage_number, shared in enumerate(self.stages):
            for number, (owner, known) in enumerate(zip(shared.owners, shared.nodes, strict=True)):
                chosen = slice(bounds[owner], bounds[owner + 1])
                columns[chosen] = np.searchsorted(known, nodes[chosen])
                if self.num_visits == 0:
                    columns[chosen] += shared.starts[number]
                else:
                    turn = (number - self.mate) % self.num_visits
                    stages[chosen] = stage_number * self.num_visits + turn
        num_stages = len(self.stages) * (self.num_visits or 1)
        rows = [self.visit(index)[1] for index in range(num_stages)]
        return StageColumns(tuple(span.stop - span.start for span in rows), stages, columns)
