"""The product loop: own columns while ghost rows travel, then ghost columns stage by stage.

With block row ``A = D + Σ_s C_s F_s`` (D own columns; F_s fetches the ghosts of stage s) the
forward product is ``D x + Σ_s C_s F_s x`` and the backward product ``Dᵀ g + Σ_s F_sᵀ C_sᵀ g``.
Every exchange and every process grid runs through these two methods.
"""

import numpy as np

from hpcgnn.comm import ProcessGrid, Volume
from hpcgnn.sparse import DistCSR
from hpcgnn.spmm.exchange import Exchange
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array

__all__ = ["DistributedSpMM"]


class DistributedSpMM:
    """A distributed matrix that multiplies dense rows; an `AggregationOperator`.

    Not collective.

    Parameters
    ----------
    grid
        The ranks. Replicas of a block row pass equal dense rows and get equal results.
    matrix
        This rank's block row. Matrices with the pattern that `exchange` was made for may share it.
    exchange
        Moves ghost rows.
    trace
        Where times are recorded.
    """

    def __init__(
        self, grid: ProcessGrid, matrix: DistCSR, exchange: Exchange, trace: TraceRecorder
    ) -> None:
        self._grid, self._exchange, self._trace = grid, exchange, trace
        # One replica multiplies the own columns; the sum over replicas brings them to the others.
        self._diagonal = matrix.diagonal if grid.handles(grid.block) else None
        self._blocks = exchange.split(matrix.remote)
        self._num_local = matrix.row_map.num_local

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._num_local, self._num_local

    def volume(self) -> Volume:
        """Return the rows that one product moves.

        Not collective.
        """
        return self._exchange.volume()

    def apply(self, x: Array) -> Array:
        """Return ``A x``.

        Collective.

        Parameters
        ----------
        x
            (num_local, width) float32 or float64, C-contiguous.

        Returns
        -------
        array
            (num_local, width) of the same dtype.
        """
        trace = self._trace
        self._check(x)
        fetch = self._exchange.start_fetch(x)
        out = np.empty_like(x)
        with trace.span("interior.forward"):
            if self._diagonal is not None:
                self._diagonal.matmul(x, out)
            else:
                out[:] = 0
        for index, block in enumerate(self._blocks):
            with trace.span("wait.forward"):
                ghosts = fetch.stage(index)
            with trace.span("boundary.forward"):
                block.matmul(ghosts, out, accumulate=True)
        self._sum_over_replicas(out)
        return out

    def apply_transpose(self, gradient: Array) -> Array:
        """Return ``Aᵀ g``.

        Collective.

        Parameters
        ----------
        gradient
            (num_local, width) float32 or float64, C-contiguous.

        Returns
        -------
        array
            (num_local, width) of the same dtype.
        """
        trace = self._trace
        self._check(gradient)
        push = self._exchange.start_push(gradient)
        for index, block in enumerate(self._blocks):
            partial = push.buffer(index)
            with trace.span("boundary.reverse"):
                block.transposed.matmul(gradient, partial)
            push.send(index)
        out = np.empty_like(gradient)
        with trace.span("interior.reverse"):
            if self._diagonal is not None:
                self._diagonal.transposed.matmul(gradient, out)
            else:
                out[:] = 0
        push.finish(out)
        self._sum_over_replicas(out)
        return out

    def _sum_over_replicas(self, out: Array) -> None:
        if self._grid.replication > 1:
            with self._trace.span("reduce.replicas", rows=len(out), bytes=out.nbytes):
                self._grid.sum_over_replicas(out)

    def _check(self, x: Array) -> None:
        if x.ndim != 2 or len(x) != self._num_local:
            raise ValueError(f"expected ({self._num_local}, width) rows, not {x.shape}")
