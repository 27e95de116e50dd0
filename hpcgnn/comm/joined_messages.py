"""Short messages of two exchanges to the same rank, sent as one message.

A product fetches rows and pushes partial sums in two exchanges with separate plans. Short messages
cost mostly latency, so where both exchanges have one for a rank, the rows wait for the sums and
both are sent together. MPI gathers them from their arrays, so nothing is copied.
"""

import numpy as np

from hpcgnn.comm.halo import CommPlan
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.stages import Message, Stage, rows_of_messages, start_parts
from hpcgnn.comm.transfer import Transfer
from hpcgnn.spmd import neighborwise_collective
from hpcgnn.typing import Array, LocalIndices, Mask

_FIRST, _SECOND, _JOINED = 3, 4, 5
_SHORT_BYTES = 1 << 14
"""At 10 Gbit/s this takes 13 us, about the latency of a message there."""


def are_joined(first: Array, second: Array, row_bytes: int) -> Mask:
    """Return a mask of the messages of two exchanges that are joined.

    `first` and `second`, of equal shape, are the rows of their messages between pairs of ranks;
    `row_bytes` is the size of a row of the first.
    """
    if row_bytes == 0:
        # Rows without columns are not sent.
        return np.zeros_like(first, np.bool_)
    joined: Mask = (first > 0) & (second > 0) & ((first + second) * row_bytes <= _SHORT_BYTES)
    return joined


class JoinedMessages:
    """The messages of two exchanges that both start before either is waited for.

    `first` goes from owners to ghosts, `second` from ghosts to owners; `row_bytes` is the size of a
    row of the first.
    """

    def __init__(self, first: CommPlan, second: CommPlan, row_bytes: int) -> None:
        self._plans, self._size, self.row_bytes = (first, second), first.layer_size, row_bytes
        self._first: _Half | None = None

    @neighborwise_collective
    def start(
        self, plan: CommPlan, whole: Stage, sent: Array, received: Array, *, forward: bool
    ) -> tuple[Transfer, Transfer]:
        """Start an exchange, first without, then with the joined messages; see `Carrier.start`."""
        ends = whole.ends(forward=forward)
        if self._first is None:
            first, second = self._plans
            assert plan is first, "the exchange from owners to ghosts must start first"
            out = self._joined(first.send_counts, second.recv_counts)
            into = self._joined(first.recv_counts, second.send_counts)
            half = _Half(ends, (sent, received), (out, into))
            half.start_rest(plan, _FIRST)
            self._first = half
            return half.transfers
        assert plan is self._plans[1], "only two exchanges can be joined"
        first_half = self._first
        half = _Half(ends, (sent, received), first_half.joined)
        half.start_rest(plan, _SECOND)
        comm = self._plans[0].comm
        # Receives are posted first, as in `start_parts`.
        for side, start in ((1, comm.Irecv), (0, comm.Isend)):
            for peer, part in first_half.parts[side].items():
                pieces = part, half.parts[side][peer]
                blocks = [piece.nbytes for piece in pieces], [MPI.Get_address(e) for e in pieces]
                both = MPI.BYTE.Create_hindexed(*blocks).Commit()
                request = start([MPI.BOTTOM, 1, both], peer, _JOINED)
                both.Free()
                # The request moves both parts; waiting for the second half waits for the first.
                first_half.transfers[side].add(request, sum(blocks[0]) * side)
        sides = zip(half.transfers, first_half.transfers, half.parts, strict=True)
        for transfer, before, joined in sides:
            transfer.before, transfer.num_joined = before, len(joined)
        return half.transfers

    def _joined(self, first_rows: LocalIndices, second_rows: LocalIndices) -> Mask:
        """Return (ranks,) the mask of ranks whose messages are joined."""
        rows = np.zeros((2, self._size), np.int64)
        for blocks, plan, counts in zip(rows, self._plans, (first_rows, second_rows), strict=True):
            blocks[plan.peers] = counts
        return are_joined(rows[0], rows[1], self.row_bytes)


class _Half:
    """One of the two exchanges; in every pair the sending side comes first, then the receiving."""

    def __init__(
        self,
        ends: tuple[tuple[Message, ...], tuple[Message, ...]],
        rows: tuple[Array, Array],
        joined: tuple[Mask, Mask],
    ) -> None:
        self.joined = joined
        self.parts: tuple[dict[int, Array], ...] = ({}, {})
        self._rest: tuple[list[tuple[int, Array]], ...] = ([], [])
        for side, messages in enumerate(ends):
            for message, part in rows_of_messages(messages, rows[side]):
                if joined[side][message.peer]:
                    self.parts[side][message.peer] = part
                else:
                    self._rest[side].append((message.peer, part))
        # MPI gets addresses only, so the arrays must be kept alive.
        self._rows = rows

    @neighborwise_collective
    def start_rest(self, plan: CommPlan, tag: int) -> None:
        """Start the messages that are not joined."""
        sent, received = self._rest
        self.transfers = start_parts(plan.comm, sent, received, tag, plan.piece_bytes)
        for transfer in self.transfers:
            transfer.holds = self._rows
