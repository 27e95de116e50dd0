"""Pieces of all ranks, handed to the one that writes, a piece at a time."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from hpcgnn import watchdog
from hpcgnn.comm.mpi import Communicator
from hpcgnn.spmd import collective

T = TypeVar("T")


@collective
def in_turn(comm: Communicator, pieces: Iterable[T], take: Callable[[T], None]) -> None:
    """Hand the pieces of all ranks, rank after rank, to `take` on rank 0, one at a time."""
    if comm.rank > 0:
        _send(comm, pieces)
        return
    for source in range(comm.size):
        for piece in pieces if source == 0 else _received(comm, source):
            take(piece)
            watchdog.beat()


def _send(comm: Communicator, pieces: Iterable[T]) -> None:
    for piece in pieces:
        # Synchronous: what rank 0 has not asked for stays here.
        comm.ssend(piece, dest=0)
        watchdog.beat()
    comm.ssend(None, dest=0)


def _received(comm: Communicator, source: int) -> Iterator[T]:
    while (piece := comm.recv(source=source)) is not None:
        yield piece
