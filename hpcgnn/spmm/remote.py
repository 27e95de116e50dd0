"""The remote part of a product, ready to run: blocks and the ghost exchange that feeds them.

A `RemoteHalf` is a matrix ``C F``: F fetches ghost rows, C multiplies them. Its adjoint ``Fᵀ Cᵀ``
multiplies first and pushes. A product has up to two: one that it applies as it is (fetched
entries), and one whose adjoint it applies (pushed entries).
"""

from typing import TypeAlias

from hpcgnn.sparse import LocalCSR, LocalMatrix
from hpcgnn.spmm.ghosts import Fetch, GhostExchange, Push
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array, LocalIndices

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
        self.ghosts, self.memory = ghosts, ghosts.carrier.memory
        self.blocks = self._placed(ghosts.split(block))
        pushed = ghosts.split_push(block)
        self.push_blocks = self.blocks if pushed is None else self._placed(pushed)

    def _placed(self, blocks: tuple[LocalCSR, ...]) -> tuple[LocalMatrix, ...]:
        return tuple(self.memory.matrix(block) for block in blocks)

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
        for index, block in enumerate(self.blocks):
            with trace.span("wait.forward"):
                rows = fetch.stage(index)
            with trace.span("boundary.forward"):
                block.matmul(rows, out, accumulate=True, half=half)

    def start_push(self, x: Array, out: Array, trace: TraceRecorder) -> "_Sums":
        """Start to add ``Fᵀ Cᵀ x`` to `out`, which may be uninitialised until `_Sums.finish`.

        Collective.
        """
        return _Sums(self, x, out, trace)

    def push(self, x: Array, push: Push, trace: TraceRecorder) -> None:
        """Compute ``Cᵀ x`` and send it, stage by stage.

        Collective.
        """
        half = self.ghosts.wire.half
        for index, block in enumerate(self.push_blocks):
            partial = push.buffer(index)
            with trace.span("boundary.reverse"):
                block.transposed.matmul(x, partial, half=half)
            push.send(index)


class _Sums:
    """A push of sums: computed at once, so that other work hides it, or by stages at the end."""

    def __init__(self, half: RemoteHalf, x: Array, out: Array, trace: TraceRecorder) -> None:
        self._half, self._x, self._trace = half, x, trace
        wire, kernels = half.ghosts.wire, half.memory.kernels

        # Not a method: a cycle would keep the buffers until the collector runs.
        def add(rows: LocalIndices, arrived: Array) -> None:
            kernels.scatter_add_rows(arrived, rows, out, half=wire.half)

        self._push = half.ghosts.start_push(x, add, additive=True)
        if not half.ghosts.sequential:
            half.push(x, self._push, trace)

    def finish(self) -> None:
        """Add what all other ranks pushed here.

        Collective.
        """
        if self._half.ghosts.sequential:
            self._half.push(self._x, self._push, self._trace)
        self._push.finish()


Halves: TypeAlias = tuple[RemoteHalf | None, RemoteHalf | None]
"""The fetched half and the pushed half of a remote part; None where an exchange has none."""
