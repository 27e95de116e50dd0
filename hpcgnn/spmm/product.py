"""The product loop: own columns while rows travel, then what arrived.

With the block row ``A = D + C F + Gᵀ R`` (D own columns; F fetches ghost rows that C multiplies; R
multiplies own rows for other ranks and Gᵀ pushes the sums) the forward product starts the fetch,
computes and starts the push, multiplies D meanwhile, and then takes in what arrived. Its adjoint
``Aᵀ = Dᵀ + Fᵀ Cᵀ + Rᵀ G`` is the same loop with the two parts exchanged. Every exchange, every
process grid, every wire format and both kinds of memory run through it; what a GPU computes is
issued while the host goes on.
"""

import numpy as np

from hpcgnn.comm import ProcessGrid, Volume
from hpcgnn.sparse import (
    DistCSR,
    LocalMatrix,
)
from hpcgnn.spmd import collective
from hpcgnn.spmm.remote import Exchange, RemotePart
from hpcgnn.spmm.wire import ROWS
from hpcgnn.trace import TraceRecorder
from hpcgnn.typing import Array


class DistributedSpMM:
    """A distributed matrix that multiplies dense rows; an `AggregationOperator`.

    Parameters
    ----------
    grid
        The ranks. Replicas of a block row pass equal dense rows and get equal results.
    exchange
        Moves rows; made for the pattern of `matrix`. Products are where its carrier has them.
    """

    @collective
    def __init__(
        self, grid: ProcessGrid, matrix: DistCSR, exchange: Exchange, trace: TraceRecorder
    ) -> None:
        self.trace = trace
        self._grid, self._exchange = grid, exchange
        # One replica multiplies the own columns; the sum over replicas brings them to the others.
        self._carrier, self._memory = exchange.carrier, exchange.carrier.memory
        self._diagonal: LocalMatrix | None = None
        if grid.handles(grid.block):
            self._diagonal = self._memory.matrix(matrix.diagonal)
        remote = exchange.bind(matrix)
        self._fetched, self._pushed = remote.fetched, remote.pushed
        self._shape = matrix.shape
        self.size = exchange.size(matrix)

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._shape

    def volume(self) -> Volume:
        """Return the rows that one product moves."""
        return self._exchange.volume()

    @collective
    def apply(self, x: Array) -> Array:
        """Return ``A x``.

        Parameters
        ----------
        x
            (columns, width) float32 or float64, or bfloat16 as uint16, C-contiguous.

        Returns
        -------
        array
            (rows, width) of the same dtype; bfloat16 adds up in float32 and is rounded at the end.
        """
        return self._run(x, self._diagonal, self._shape, self._fetched, self._pushed, "forward")

    @collective
    def apply_transpose(self, gradient: Array) -> Array:
        """Return ``Aᵀ g``.

        Parameters
        ----------
        gradient
            (rows, width) as for `apply`, C-contiguous.

        Returns
        -------
        array
            (columns, width) of the same dtype.
        """
        diagonal = None if self._diagonal is None else self._diagonal.transposed
        shape = self._shape[::-1]
        return self._run(gradient, diagonal, shape, self._pushed, self._fetched, "reverse")

    def _run(
        self,
        x: Array,
        diagonal: LocalMatrix | None,
        shape: tuple[int, int],
        fetched: RemotePart | None,
        pushed: RemotePart | None,
        direction: str,
    ) -> Array:
        if x.ndim != 2 or len(x) != shape[1]:
            raise ValueError(f"expected ({shape[1]}, width) rows, not {x.shape}")
        trace = self.trace
        self._grid.moment.next_product()
        alone = self._grid.num_blocks == self._grid.replication == 1
        narrow = x.dtype == np.uint16
        # What several products add to is rounded when all have.
        dtype = np.dtype(np.float32) if narrow and not alone else x.dtype
        out = self._memory.empty((shape[0], x.shape[1]), dtype)
        fetch = fetched.start_fetch(x) if fetched is not None else None
        push = pushed.start_push(x, out, trace) if pushed is not None else None
        with trace.span(f"interior.{direction}"):
            # Own columns write every row and all others add: nothing has to clear `out` first.
            if diagonal is not None:
                diagonal.matmul(x, out, half=ROWS if narrow else None)
            else:
                out[:] = 0
        if fetched is not None and fetch is not None:
            fetched.finish_fetch(fetch, out, trace)
        # A push by stages begins in its `finish`: the fetched ghosts must be gone by then.
        del fetch
        if push is not None:
            push.finish()
        sums = self._exchange.sum_rows if direction == "forward" else self._exchange.sum_columns
        sums.add(out)
        if dtype == x.dtype:
            return out
        rounded = self._memory.empty(out.shape, x.dtype)
        self._memory.kernels.gather_rows(out, None, rounded, half=ROWS)
        return rounded
