"""The remote part of a product, ready to run: blocks and the ghost exchange that feeds them.

A `RemoteHalf` is a matrix ``C F``: F fetches ghost rows, C multiplies them. Its adjoint ``Fᵀ Cᵀ``
multiplies first and pushes. A product has up to two: one that it applies as it is (fetched
entries), and one whose adjoint it applies (pushed entries).
"""

from typing import TypeAlias

from hpcgnn.sparse import LocalCSR
from hpcgnn.spmm.ghosts import Fetch, GhostExchange, Push
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

__all__ = ["Halves", "RemoteHalf"]


class RemoteHalf:
    """``C F`` and its adjoint.

    Not collective.

    Parameters
    ----------
    ghosts
        F.
    block
        (rows, num_ghosts) C; matrices of one pattern share F.
    """

    def __init__(self, ghosts: GhostExchange, block: LocalCSR) -> None:
        self.ghosts = ghosts
        self._blocks = ghosts.split(block)
        self._push_blocks = ghosts.split_push(block)

    def start_fetch(self, x: Array) -> Fetch:
        """Start to fetch what ``C F x`` needs.

        Collective.
        """
        return self.ghosts.start_fetch(x)

    def finish_fetch(self, fetch: Fetch, out: Array, trace: TraceRecorder) -> None:
        """Add ``C F x`` to `out`.

        Collective.
        """
        half = self.ghosts.wire.half
        for index, block in enumerate(self._blocks):
            with trace.span("wait.forward"):
                rows = fetch.stage(index)
            with trace.span("boundary.forward"):
                block.matmul(rows, out, accumulate=True, half=half)

    def start_push(self, x: Array, trace: TraceRecorder) -> Push:
        """Compute ``Cᵀ x`` and start to push it.

        Collective.
        """
        push = self.ghosts.start_push(x)
        half = self.ghosts.wire.half
        for index, block in enumerate(self._push_blocks):
            partial = push.buffer(index)
            with trace.span("boundary.reverse"):
                block.transposed.matmul(x, partial, half=half)
            push.send(index)
        return push


Halves: TypeAlias = tuple[RemoteHalf | None, RemoteHalf | None]
"""The fetched half and the pushed half of a remote part; None where an exchange has none."""
