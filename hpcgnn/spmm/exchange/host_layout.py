"""Where the rows stand that the ranks of a host share, and which of them a rank visits when.

The ranks of a host are *mates*. The rows that any of them needs stand in one array by *reader*, the
mate that brings them: first those that it owns and other mates need, then those that it fetches
from other hosts on behalf of all, by owner::

    | rank 0: own rows | rank 0: fetched | rank 1: own rows | rank 1: fetched | ...

All rows of one owner have one reader. A resident schedule shares one such array, and all rows of
one host have one reader: the ranks of that host lay them in memory that *they* share, from where
one of them sends them (`Outbox`), so that a pair of hosts exchanges one message. Which rank sends
and which reads goes by the numbers of the hosts, so that all ranks of a host have such work.

A sequential one sends from each owner: a pair of an owner and a host exchanges one message. It
walks over the hosts, in the part that ranks have in the direct exchange: at the stage of shift s
the mates of host h share the rows of the owners on host h + s. They then visit the owners of a
stage one after another, each mate another one at a time, so that a push adds to the sums of a host
one mate to one owner at a time, and in a fixed order::

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

    `owners` are increasing ranks of the layer. For each, `nodes` are the increasing global nodes
    that any mate needs (forgotten by `HostLayout` when everything is laid out), `sizes` how many,
    `readers` the number of the mate that brings its rows, and `starts` the place of the first of
    them in the array.
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
        """Return the rows in one array; `senders` (layer ranks,) send each owner's rows here."""
        # By readers first: what a mate brings is one range, which it receives, clears and sends
        # whole. Its own rows stand before those, so that what it fetches is one range as well, in
        # the order of messages.
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
        """Rows of all owners."""
        return sum(self.sizes)

    def part(self, number: int) -> slice:
        """Return where the rows of owner `number` are; nowhere if there are fewer owners."""
        if number >= len(self.owners):
            return slice(0, 0)
        return slice(self.starts[number], self.starts[number] + self.sizes[number])

    def own(self, rank: int) -> slice:
        """Return where the rows are that `rank` owns."""
        return self.part(self.owners.index(rank) if rank in self.owners else len(self.owners))

    def share(self, reader: int) -> slice:
        """Return where the rows are that a mate brings."""
        parts = [self.part(u) for u, mate in enumerate(self.readers) if mate == reader]
        if not parts:
            return slice(0, 0)
        return slice(min(part.start for part in parts), max(part.stop for part in parts))

    def fetched(self, reader: int, rank: int) -> list[tuple[int, GlobalIndices]]:
        """Return the owners, and their nodes, that a mate, which is `rank`, fetches."""
        fetches = zip(self.owners, self.nodes, self.readers, strict=True)
        return [
            (owner, fetched) for owner, fetched, mate in fetches if mate == reader and owner != rank
        ]


@dataclass(frozen=True, eq=False)
class Outbox:
    """The rows that one rank of a host sends for all of them, in memory that they share.

    Of the `num_rows` that the host's ranks send, `sent` says where those are that this rank sends,
    and `own` where rows are that it owns, and which rows of its arrays they are: no row twice in
    one pair.
    """

    num_rows: int
    sent: slice
    own: tuple[tuple[slice, LocalIndices], ...]

    @classmethod
    def of(cls, ghosts: Ghosts, sent: Sequence[GlobalIndices], mate: int) -> "Outbox":
        """Return what rank number `mate` of a host, whose ranks send these nodes, has to do."""
        nodes = np.concatenate([_NO_NODES, *sent])
        ends = np.cumsum([0, *map(len, sent)]).tolist()
        positions = np.flatnonzero(ghosts.row_map.is_local(nodes))
        rows = ghosts.rows_of(nodes[positions])
        # Messages name the rows of one owner side by side, and each of them once.
        cuts = np.flatnonzero((np.diff(positions) != 1) | (np.diff(rows) <= 0)) + 1
        parts = zip(np.split(positions, cuts), np.split(rows, cuts), strict=True)
        own = [(slice(int(at[0]), int(at[-1]) + 1), some) for at, some in parts if len(at) > 0]
        return cls(len(nodes), slice(ends[mate], ends[mate + 1]), tuple(own))


@dataclass(frozen=True, eq=False)
class HostLayout:
    """What one rank shares and visits.

    Of `stages`, each what is shared at one time, the first has the rows that the rank owns.
    `senders` (layer ranks,) int32 send each owner's rows to this host; `mate` is the number of
    `rank` on its host. `num_visits` are those of each stage; 0: a stage is taken whole.
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

        `everything` are the increasing nodes that any mate needs, `hosts` (layer ranks,) int32 the
        host of each; where `sequential`, the mates walk over the hosts.
        """
        host_of_rank, mates = (
            int(hosts[rank]),
            np.flatnonzero(hosts == hosts[rank]).astype(np.int32),
        )
        # A row is once in memory of the host however many mates read it; the columns of each mate's
        # block point into this one list.
        # Increasing nodes of owners that own ranges: each owner's part is a range.
        bounds = np.searchsorted(everything, row_map.starts)

        def shared(owners: Sequence[int], readers: Sequence[int]) -> SharedRows:
            nodes = [everything[bounds[owner] : bounds[owner + 1]] for owner in owners]
            return SharedRows.of(owners, nodes, readers, mates, senders)

        number, senders = int(np.searchsorted(mates, rank)), np.arange(len(hosts), dtype=np.int32)
        if not sequential:
            # Hosts are dealt out to the mates in turn, so that all of them receive alike, whoever
            # needs the rows; and so they send.
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
            # On the own host every rank reads itself.
            stages.append(shared(owners, [u % len(mates) for u in range(len(owners))]))
        return cls(tuple(stages), senders, rank, number, int(np.bincount(hosts).max()))

    def without_nodes(self) -> "HostLayout":
        """Return the layout for products: nodes are as many as the ghosts of the host, and done."""
        return replace(self, stages=tuple(replace(stage, nodes=()) for stage in self.stages))

    @property
    def request(self) -> Request:
        """What the rank fetches from other hosts."""
        fetched = [pair for stage in self.stages for pair in stage.fetched(self.mate, self.rank)]
        # The order of messages; owners on one host stand in the order of their nodes.
        fetched.sort(key=lambda item: (self.senders[item[0]], item[0]))
        counts = np.zeros(len(self.senders), np.int32)
        for owner, nodes in fetched:
            counts[self.senders[owner]] += len(nodes)
        return Request(np.concatenate([_NO_NODES, *(nodes for _, nodes in fetched)]), counts)

    def visit(self, index: int) -> tuple[int, slice]:
        """Return the place of the stage, and the rows in it, of stage `index` of a product."""
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
        """Return the columns of the rank's ghosts: rows of what it visits, which mates may need."""
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
