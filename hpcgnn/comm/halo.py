"""The halo exchange: a plan of who sends which rows to whom, made once and executed many times.

A plan is stateless: it owns no buffers, so one plan serves any width, dtype and number of
exchanges. `start_forward` moves owner -> ghost, `start_reverse` is its adjoint: ghost -> owner with
add. Both are messages between neighbours, so no work grows with the number of ranks, and what has
arrived is known of each. Counts are rows, each one contiguous MPI datatype, so that no count passes
2^31 however wide the rows are.
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
    """Rows of one exchange, seen from one rank.

    `sent` and `received` (ranks of the layer,) int64 are rows to and from each rank; the own entry
    is 0.
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
    """The rows that a rank asks others for.

    `nodes` (n,) int64 are global rows, grouped by the rank that sends them, in rank order; `counts`
    (ranks of the layer,) int32 are rows of each.
    """

    nodes: GlobalIndices
    counts: LocalIndices

    @classmethod
    def of_owners(cls, row_map: RowMap, nodes: GlobalIndices) -> "Request":
        """Return the request of increasing rows to their owners."""
        counts = np.bincount(row_map.owner(nodes), minlength=row_map.num_blocks)
        return cls(nodes, counts.astype(np.int32))

    def of_rank(self, rank: int) -> GlobalIndices:
        """Return the nodes that are asked of a rank."""
        start = int(self.counts[:rank].sum(dtype=np.int64))
        return self.nodes[start : start + int(self.counts[rank])]


@dataclass(frozen=True, eq=False)
class CommPlan:
    """Rows to send to every neighbour and the number to receive from it.

    `comm` has neighbours both ways, in rank order, and is the grid's. `peers` (neighbours,) int32
    are ranks of the layer of the grid, which has `layer_size`; or replicas, where rows travel
    `between_replicas` of a block row, and not inside a layer. `send_rows` (rows sent,) int32 are
    rows of the owner's array, grouped by neighbour; `send_counts` and `recv_counts` (neighbours,)
    int32 rows to and from each. `piece_bytes` (layer_size,) int64 is the most that one request of
    the whole exchange moves to or from each rank; None: any message.
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
    def from_ghosts(
        cls,
        grid: ProcessGrid,
        row_map: RowMap,
        ghosts: GlobalIndices,
        positions: LocalIndices | None = None,
    ) -> "CommPlan":
        """Make the plan that delivers the rows `ghosts`, in that order, inside a layer.

        `ghosts` (num_ghosts,) int64 are increasing global rows, none owned by this rank, else
        `ValueError`. `positions` (num_local,) int32 say where the owner keeps each of its rows, in
        arrays that hold some of them only; None: arrays hold all rows in order.
        """
        if np.any(np.diff(ghosts) <= 0) or np.any(row_map.is_local(ghosts)):
            raise ValueError("ghosts must be increasing global rows of other ranks")
        plan, requested = cls.from_request(grid, Request.of_owners(row_map, ghosts))
        rows = row_map.to_local(requested)
        if positions is not None:
            rows = positions[rows]
            assert len(rows) == 0 or rows.min() >= 0, "a ghost is not among its owner's rows"
        return replace(plan, send_rows=rows)

    @classmethod
    @collective
    def from_request(
        cls, grid: ProcessGrid, request: "Request"
    ) -> tuple["CommPlan", GlobalIndices]:
        """Make the plan that delivers what is requested, from whom it is requested.

        Returns the plan, whose `send_rows` are 0, 1, ..., and the (num_sent,) int64 nodes that they
        stand for.
        """
        layer, recv_counts = grid.layer, request.counts
        send_counts = np.empty_like(recv_counts)
        # Readers alone know what is wanted. The one step whose work grows with the number of ranks
        # is this exchange of counts; all that follows is among neighbours.
        layer.Alltoall(recv_counts, send_counts)
        narrow_counts(layer, send_counts, recv_counts)
        # A neighbour in one direction is one in both: a graph of neighbours that is symmetric
        # serves the exchange and its adjoint, and the adjoint has to exist wherever the exchange
        # does.
        peers = np.flatnonzero((recv_counts > 0) | (send_counts > 0)).astype(np.int32)
        comm = grid.neighbourhood(peers)
        send_counts, recv_counts = send_counts[peers], recv_counts[peers]
        requested = np.empty(int(send_counts.sum(dtype=np.int64)), np.int64)
        # From here on the order of rows is fixed by the reader: the owner packs in the order in
        # which ghosts stand, so that what arrives needs no permutation.
        comm.Neighbor_alltoallv(
            (request.nodes, recv_counts, MPI.INT64_T), (requested, send_counts, MPI.INT64_T)
        )
        rows = np.arange(len(requested), dtype=np.int32)
        counts = send_counts, recv_counts
        return cls(comm, layer.size, peers, rows, *counts, piece_bytes=grid.piece_bytes), requested

    @property
    def num_ghosts(self) -> int:
        """Rows that this rank receives in a forward exchange."""
        return int(self.recv_counts.sum(dtype=np.int64))

    @property
    def num_sent(self) -> int:
        """Rows that this rank sends in a forward exchange."""
        return len(self.send_rows)

    def volume(self) -> Volume:
        """Return the rows of one forward exchange; a reverse exchange swaps the two sides."""
        sent, received = np.zeros((2, self.layer_size), np.int64)
        sent[self.peers], received[self.peers] = self.send_counts, self.recv_counts
        return Volume(sent, received)

    @neighborwise_collective
    def start_forward(self, packed: Array, ghosts: Array) -> Transfer:
        """Start owner -> ghost.

        `packed` (num_sent, width) are the rows `send_rows` of the owner, any dtype; `ghosts`
        (num_ghosts, width) of the same dtype holds the ghost rows after `wait`.
        """
        return self._start(packed, ghosts, forward=True)

    @neighborwise_collective
    def start_reverse(self, ghosts: Array, arrived: Array) -> Transfer:
        """Start ghost -> owner; the owner then adds ``arrived[i]`` to its row ``send_rows[i]``.

        `ghosts` (num_ghosts, width) are contributions to rows of other ranks; `arrived` (num_sent,
        width) of the same dtype receives those to own rows.
        """
        return self._start(ghosts, arrived, forward=False)

    def stages(
        self,
        as_owners: LocalIndices,
        as_readers: LocalIndices,
        times: Sequence[int] | None = None,
    ) -> tuple[Stage, ...]:
        """Return the exchange cut into stages, see `hpcgnn.comm.stages`.

        `as_owners` and `as_readers` (neighbours,) int32 are the time of the rows of each peer, and
        of the rows for it; `times` those that make a stage, None: when this rank moves anything.
        """
        if times is None:
            # Times at which nothing moves make no stage, so ranks may have different numbers of
            # stages: messages are matched by peer and tag, not by their number.
            busy = [as_owners[self.recv_counts > 0], as_readers[self.send_counts > 0]]
            times = np.unique(np.concatenate(busy)).tolist()
        ghosts, owned = (self.recv_counts, as_owners), (self.send_counts, as_readers)
        return group_by_time(times, self.peers, ghosts, owned)

    @cached_property
    def everything(self) -> Stage:
        """The whole exchange as one stage: a message for each peer each way, in neighbour order."""
        together = np.zeros(len(self.peers), np.int32)
        (stage,) = self.stages(together, together, [0])
        return replace(stage, is_whole=True)

    def rows_of(self, stage: Stage) -> LocalIndices:
        """Return the rows of the owner's array that a stage sends, int32 by its messages."""
        # The common case copies nothing: one stage sends the rows as they are listed.
        if stage is self.everything:
            return self.send_rows
        return np.concatenate([self.send_rows[:0], *(self.send_rows[m.rows] for m in stage.owned)])

    def ghosts_of(self, stage: Stage) -> LocalIndices:
        """Return the positions of the ghosts of a stage, int32 by its messages."""
        ranges = [np.arange(m.rows.start, m.rows.stop, dtype=np.int32) for m in stage.ghosts]
        return np.concatenate([np.empty(0, np.int32), *ranges])

    @neighborwise_collective
    def start_stage(
        self, stage: Stage, send: Array, receive: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start one of `stages`, owner to ghost, or ghost to owner.

        `send` and `receive` (rows, width) are of one width and dtype: forward, the rows
        ``send_rows`` of the stage's messages and its ghosts; else its ghosts and what arrives for
        those rows. Returns what is sent and what is received, each to be waited for before its
        array is touched again.
        """
        # Pieces arrive at a reader that is behind, too, and wait in memory of MPI's. One of several
        # stages is there to hold little: its messages wait for their reader.
        pieces = self.piece_bytes if stage.is_whole else None
        return start_stage(self.comm, stage, send, receive, forward=forward, piece_bytes=pieces)

    @neighborwise_collective
    def forward(self, x: Array) -> Array:
        """Return the ghost rows (num_ghosts, width) of `x` (owner's rows, width), at once."""
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
