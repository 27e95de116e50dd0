"""The exchange plan: who sends which rows to whom, computed once and executed many times.

A plan is stateless: it owns no buffers, so one plan serves any width, dtype and number of
exchanges. `start_forward` moves owner -> ghost, `start_reverse` is its adjoint: ghost -> owner with
add. Counts are rows, each one contiguous MPI datatype, so that no count passes 2^31 however wide
the rows are.
"""

from dataclasses import dataclass

from mpi4py import MPI

import numpy as np

from hpcgnn import kernels
from hpcgnn.comm.buffers import BufferPool
from hpcgnn.comm.row_map import RowMap
from hpcgnn.typing import Array, GlobalIndices, LocalIndices

__all__ = ["CommPlan", "Exchange", "Volume"]


@dataclass(frozen=True, eq=False)
class Volume:
    """Rows that one exchange moves, seen from this rank.

    Parameters
    ----------
    sent, received
        (ranks,) int64 rows to and from each rank; the own entry is 0.
    """

    sent: Array
    received: Array

    def summary(self, comm: MPI.Comm) -> dict[str, int]:
        """Return `total_rows`, `max_send_rows`, `max_recv_rows` and `max_pair_rows` over all ranks.

        Collective.
        """
        maxima = np.array(
            [self.sent.sum(), self.received.sum(), self.sent.max(initial=0)], np.int64
        )
        total = comm.allreduce(int(self.sent.sum()), op=MPI.SUM)
        comm.Allreduce(MPI.IN_PLACE, maxima, op=MPI.MAX)
        return {
            "total_rows": total,
            "max_send_rows": int(maxima[0]),
            "max_recv_rows": int(maxima[1]),
            "max_pair_rows": int(maxima[2]),
        }


class Exchange:
    """An exchange under way; `wait` ends it. Its buffers must not be touched before that."""

    def __init__(self, request: MPI.Request, row: MPI.Datatype | None) -> None:
        self._request, self._row = request, row

    def wait(self) -> None:
        """Return when this rank has all its rows.

        Neighborwise collective.
        """
        self._request.Wait()
        if self._row is not None:
            self._row.Free()
            self._row = None


@dataclass(frozen=True, eq=False)
class CommPlan:
    """Rows to send to every rank and the number to receive from it.

    Parameters
    ----------
    comm
        Ranks of one layer of the grid, one a block row.
    num_local
        Rows that this rank owns.
    send_rows
        (rows sent,) int32 local rows, grouped by destination in rank order.
    send_counts, recv_counts
        (ranks,) int32 rows to and from each rank.
    """

    comm: MPI.Intracomm
    num_local: int
    send_rows: LocalIndices
    send_counts: LocalIndices
    recv_counts: LocalIndices

    @classmethod
    def from_ghosts(cls, comm: MPI.Intracomm, row_map: RowMap, ghosts: GlobalIndices) -> "CommPlan":
        """Make the plan that delivers the rows `ghosts`, in that order.

        Collective.

        Parameters
        ----------
        comm
            Ranks of one layer; rank b owns block row b of `row_map`.
        row_map
            Owners of the rows.
        ghosts
            (num_ghosts,) int64 global rows, increasing, none owned by this rank.

        Raises
        ------
        ValueError
            When `ghosts` are not increasing, or contain own rows.
        """
        if np.any(np.diff(ghosts) <= 0) or np.any(row_map.is_local(ghosts)):
            raise ValueError("ghosts must be increasing global rows of other ranks")
        recv_counts = np.bincount(row_map.owner(ghosts), minlength=comm.size).astype(np.int32)
        send_counts = np.empty_like(recv_counts)
        comm.Alltoall(recv_counts, send_counts)
        wanted = np.empty(int(send_counts.sum(dtype=np.int64)), np.int64)
        comm.Alltoallv((ghosts, recv_counts, MPI.INT64_T), (wanted, send_counts, MPI.INT64_T))
        return cls(comm, row_map.num_local, row_map.to_local(wanted), send_counts, recv_counts)

    @property
    def num_ghosts(self) -> int:
        """Rows that this rank receives in a forward exchange."""
        return int(self.recv_counts.sum(dtype=np.int64))

    @property
    def num_sent(self) -> int:
        """Rows that this rank sends in a forward exchange."""
        return len(self.send_rows)

    def volume(self) -> Volume:
        """Return the rows of one forward exchange; a reverse exchange swaps the two sides.

        Not collective.
        """
        return Volume(self.send_counts.astype(np.int64), self.recv_counts.astype(np.int64))

    def start_forward(self, x: Array, ghosts: Array, pool: BufferPool) -> Exchange:
        """Start owner -> ghost.

        Neighborwise collective.

        Parameters
        ----------
        x
            (num_local, width) rows of this rank.
        ghosts
            (num_ghosts, width) of the same dtype; holds the ghost rows after `wait`.
        pool
            Lends the send buffer, which is busy until `wait`.
        """
        packed = pool.get("plan.packed", (self.num_sent, x.shape[1]), x.dtype)
        kernels.gather_rows(x, self.send_rows, packed)
        return self._start(packed, self.send_counts, ghosts, self.recv_counts)

    def start_reverse(self, ghosts: Array, arrived: Array) -> Exchange:
        """Start ghost -> owner; after `wait` call `add_arrived`.

        Neighborwise collective.

        Parameters
        ----------
        ghosts
            (num_ghosts, width) contributions to rows of other ranks.
        arrived
            (num_sent, width) of the same dtype; receives the contributions to own rows.
        """
        return self._start(ghosts, self.recv_counts, arrived, self.send_counts)

    def add_arrived(self, arrived: Array, out: Array) -> None:
        """Add the contributions of a reverse exchange to ``out`` (num_local, width), in rank order.

        Not collective.
        """
        kernels.scatter_add_rows(arrived, self.send_rows, out)

    def forward(self, x: Array) -> Array:
        """Return the ghost rows (num_ghosts, width) of `x` (num_local, width), at once.

        Neighborwise collective.
        """
        ghosts = np.empty((self.num_ghosts, x.shape[1]), x.dtype)
        self.start_forward(x, ghosts, BufferPool()).wait()
        return ghosts

    def reverse_add(self, ghosts: Array, out: Array) -> None:
        """Add `ghosts` (num_ghosts, width) to the owners' rows of ``out`` (num_local, width).

        Neighborwise collective.
        """
        arrived = np.empty((self.num_sent, ghosts.shape[1]), ghosts.dtype)
        self.start_reverse(ghosts, arrived).wait()
        self.add_arrived(arrived, out)

    def _start(
        self, send: Array, send_counts: LocalIndices, recv: Array, recv_counts: LocalIndices
    ) -> Exchange:
        if self.comm.size == 1 or send.shape[1] == 0:
            return Exchange(MPI.REQUEST_NULL, None)
        row = MPI.BYTE.Create_contiguous(send.shape[1] * send.itemsize).Commit()
        request = self.comm.Ialltoallv((send, send_counts, row), (recv, recv_counts, row))
        return Exchange(request, row)
