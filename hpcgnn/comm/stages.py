"""Exchanges in stages: the order in which a rank meets its peers, and the messages of a stage.

Every pair of a reader and an owner has a *time*, and every rank goes through its pairs in the order
of their times. A rank starts all messages of a stage before it waits for any of them, and waits
only for pairs of that time or an earlier one. So among all pairs waited for, those with the
smallest time are always under way, and there is no deadlock, however far apart the ranks are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.comm.transfer import Transfer
from hpcgnn.spmd import neighborwise_collective
from hpcgnn.typing import Array, LocalIndices

_FORWARD, _REVERSE = 1, 2


@dataclass(frozen=True)
class Message:
    """Rows that travel between this rank and `peer`, a rank of the layer.

    `rows` is their range in the plan's ghosts, or in its `send_rows`.
    """

    peer: int
    rows: slice

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class Stage:
    """The messages of one time: this rank's ghosts by owner, and its own rows by reader.

    `is_whole` tells that they are all messages of an exchange.
    """

    ghosts: tuple[Message, ...]
    owned: tuple[Message, ...]
    is_whole: bool = False

    def ends(self, *, forward: bool) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        """Return the outgoing and the incoming messages, `forward` being from owner to ghost."""
        return (self.owned, self.ghosts) if forward else (self.ghosts, self.owned)

    @property
    def num_ghosts(self) -> int:
        """Number of ghosts of the stage."""
        return sum(message.num_rows for message in self.ghosts)

    @property
    def num_owned(self) -> int:
        """Number of own rows of the stage."""
        return sum(message.num_rows for message in self.owned)


def shift_times(peers: LocalIndices, rank: int, size: int) -> tuple[LocalIndices, LocalIndices]:
    """Return for each peer, (peers,) int32, the time of its rows, and the time of rows for it.

    The time of a pair is the number of ranks from reader to owner.
    """
    # Both ends compute time s for the pair (reader r, owner r + s), as the argument above needs.
    # At each time a rank has one owner and one reader, so no rank is flooded.
    return (peers - rank) % size, (rank - peers) % size


def group_by_time(
    times: Sequence[int],
    peers: LocalIndices,
    ghosts: tuple[LocalIndices, LocalIndices],
    owned: tuple[LocalIndices, LocalIndices],
) -> tuple[Stage, ...]:
    """Return a stage for each of the ascending `times`.

    `peers` (neighbours,) are int32 ranks of the layer. `ghosts` and `owned` each hold the number of
    rows of the messages with each neighbour and their times, both (neighbours,).
    """
    ghosts_at, owned_at = _messages(peers, *ghosts), _messages(peers, *owned)
    return tuple(
        Stage(tuple(ghosts_at.get(time, ())), tuple(owned_at.get(time, ()))) for time in times
    )


def _messages(
    peers: LocalIndices, counts: LocalIndices, times: LocalIndices
) -> dict[int, list[Message]]:
    grouped: dict[int, list[Message]] = {}
    ends = np.cumsum(counts, dtype=np.int64)
    for peer, count, end, time in zip(
        peers.tolist(), counts.tolist(), ends.tolist(), times.tolist(), strict=True
    ):
        if count:
            grouped.setdefault(time, []).append(Message(peer, slice(end - count, end)))
    return grouped


@neighborwise_collective
def start_stage(
    comm: Communicator,
    stage: Stage,
    send: Array,
    receive: Array,
    *,
    forward: bool,
    piece_bytes: Array | None = None,
) -> tuple[Transfer, Transfer]:
    """Start the messages of a stage in one direction; see `CommPlan.start_stage`."""
    outgoing, incoming = stage.ends(forward=forward)
    # A forward and a reverse stage may be under way between the same two ranks.
    tag = _FORWARD if forward else _REVERSE
    sent, received = (
        [(message.peer, part) for message, part in rows_of_messages(messages, rows)]
        for messages, rows in ((outgoing, send), (incoming, receive))
    )
    return start_parts(comm, sent, received, tag, piece_bytes)


Parts: TypeAlias = Sequence[tuple[int, Array]]
"""Pairs of a rank and the rows (rows, width) to or from it."""


@neighborwise_collective
def start_parts(
    comm: Communicator, sent: Parts, received: Parts, tag: int, piece_bytes: Array | None = None
) -> tuple[Transfer, Transfer]:
    """Start to send and to receive rows of one width and dtype.

    `piece_bytes` (ranks,) int64 is the most bytes that one request moves to or from each rank;
    None: no limit.
    """
    row: MPI.Datatype | None = None
    transfers = []
    # Send to the next rank first and go round: in rank order, all ranks would first send to the
    # lowest ranks, whose links would be full.
    in_turn = sorted(sent, key=lambda part: (part[0] - comm.rank) % comm.size)
    # Post receives first: rows that arrive after their receive was posted need no MPI buffer.
    for start, parts in ((comm.Irecv, received), (comm.Isend, in_turn)):
        requests = []
        for peer, piece in _pieces(parts, piece_bytes):
            row = row or MPI.BYTE.Create_contiguous(piece.shape[1] * piece.itemsize).Commit()
            requests.append(start((piece, len(piece), row), peer, tag))
        transfers.append(requests)
    if row is not None:
        # MPI keeps the datatype until the pending communication has completed.
        row.Free()
    coming, going = transfers
    sizes = [piece.nbytes for _, piece in _pieces(received, piece_bytes)]
    return Transfer(going), Transfer(coming, sizes)


def _pieces(parts: Parts, piece_bytes: Array | None) -> Iterator[tuple[int, Array]]:
    """Yield a peer and rows for each request: the pieces of a message arrive in order."""
    for peer, part in parts:
        # Both ends know the same rows and width and so cut at the same rows. Rows without columns
        # are not sent.
        if row_bytes := part.shape[1] * part.itemsize:
            rows = len(part) if piece_bytes is None else int(piece_bytes[peer]) // row_bytes
            step = max(rows, 1)
            yield from ((peer, part[start : start + step]) for start in range(0, len(part), step))


def rows_of_messages(messages: tuple[Message, ...], rows: Array) -> Iterator[tuple[Message, Array]]:
    """Yield each message with its rows, which follow one another in `rows`."""
    start = 0
    for message in messages:
        yield message, rows[start : start + message.num_rows]
        start += message.num_rows
