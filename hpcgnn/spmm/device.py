"""The product loop with everything but the messages in the memory of a GPU.

Rows are packed on the device, pass through page-locked host memory to MPI and back, and own columns
are multiplied meanwhile: the loop of `hpcgnn.spmm.operator` with every remote entry fetched.
"""

from collections.abc import Callable

import numpy as np

from hpcgnn.comm import CommPlan, ProcessGrid, Volume
from hpcgnn.kernels import cuda
from hpcgnn.kernels.cuda.device import DeviceArray, load_cupy
from hpcgnn.kernels.cuda.staging import Download, Upload, empty_pinned
from hpcgnn.sparse import DistCSR, LocalCSR, OperatorSize
from hpcgnn.sparse.device import DeviceCSR
from hpcgnn.spmm.ghosts import Wire
from hpcgnn.spmm.spans import Moved, exchange_span, world_ranks
from hpcgnn.trace import TraceRecorder

__all__ = ["DeviceSpMM"]


class DeviceSpMM:
    """A distributed matrix that multiplies dense rows in device memory, one rank a GPU.

    Collective.

    Parameters
    ----------
    grid
        The ranks, without replication.
    matrix
        This rank's block row, in host memory; copied to the current device with its transpose.
    wire
        How numbers travel: native or bfloat16.
    trace
        Where times are recorded; those of products are of issuing them.

    Raises
    ------
    ValueError
        A grid with replication, or a wire format that no product on the device reads.
    """

    def __init__(
        self, grid: ProcessGrid, matrix: DistCSR, wire: Wire, trace: TraceRecorder
    ) -> None:
        if grid.replication != 1 or wire.half == "float16":
            raise ValueError("products on GPUs take no replication and no float16 on the wire")
        self.trace = trace
        self._wire, self._shape, self._pool = wire, matrix.shape, grid.buffers
        positions = matrix.column_positions()
        self._plan = CommPlan.from_ghosts(grid, matrix.row_map, matrix.ghosts, positions)
        self._send_rows = load_cupy().asarray(self._plan.send_rows)
        self._diagonal, self._remote = _both_ways(matrix.diagonal), _both_ways(matrix.remote)
        self._upload: Upload | None = None
        volume, ranks = self._plan.volume(), world_ranks(grid)
        self._sent = Moved.of_counts(volume.sent, ranks)
        self._received = Moved.of_counts(volume.received, ranks)
        counts = np.array([*matrix.shape, matrix.nnz, volume.sent.sum()], np.int64)
        self.size = OperatorSize(*(int(count) for count in grid.layer.allreduce(counts)))

    @property
    def shape(self) -> tuple[int, int]:
        """Local rows of the result and of the input."""
        return self._shape

    def volume(self) -> Volume:
        """Return the rows that one product moves.

        Not collective.
        """
        return self._plan.volume()

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
        out, packed, ghosts = self._arrays(x, self._shape[0])
        half = self._wire.half
        cuda.gather_rows(x, self._send_rows, packed, half=half)
        self._swap(packed, ghosts, "forward", lambda: self._diagonal[0].matmul(x, out))
        with self.trace.span("boundary.forward"):
            self._remote[0].matmul(ghosts, out, accumulate=True, half=half)
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
        out, arrived, partial = self._arrays(gradient, self._shape[1])
        half = self._wire.half
        with self.trace.span("boundary.reverse"):
            self._remote[1].matmul(gradient, partial, half=half)
        self._swap(partial, arrived, "reverse", lambda: self._diagonal[1].matmul(gradient, out))
        with self.trace.span("boundary.add"):
            cuda.scatter_add_rows(arrived, self._send_rows, out, half=half)
        return out

    def _arrays(
        self, like: DeviceArray, num_rows: int
    ) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
        """Return the result, and what travels on the owner's and on the reader's side."""
        empty, width, kind = load_cupy().empty, like.shape[1], self._wire.dtype(like)
        sides = [
            empty((rows, width), kind) for rows in (self._plan.num_sent, self._plan.num_ghosts)
        ]
        return empty((num_rows, width), like.dtype), sides[0], sides[1]

    def _swap(
        self,
        sent: DeviceArray,
        received: DeviceArray,
        direction: str,
        meanwhile: Callable[[], None],
    ) -> None:
        """Bring `sent` to other ranks and `received` from them, and issue other work before."""
        host_sent, host_received = (empty_pinned(a.shape, a.dtype) for a in (sent, received))
        download = Download(sent, host_sent)
        # Issued before anyone waits: the device multiplies while rows travel.
        with self.trace.span(f"interior.{direction}"):
            meanwhile()
        forward = direction == "forward"
        moved = self._sent if forward else self._received
        with exchange_span(self.trace, f"exchange.{direction}", moved, host_sent, self._pool):
            download.wait()
            start = self._plan.start_forward if forward else self._plan.start_reverse
            transfer = start(host_sent, host_received)
        with self.trace.span(f"wait.{direction}"):
            transfer.wait()
        # Replaced when the next exchange has waited for the stream: this copy is done by then.
        self._upload = Upload(host_received, received)


def _both_ways(matrix: LocalCSR) -> tuple[DeviceCSR, DeviceCSR]:
    """Return a matrix and its transpose on the device."""
    return DeviceCSR.upload(matrix), DeviceCSR.upload(matrix.transposed)
