"""The product loop in the memory of a GPU, one rank a GPU.

It is the loop of `hpcgnn.spmm.operator` with every remote entry fetched: own columns are multiplied
while rows travel.
"""

import numpy as np

from hpcgnn.comm import ProcessGrid, Volume
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.group_size import PAPER_RULE, GroupRule
from hpcgnn.sparse import DistCSR, OperatorSize
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.spmm.device_exchange import DeviceExchange
from hpcgnn.trace import TraceRecorder

__all__ = ["DeviceSpMM"]


class DeviceSpMM:
    """A distributed matrix that multiplies dense rows in device memory; an `AggregationOperator`.

    Collective.

    Parameters
    ----------
    grid
        The ranks, without replication.
    matrix
        This rank's block row, in host memory; copied to the current device.
    exchange
        Moves rows; made for the pattern of `matrix`.
    trace
        Where times are recorded; those of products are of issuing them.
    rule
        Chooses the size of the neighbour groups.
    """

    def __init__(
        self,
        grid: ProcessGrid,
        matrix: DistCSR,
        exchange: DeviceExchange,
        trace: TraceRecorder,
        rule: GroupRule = PAPER_RULE,
    ) -> None:
        self.trace = trace
        self._exchange, self._shape = exchange, matrix.shape
        self._diagonal = DeviceCSR.upload(matrix.diagonal, rule)
        self._remote = DeviceCSR.upload(matrix.remote, rule)
        counts = np.array([*matrix.shape, matrix.nnz, exchange.volume().sent.sum()], np.int64)
        self.size = OperatorSize(*(int(count) for count in grid.layer.allreduce(counts)))

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._shape

    def volume(self) -> Volume:
        """Return the rows that one product moves.

        Not collective.
        """
        return self._exchange.volume()

    def apply(self, x: DeviceArray) -> DeviceArray:
        """Return ``A x``.

        Collective.

        Parameters
        ----------
        x
            (columns, width) float32 or float64, a C-contiguous CuPy array.

        Returns
        -------
        array
            (rows, width) of the same dtype.
        """
        out = load_cupy().empty((self._shape[0], x.shape[1]), x.dtype)
        arriving = self._exchange.start_fetch(x)
        # Issued before anyone waits: the device multiplies while rows travel.
        with self.trace.span("interior.forward"):
            self._diagonal.matmul(x, out)
        ghosts = arriving.rows()
        with self.trace.span("boundary.forward"):
            self._remote.matmul(ghosts, out, accumulate=True, half=self._exchange.wire.half)
        return out

    def apply_transpose(self, gradient: DeviceArray) -> DeviceArray:
        """Return ``Aᵀ g``.

        Collective.

        Parameters
        ----------
        gradient
            (rows, width) float32 or float64, a C-contiguous CuPy array.

        Returns
        -------
        array
            (columns, width) of the same dtype.
        """
        out = load_cupy().empty((self._shape[1], gradient.shape[1]), gradient.dtype)
        sums = self._exchange.ghost_rows(gradient)
        with self.trace.span("boundary.reverse"):
            self._remote.transposed.matmul(gradient, sums, half=self._exchange.wire.half)
        arriving = self._exchange.start_push(sums)
        with self.trace.span("interior.reverse"):
            self._diagonal.transposed.matmul(gradient, out)
        self._exchange.add(arriving.rows(), out)
        return out
