"""Rows that an exchange moves, as every part of the project counts them."""

from dataclasses import dataclass

import numpy as np

from hpcgnn.comm.mpi import MPI
from hpcgnn.spmd import collective
from hpcgnn.typing import Array


@dataclass(frozen=True, eq=False)
class Volume:
    """Rows of one exchange, seen from one rank.

    Parameters
    ----------
    sent, received
        (ranks of the layer,) int64 rows to and from each rank; the own entry is 0.
    """

    sent: Array
    received: Array

    @classmethod
    def none(cls, num_ranks: int) -> "Volume":
        """Return the volume of an exchange that moves nothing."""
        return cls(np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64))

    def __add__(self, other: "Volume") -> "Volume":
        return Volume(self.sent + other.sent, self.received + other.received)

    def reversed(self) -> "Volume":
        """Return the volume of the adjoint exchange."""
        return Volume(self.received, self.sent)

    @collective
    def summary(self, comm: "MPI.Comm") -> dict[str, int]:
        """Return `total_rows`, `max_send_rows`, `max_recv_rows`, `max_pair_rows` over all ranks."""
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
