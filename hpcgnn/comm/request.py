"""Rows that ranks ask their owners for, once: what travels when nodes change places."""

from dataclasses import dataclass

from mpi4py import MPI

import numpy as np

from hpcgnn.comm.redistribute import redistribute
from hpcgnn.comm.row_map import RowMap
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

__all__ = ["RowRequest"]


@dataclass(frozen=True, eq=False)
class RowRequest:
    """Who asks for which rows. A plan repeats one exchange; a request answers for a few arrays.

    Parameters
    ----------
    comm
        The ranks that take part.
    askers, asked
        (m,) int32 ranks, and the rows of this rank that they ask for.
    num_received
        Rows that this rank asks for.
    """

    comm: MPI.Intracomm
    askers: LocalIndices
    asked: LocalIndices
    num_received: int

    @classmethod
    def make(cls, comm: MPI.Intracomm, row_map: RowMap, wanted: GlobalIndices) -> "RowRequest":
        """Tell the owners which rows this rank wants.

        Collective.

        Parameters
        ----------
        comm
            A rank for each block of `row_map`.
        row_map
            Owners of the rows.
        wanted
            (n,) int64 increasing global rows, own ones too.
        """
        assert np.all(np.diff(wanted) > 0), "rows are asked for in increasing order"
        mine = np.full(len(wanted), comm.rank, np.int32)
        rows, askers = redistribute(comm, row_map.owner(wanted), wanted, mine)
        return cls(comm, askers, row_map.to_local(rows), len(wanted))

    @property
    def num_sent(self) -> int:
        """Rows that this rank gives to others."""
        return int(np.count_nonzero(self.askers != self.comm.rank))

    def rows(self, array: Array) -> Array:
        """Return (n, ...) the wanted rows, in order, of what the owners hold as `array`.

        Collective.

        Parameters
        ----------
        array
            (num_local, ...) of equal dtype and trailing shape on all ranks.
        """
        (found,) = redistribute(self.comm, self.askers, array[self.asked])
        return found

    def entries(self, indptr: Offsets, *arrays: Array) -> tuple[Offsets, tuple[Array, ...]]:
        """Return the entries of the wanted rows, of rows of unequal lengths.

        Collective.

        Parameters
        ----------
        indptr
            (num_local + 1,) int64: where the entries of a row begin.
        arrays
            (entries, ...) of equal dtypes and trailing shapes on all ranks.

        Returns
        -------
        indptr, arrays
            (n + 1,) int64 and what arrived of each array, row after row.
        """
        lengths = np.diff(indptr)
        (received,) = redistribute(self.comm, self.askers, lengths[self.asked])
        counts = lengths[self.asked]
        before = np.cumsum(counts) - counts
        places = np.repeat(indptr[:-1][self.asked] - before, counts)
        places += np.arange(len(places), dtype=np.int64)
        owners = np.repeat(self.askers, counts)
        found = redistribute(self.comm, owners, *(each[places] for each in arrays))
        return np.concatenate([[0], np.cumsum(received)]).astype(np.int64), found
