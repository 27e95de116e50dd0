"""The halo exchange: a plan of the rows that ranks send each other, made once and used many times.

A plan owns no buffers, so one plan serves any width, dtype and number of exchanges. `start_forward`
sends rows from owners to ghosts; `start_reverse` is the adjoint, from ghosts to owners, which add.
Both are messages between neighbours, so work does not grow with the number of ranks, and the
arrival of each message is known. Counts are in rows, each of one contiguous MPI datatype, so no
count reaches 2^31 however wide the rows are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hpcgnn import kernels
from hpcgnn.comm.grid import ProcessGrid
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.redistribute import narrow_counts
from hpcgnn.comm.row_map import RowMap
from hpcgnn.comm.stages import Stage, group_by_time, start_stage
from hpcgnn.comm.transfer import Transfer
from hpcgnn.spmd import collective, neighborwise_collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices


@dataclass(frozen=True, eq=False)
class Volume:
    """Rows of one exchange as seen by one rank.

    `sent` and `received` (ranks of the layer,) int64 are rows to and from each rank; the entry of
    the rank itself is 0.
    """

    sent: Array
    received: Array

    @classmethod
    def none(cls, num_ranks: int) -> "Volume":
        """Return the volume of an exchange that moves nothing."""
        return cls(np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64))

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(self.sent + other.sent, self.received + other.received)

    def reversed(self) -> "Volume":
        """Return the volume of the adjoint exchange."""
        return Volume(self.received, self.sent)

    @collective
    def summary(self, comm: "MPI.Comm") -> dict[str, int]:
        """Return `total_rows`, `max_send_rows`, `max_recv_rows`, `max_pair_rows` over all ranks."""
        maxima = np.array(
            [self.sent.sum(), self.received.sum(), self.sent.max(initial=0)], np.int64
        )
        total = comm.allreduce(int(self.sent.sum()), op=MPI.SUM)
        comm.Allreduce(MPI.IN_PLACE, maxima, op=MPI.MAX)
        return {
            "total_rows": total,
            "max_send_rows": int(maxima[0]),
            "max_recv_rows": int(maxima[1]),
            "max_pair_rows": int(maxima[2]),
        }


@dataclass(frozen=True, eq=False)
class Request:
    """The rows that a rank requests from others.

    `nodes` (n,) int64 are global rows grouped by sending rank, in rank order; `counts` (ranks of
    the layer,) int32 is the number from each.
    """

    nodes: GlobalIndices
    counts: LocalIndices

    @classmethod
    def of_owners(cls, row_map: RowMap, nodes: GlobalIndices) -> "Request":
        """Return the request to the owners of `nodes`, ascending global rows."""
        counts = np.bincount(row_map.owner(nodes), minlength=row_map.num_blocks)
        return cls(nodes, counts.astype(np.int32))

    def of_rank(self, rank: int) -> GlobalIndices:
        """Return the nodes requested from `rank`."""
        start = int(self.counts[:rank].sum(dtype=np.int64))
        return self.nodes[start : start + int(self.counts[rank])]


@dataclass(frozen=True, eq=False)
class CommPlan:
    """Rows to send to every neighbour and the number to receive from it.

    `comm` belongs to the grid; its neighbours are the same in both directions, in rank order.
    `peers` (neighbours,) int32 are ranks of the grid's layer, of size `layer_size`, or replicas if
    rows travel `between_replicas` of a block row. `send_rows` (rows sent,) int32 are rows of the
    owner's array, grouped by neighbour; `send_counts` and `recv_counts` (neighbours,) int32 are
    rows to and from each. `piece_bytes` (layer_size,) int64 is the most bytes that one request of
    the whole exchange moves to or from each rank; None: no limit.
    """

    comm: "MPI.Distgraphcomm"
    layer_size: int
    peers: LocalIndices
    send_rows: LocalIndices
    send_counts: LocalIndices
    recv_counts: LocalIndices
    between_replicas: bool = False
    piece_bytes: Array | None = None

    @classmethod
    @collective
    def from_ghosts(cls, grid: ProcessGrid, row_map: RowMap, ghosts: GlobalIndices) -> "CommPlan":
        """Make the plan that delivers the rows `ghosts`, in that order, inside a layer.

        `ghosts` (num_ghosts,) int64 are ascending global rows that this rank does not own, else
        `ValueError`.
        """
        if np.any(np.diff(ghosts) <= 0) or np.any(row_map.is_local(ghosts)):
            raise ValueError("ghosts must be increasing global rows of other ranks")
        plan, requested = cls.from_request(grid, Request.of_owners(row_map, ghosts))
        return replace(plan, send_rows=row_map.to_local(requested))

    @classmethod
    @collective
    def from_request(
        cls, grid: ProcessGrid, request: "Request"
    ) -> tuple["CommPlan", GlobalIndices]:
        """Make the plan that delivers the requested nodes from the ranks they are requested from.

        Returns the plan, whose `send_rows` are 0, 1, ..., and the nodes (num_sent,) int64 that
        these rows must hold.
        """
        layer, recv_counts = grid.layer, request.counts
        send_counts = np.empty_like(recv_counts)
        # Only readers know what they need. This exchange of counts is the only step whose work
        # grows with the number of ranks; all others are among neighbours.
        layer.Alltoall(recv_counts, send_counts)
        narrow_counts(layer, send_counts, recv_counts)
        # Count a rank as neighbour if rows go either way: a symmetric graph of neighbours serves
        # both the exchange and its adjoint.
        peers = np.flatnonzero((recv_counts > 0) | (send_counts > 0)).astype(np.int32)
        comm = grid.neighbourhood(peers)
        send_counts, recv_counts = send_counts[peers], recv_counts[peers]
        requested = np.empty(int(send_counts.sum(dtype=np.int64)), np.int64)
        # The reader fixes the order of rows: the owner packs them in the order of the ghosts, so
        # that rows need no permutation on arrival.
        comm.Neighbor_alltoallv(
            (request.nodes, recv_counts, MPI.INT64_T), (requested, send_counts, MPI.INT64_T)
        )
        rows = np.arange(len(requested), dtype=np.int32)
        counts = send_counts, recv_counts
        return cls(comm, layer.size, peers, rows, *counts, piece_bytes=grid.piece_bytes), requested

    @property
    def num_ghosts(self) -> int:
        """Number of rows that this rank receives in a forward exchange."""
        return int(self.recv_counts.sum(dtype=np.int64))

    @property
    def num_sent(self) -> int:
        """Number of rows that this rank sends in a forward exchange."""
        return len(self.send_rows)

    def volume(self) -> Volume:
        """Return the volume of a forward exchange; `reversed` is that of a reverse exchange."""
        sent, received = np.zeros((2, self.layer_size), np.int64)
        sent[self.peers], received[self.peers] = self.send_counts, self.recv_counts
        return Volume(sent, received)

    @neighborwise_collective
    def start_forward(self, packed: Array, ghosts: Array) -> Transfer:
        """Start to send rows from owners to ghosts.

        `packed` (num_sent, width) are the rows `send_rows` of this rank, of any dtype; `ghosts`
        (num_ghosts, width) of the same dtype holds the ghost rows after `wait`.
        """
        return self._start(packed, ghosts, forward=True)

    @neighborwise_collective
    def start_reverse(self, ghosts: Array, arrived: Array) -> Transfer:
        """Start to send contributions from ghosts to owners.

        `ghosts` (num_ghosts, width) are contributions to rows of other ranks. `arrived` (num_sent,
        width) of the same dtype receives those to own rows: after `wait`, the caller adds
        ``arrived[i]`` to its row ``send_rows[i]``.
        """
        return self._start(ghosts, arrived, forward=False)

    def stages(
        self,
        as_owners: LocalIndices,
        as_readers: LocalIndices,
        times: Sequence[int] | None = None,
    ) -> tuple[Stage, ...]:
        """Return the exchange divided into stages; see `hpcgnn.comm.stages`.

        `as_owners` and `as_readers` (neighbours,) int32 are the times at which each peer's rows
        arrive, and at which own rows go to it. A stage is made for each of `times`; None: for each
        time at which this rank moves anything.
        """
        if times is None:
            # Ranks may have different numbers of stages, because messages are matched by peer and
            # tag, not by the number of the stage.
            busy = [as_owners[self.recv_counts > 0], as_readers[self.send_counts > 0]]
            times = np.unique(np.concatenate(busy)).tolist()
        ghosts, owned = (self.recv_counts, as_owners), (self.send_counts, as_readers)
        return group_by_time(times, self.peers, ghosts, owned)

    @cached_property
    def everything(self) -> Stage:
        """The whole exchange as one stage, with a message to and from each peer in their order."""
        together = np.zeros(len(self.peers), np.int32)
        (stage,) = self.stages(together, together, [0])
        return replace(stage, is_whole=True)

    def rows_of(self, stage: Stage) -> LocalIndices:
        """Return the int32 rows of the owner's array that a stage sends, in message order."""
        # Avoid a copy in the common case of one stage.
        if stage is self.everything:
            return self.send_rows
        return np.concatenate([self.send_rows[:0], *(self.send_rows[m.rows] for m in stage.owned)])

    def ghosts_of(self, stage: Stage) -> LocalIndices:
        """Return the int32 positions of a stage's ghosts, in message order."""
        ranges = [np.arange(m.rows.start, m.rows.stop, dtype=np.int32) for m in stage.ghosts]
        return np.concatenate([np.empty(0, np.int32), *ranges])

    @neighborwise_collective
    def start_stage(
        self, stage: Stage, send: Array, receive: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start one of `stages`, from owners to ghosts or from ghosts to owners.

        `send` and `receive` (rows, width) have equal width and dtype. Forward, they are the rows
        ``send_rows`` of the stage and its ghosts; in reverse, its ghosts and the contributions to
        those rows. Returns the transfers of `send` and of `receive`; wait for each before touching
        its array.
        """
        # Pieces of a message are sent to slow readers too and wait in MPI's buffers. Several stages
        # exist to save memory, so their messages are not cut and wait for the reader instead.
        pieces = self.piece_bytes if stage.is_whole else None
        return start_stage(self.comm, stage, send, receive, forward=forward, piece_bytes=pieces)

    @neighborwise_collective
    def forward(self, x: Array) -> Array:
        """Exchange rows of `x` (own rows, width) and return the ghosts (num_ghosts, width)."""
        packed = np.empty((self.num_sent, x.shape[1]), x.dtype)
        ghosts = np.empty((self.num_ghosts, x.shape[1]), x.dtype)
        kernels.gather_rows(x, self.send_rows, packed)
        self.start_forward(packed, ghosts).wait()
        return ghosts

    @neighborwise_collective
    def reverse_add(self, ghosts: Array, out: Array) -> None:
        """Add `ghosts` (num_ghosts, width) to the owners' rows of ``out`` (rows, width)."""
        arrived = np.empty((self.num_sent, ghosts.shape[1]), ghosts.dtype)
        self.start_reverse(ghosts, arrived).wait()
        kernels.scatter_add_rows(arrived, self.send_rows, out)

    def _start(self, send: Array, receive: Array, *, forward: bool) -> Transfer:
        sent, received = self.start_stage(self.everything, send, receive, forward=forward)
        return sent + received
