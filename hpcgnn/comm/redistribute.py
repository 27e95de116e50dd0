"""One-time exchanges: send elements and lists to the ranks that own them, or request rows."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from hpcgnn.comm.collective import raise_on_all
from hpcgnn.comm.mpi import MPI, Communicator
from hpcgnn.comm.row_map import RowMap, distinct, numbered, spans
from hpcgnn.errors import InputError
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

_ENTRIES_PER_STEP = 1 << 17
_MOST_STEPS = 64


class LazyEntries(Protocol):
    """Numbers that are looked up a few at a time and need not be stored in an array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the numbers."""

    def __getitem__(self, positions: GlobalIndices) -> Array:
        """Return the numbers at the positions."""


_MOST = 2**31 - 1
"""Most elements a rank can send or receive in one Alltoallv: MPI uses 32-bit counts and offsets."""


@collective
def narrow_counts(comm: Communicator, sent: Array, received: Array) -> tuple[Array, Array]:
    """Return the counts of an Alltoallv as int32.

    `sent` and `received` (ranks,) are the numbers of elements to and from each rank. Raises
    `CollectiveInputError` on all ranks of `comm` if any rank sends or receives 2**31 or more.
    """
    largest = max(int(counts.sum(dtype=np.int64)) for counts in (sent, received))
    fault = None
    if largest > _MOST:
        fault = InputError(
            f"rank {comm.rank} would send or receive {largest} elements in one exchange, and "
            f"{_MOST} is the most: start more ranks"
        )
    raise_on_all(comm, fault)
    return sent.astype(np.int32), received.astype(np.int32)


@collective
def redistribute(comm: Communicator, owners: LocalIndices, *arrays: Array) -> tuple[Array, ...]:
    """Send ``array[i]`` to rank ``owners[i]`` for every array; return what arrived.

    `owners` (m,) are int32; arrays (m, ...) have the same dtypes and trailing shapes on all ranks.
    What arrives is ordered by sending rank, and keeps the sender's order within a rank. Raises the
    errors of `narrow_counts`.
    """
    if comm.size == 1:
        return tuple(array.copy() for array in arrays)
    # NumPy uses radix sort for 16-bit integers, which takes a sixth of the time.
    narrow = owners.astype(np.int16) if comm.size <= np.iinfo(np.int16).max else owners
    order = np.argsort(narrow, kind="stable")
    sent = np.bincount(owners, minlength=comm.size).astype(np.int64, copy=False)
    expected = np.empty(comm.size, np.int64)
    comm.Alltoall(sent, expected)
    send_counts, recv_counts = narrow_counts(comm, sent, expected)
    received = []
    for array in arrays:
        outgoing = np.ascontiguousarray(array[order])
        incoming = np.empty((int(expected.sum()), *array.shape[1:]), array.dtype)
        # A datatype for a whole element keeps counts below 2^31 for elements of any width.
        width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        element = MPI.BYTE.Create_contiguous(width).Commit()
        comm.Alltoallv((outgoing, send_counts, element), (incoming, recv_counts, element))
        element.Free()
        received.append(incoming)
    return tuple(received)


@collective
def redistribute_lists(
    comm: Communicator,
    owners: LocalIndices,
    indptr: Offsets,
    entries: "Array | LazyEntries",
    lengths: Offsets | None = None,
) -> tuple[Offsets, Array]:
    """Send list i, ``entries[indptr[i]:indptr[i + 1]]``, to rank ``owners[i]``.

    `owners` (m,) are int32; a list whose owner is -1 is not sent. If `lengths` (m,) int64 is given,
    lists begin at `indptr` (m,), in any order. Returns the `indptr`, int64, and the entries of the
    lists that arrived, ordered by sending rank and by its lists. Lists are sent a few at a time, so
    memory is that of the received lists. Raises the errors of `narrow_counts`.
    """
    sent = np.flatnonzero(owners >= 0)
    sent = sent[np.argsort(owners[sent], kind="stable")]
    lengths = (np.diff(indptr) if lengths is None else lengths)[sent]
    (received,) = redistribute(comm, owners[sent], lengths)
    sums = np.zeros(comm.size, np.int64)
    np.add.at(sums, owners[sent], lengths)
    expected = np.empty(comm.size, np.int64)
    comm.Alltoall(sums, expected)
    narrow_counts(comm, sums, expected)
    incoming = np.empty(int(expected.sum()), entries.dtype)
    entry = MPI.BYTE.Create_contiguous(entries.dtype.itemsize).Commit()
    # The positions of the next entries from each rank.
    begins = np.cumsum(expected) - expected
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    steps = comm.allreduce(min(total // _ENTRIES_PER_STEP + 1, _MOST_STEPS), op=MPI.MAX)
    inner = np.searchsorted(ends, total * np.arange(1, steps) // steps).tolist()
    for first, stop in pairwise([0, *inner, len(sent)]):
        counts = np.zeros((2, comm.size), np.int64)
        np.add.at(counts[0], owners[sent[first:stop]], lengths[first:stop])
        comm.Alltoall(counts[0], counts[1])
        outgoing = entries[spans(indptr[sent[first:stop]], lengths[first:stop])]
        arriving = counts[1].astype(np.int32), begins.astype(np.int32)
        comm.Alltoallv((outgoing, counts[0].astype(np.int32), entry), (incoming, arriving, entry))
        begins += counts[1]
    entry.Free()
    return np.concatenate([[0], np.cumsum(received)]).astype(np.int64), incoming


@collective
def rows_of(comm: Communicator, row_map: RowMap, rows: GlobalIndices, values: Array) -> Array:
    """Return (m, ...) the values of global rows (m,), which may be in any order and repeat.

    `values` (num_local, ...) are the values of this rank's rows.
    """
    requested = distinct(rows, row_map.num_rows)
    received: Array = RowRequest.make(comm, row_map, requested).rows(values)
    return received[numbered(requested, np.arange(len(requested), dtype=np.int32), rows)]


@dataclass(frozen=True, eq=False)
class RowRequest:
    """A request for rows of other ranks, for a few arrays; `CommPlan` is for repeated exchanges.

    `askers` (m,) int32 are the ranks that request the rows `requested` (m,) int32 of this rank.
    `owners` (n,) int32 own the rows that this rank requests; it owns `num_rows` itself.
    """

    comm: Communicator
    askers: LocalIndices
    requested: LocalIndices
    owners: LocalIndices
    num_rows: int

    @classmethod
    @collective
    def make(cls, comm: Communicator, row_map: RowMap, requested: GlobalIndices) -> "RowRequest":
        """Tell the owners which rows this rank needs.

        `row_map` has a block for each rank of `comm`; `requested` (n,) are ascending global rows,
        int64 or int32, which may include own rows.
        """
        assert np.all(np.diff(requested) > 0), "requested rows must ascend"
        requested = requested.astype(np.int64, copy=False)
        asker = np.full(len(requested), comm.rank, np.int32)
        owners = row_map.owner(requested)
        rows, askers = redistribute(comm, owners, requested, asker)
        return cls(comm, askers, row_map.to_local(rows), owners, row_map.num_local)

    @property
    def num_from_others(self) -> int:
        """Number of rows that this rank requests from other ranks."""
        return int(np.count_nonzero(self.owners != self.comm.rank))

    @property
    def num_sent(self) -> int:
        """Number of rows that this rank sends to other ranks."""
        return int(np.count_nonzero(self.askers != self.comm.rank))

    @collective
    def rows(self, array: Array) -> Array:
        """Return (n, ...) the requested rows, in order, of the distributed `array`.

        `array` (num_local, ...) has equal dtype and trailing shape on all ranks.
        """
        (received,) = redistribute(self.comm, self.askers, array[self.requested])
        return received

    @collective
    def add_back(self, array: Array) -> Array:
        """Return (num_rows, ...) the sums of all ranks' contributions to this rank's rows.

        The transpose of `rows`: `array` (n, ...) has a row for each row that this rank requests.
        """
        (arrived,) = redistribute(self.comm, self.owners, array)
        total = np.zeros((self.num_rows, *array.shape[1:]), array.dtype)
        # Rows arrive in rank order, and a rank requests each row once, so += does not lose any.
        bounds = np.searchsorted(self.askers, np.arange(self.comm.size + 1))
        for start, stop in pairwise(bounds):
            total[self.requested[start:stop]] += arrived[start:stop]
        return total

    @collective
    def entries(self, indptr: Offsets, *arrays: Array) -> tuple[Offsets, tuple[Array, ...]]:
        """Return the entries of the requested rows, which have unequal lengths.

        `indptr` (num_local + 1,) int64 are the positions at which each row's entries begin; arrays
        (entries, ...) have equal dtypes and trailing shapes on all ranks. Returns the requested
        rows' `indptr` (n + 1,) int64 and their entries of each array, in row order.
        """
        lengths = np.diff(indptr)
        (received,) = redistribute(self.comm, self.askers, lengths[self.requested])
        counts = lengths[self.requested]
        positions = spans(indptr[:-1][self.requested], counts)
        owners = np.repeat(self.askers, counts)
        columns = redistribute(self.comm, owners, *(array[positions] for array in arrays))
        return np.concatenate([[0], np.cumsum(received)]).astype(np.int64), columns
