"""What the product loop needs of an exchange: ghost rows by stages, and the adjoint.

An exchange cuts the remote part of a matrix into *stages*, each with its own ghost numbering. A
fetch delivers the ghost rows of one stage after the other; a push returns partial sums for the same
ghosts to their owners, with add. Fetch and push are adjoint.
"""

from typing import Protocol

from hpcgnn.comm import Volume
from hpcgnn.sparse import LocalCSR
from hpcgnn.trace import Span, TraceRecorder
from hpcgnn.typing import Array

__all__ = ["Exchange", "Fetch", "Push", "exchange_span"]


class Fetch(Protocol):
    """A fetch under way; stages are taken in order."""

    def stage(self, index: int) -> Array:
        """Return the ghost rows (ghosts of the stage, width), valid until the next stage.

        Collective.
        """
        ...


class Push(Protocol):
    """A push under way; stages are filled and sent in order."""

    def buffer(self, index: int) -> Array:
        """Return the array (ghosts of the stage, width) that takes the partial sums.

        Collective.
        """
        ...

    def send(self, index: int) -> None:
        """Start to return the partial sums of a stage to their owners.

        Collective.
        """
        ...

    def finish(self, out: Array) -> None:
        """Add what all other ranks pushed here to ``out`` (num_local, width).

        Collective.
        """
        ...


class Exchange(Protocol):
    """A way to move the rows that the remote part of a matrix needs."""

    name: str

    def split(self, remote: LocalCSR) -> tuple[LocalCSR, ...]:
        """Return the stages' blocks of a remote part, columns in the ghost numbering of the stage.

        Not collective.
        """
        ...

    def start_fetch(self, x: Array) -> Fetch:
        """Start to deliver ghost rows of `x` (num_local, width).

        Collective.
        """
        ...

    def start_push(self, like: Array) -> Push:
        """Start the adjoint for rows of the width and dtype of `like`.

        Collective.
        """
        ...

    def volume(self) -> Volume:
        """Return the rows of one fetch; a push moves the same rows the other way.

        Not collective.
        """
        ...


def exchange_span(trace: TraceRecorder, name: str, rows: Array, like: Array, peers: Array) -> Span:
    """Return the span of an exchange.

    Not collective.

    Parameters
    ----------
    trace
        The recorder of this rank.
    name
        Name of the span.
    rows
        (ranks of the layer,) int64 rows that this rank sends to each.
    like
        A two-dimensional array of the width and dtype that travel.
    peers
        (ranks of the layer,) int world rank of each.
    """
    if not trace.enabled:
        return trace.span(name)
    row_bytes = like.shape[1] * like.itemsize
    moved = [(int(peers[i]), int(rows[i]), int(rows[i]) * row_bytes) for i in rows.nonzero()[0]]
    total = int(rows.sum())
    return trace.span(name, rows=total, bytes=total * row_bytes, peers=moved)
