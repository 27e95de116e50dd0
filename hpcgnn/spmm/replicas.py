"""Sums over the replicas of a block row, which move only rows with a partial sum.

A replica multiplies its share of the block columns, so many rows have a partial sum on one replica
only. Each row has a *home*: replicas bring their partial sums there, they are added up, and the
result is spread to the others, so that all continue with the same bits. If h of c replicas have a
partial sum of a row, this moves the row h - 1 + c - 1 times, which is optimal: all but one of the h
must send it and all but one of the c receive it. (An all-reduce of whole arrays moves every row
2 c - 2 times.) The home is one of the h or, if there is only one, one of the others, so that the
work of sending is shared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid
from hpcgnn.sparse import DistCSR
from hpcgnn.spmd import collective
from hpcgnn.spmm.carrier import Carrier
from hpcgnn.spmm.exchange.stages import Combine, combine_stage, exchange_span, rows_to
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices, Mask


@dataclass(frozen=True, eq=False)
class ReplicaShares:
    """The replicas of a block row that have a partial sum of each row of a product.

    `masks` (replication, rows) tells whether a replica has one. `home` (rows,) int32 is the replica
    that adds up and spreads a row, -1 if none has a sum. `is_adjoint` tells that the product is
    with the transpose.
    """

    masks: Mask
    home: LocalIndices
    is_adjoint: bool

    @classmethod
    def of(cls, masks: Mask, *, is_adjoint: bool = False) -> "ReplicaShares":
        """Choose homes, cyclically over the eligible replicas."""
        copies, count = len(masks), masks.sum(axis=0)
        turn = np.arange(masks.shape[1])
        selected = masks & (np.cumsum(masks, axis=0) == turn % np.maximum(count, 1) + 1)
        home = np.where(count > 0, np.argmax(selected, axis=0), -1)
        if copies > 1:
            target = (np.argmax(masks, axis=0) + 1 + turn % (copies - 1)) % copies
            home = np.where(count == 1, target, home)
        return cls(masks, home.astype(np.int32), is_adjoint)

    @classmethod
    def of_product(cls, pattern: DistCSR, replication: int) -> "ReplicaShares":
        """Return the shares of ``A x``: replica r multiplies block columns j = r mod c."""
        row_map = pattern.row_map
        masks = np.zeros((replication, pattern.shape[0]), np.bool_)
        masks[row_map.block % replication, pattern.diagonal.entry_rows()] = True
        served = row_map.owner(pattern.ghosts) % replication
        remote = pattern.remote
        masks[served[remote.indices], remote.entry_rows()] = True
        return cls.of(masks)

    @classmethod
    def of_adjoint(cls, pattern: DistCSR, replication: int) -> "ReplicaShares":
        """Return the shares of ``Aᵀ g``: one replica has all sums of the own block column."""
        masks = np.zeros((replication, pattern.shape[1]), np.bool_)
        masks[pattern.row_map.block % replication] = True
        return cls.of(masks, is_adjoint=True)

    def brought(self, source: int, home: int) -> LocalIndices:
        """Return the rows (n,) int32 whose partial sums replica `source` brings to `home`."""
        rows = self.masks[source] & (self.home == home) & (source != home)
        return np.flatnonzero(rows).astype(np.int32)

    def spread(self, home: int, target: int) -> LocalIndices:
        """Return the rows (n,) int32 that `home` spreads to replica `target`."""
        # The only replica with a partial sum already has the result.
        alone = self.masks[target] & (self.masks.sum(axis=0) == 1)
        rows = (self.home == home) & ~alone & (target != home)
        return np.flatnonzero(rows).astype(np.int32)

    @property
    def counts(self) -> Array:
        """(2, replication, replication) int64 rows brought, and spread, from replica to replica."""
        replicas = range(len(self.masks))
        return np.array(
            [
                [[len(rows(a, b)) for b in replicas] for a in replicas]
                for rows in (self.brought, self.spread)
            ],
            np.int64,
        )


class ReplicaSum:
    """The sum over the replicas of this block row; its `shares` are equal on all of them."""

    @collective
    def __init__(
        self, grid: ProcessGrid, carrier: Carrier, trace: TraceRecorder, shares: ReplicaShares
    ) -> None:
        self._carrier, self._trace = carrier, trace
        put = carrier.memory.put
        me = grid.replica
        peers = [replica for replica in range(grid.replication) if replica != me]
        self._peers = np.array(peers, np.int32)
        self._bring, brought = self._plan(
            grid,
            [shares.brought(peer, me) for peer in peers],
            [shares.brought(me, peer) for peer in peers],
        )
        self._spread, spread = self._plan(
            grid,
            [shares.spread(me, peer) for peer in peers],
            [shares.spread(peer, me) for peer in peers],
        )
        relayed = (shares.home == me) & ~shares.masks[me]
        self._relayed_rows = put(np.flatnonzero(relayed).astype(np.int32))
        # Row numbers in the memory of the carrier.
        self._joined_rows, self._brought_rows = put(self._bring.send_rows), put(brought)
        self._settled_rows, self._spread_rows = put(self._spread.send_rows), put(spread)
        self._ranks = grid.block * grid.replication + np.arange(grid.replication, dtype=np.int32)

    @property
    def has_peers(self) -> bool:
        """Whether there are other replicas."""
        return len(self._peers) > 0

    @property
    def num_sent(self) -> int:
        """Number of rows that this rank sends in a sum."""
        return self._bring.num_ghosts + self._spread.num_sent

    @collective
    def add(self, partial: Array) -> None:
        """Replace partial sums (rows, width) by their sums over the replicas."""
        if not self.has_peers:
            return
        kernels = self._carrier.memory.kernels
        # Adding to -0.0 keeps the sign of a zero.
        partial[self._relayed_rows] = -0.0

        def join(rows: LocalIndices, arrived: Array) -> None:
            kernels.scatter_add_rows(arrived, rows, partial)

        self.bring(partial, Combine(join))
        self.spread(partial)

    @collective
    def bring(self, partial: Array, join: Combine) -> None:
        """Bring partial sums (rows, width) to their homes, where `join` combines them."""
        if not self.has_peers:
            return
        plan, joined = self._bring, self._joined_rows
        arrived = self._move(plan, partial, self._brought_rows, len(joined), forward=False)
        combine_stage(joined, plan.everything, arrived, join)

    @collective
    def spread(self, result: Array) -> None:
        """Copy the rows of `result` (rows, width) whose home is here to the other replicas."""
        if self.has_peers:
            rows = self._spread_rows
            arrived = self._move(self._spread, result, self._settled_rows, len(rows), forward=True)
            result[rows] = arrived

    def _plan(
        self, grid: ProcessGrid, home: list[LocalIndices], remote: list[LocalIndices]
    ) -> tuple[CommPlan, LocalIndices]:
        """Plan the exchange of rows at home here, and at home on each other replica.

        Both lists have an entry for each other replica. Also returns the latter rows, in order.
        """
        sides = home, remote
        owned, ghosts = (np.concatenate([np.empty(0, np.int32), *parts]) for parts in sides)
        sent, received = (np.array([len(rows) for rows in parts], np.int32) for parts in sides)
        comm = grid.other_replicas()
        copies = grid.replication
        plan = CommPlan(comm, copies, self._peers, owned, sent, received, between_replicas=True)
        return plan, ghosts

    @collective
    def _move(
        self, plan: CommPlan, rows: Array, sent: LocalIndices, num_arriving: int, *, forward: bool
    ) -> Array:
        carrier, stage = self._carrier, plan.everything
        packed, arrived = (
            carrier.take((count, rows.shape[1]), rows.dtype) for count in (len(sent), num_arriving)
        )
        to = rows_to(stage.ends(forward=forward)[0], self._ranks)
        row_bytes = packed.shape[1] * packed.itemsize
        with exchange_span(self._trace, "reduce.replicas", to, row_bytes, carrier):
            carrier.memory.kernels.gather_rows(rows, sent, packed)
            for transfer in carrier.start(plan, stage, packed, arrived, forward=forward):
                transfer.wait()
        return arrived


SumFactory: TypeAlias = Callable[[ProcessGrid, Carrier, TraceRecorder, ReplicaShares], ReplicaSum]
"""Makes the sum over replicas. Collective."""
