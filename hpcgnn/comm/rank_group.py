"""The ranks that do a piece of work together, or a single process without MPI.

Code for any number of ranks takes a `RankGroup` and does not distinguish the cases. In a single
process its communication costs nothing and does not start MPI.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np

from hpcgnn import watchdog
from hpcgnn.comm.collective import agree, bcast
from hpcgnn.comm.mpi import Communicator
from hpcgnn.comm.redistribute import redistribute, redistribute_lists, rows_of
from hpcgnn.comm.row_map import RowMap
from hpcgnn.comm.transfer import allreduce_max, allreduce_sum, exclusive_sum
from hpcgnn.spmd import collective
from hpcgnn.typing import Array, GlobalIndices, LocalIndices, Offsets

T = TypeVar("T")

_SAMPLED_KEYS = 1 << 18


class RankGroup:
    """A single process, which sends nothing; `MpiGroup` is the subclass for several ranks.

    `rank` is the number of this rank and `size` that of all ranks; `comm` is None without MPI.
    """

    rank = 0
    size = 1
    comm: "Communicator | None" = None
    moves_rows = False

    @staticmethod
    def of(comm: "Communicator | None") -> "RankGroup":
        """Return the group of a communicator's ranks, or of this process alone for None."""
        return RankGroup() if comm is None else MpiGroup(comm)

    def agree(self) -> AbstractContextManager[None]:
        """Leave the block on all ranks together; see `hpcgnn.comm.agree`."""
        return nullcontext()

    def from_first(self, make: Callable[[], T]) -> T:
        """Call `make` on the first rank and return its result on all ranks."""
        return make()

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks; only for small values."""
        return [value]

    def sum(self, values: Array) -> Array:
        """Return the sum of an array (any shape) over all ranks."""
        return values.copy()

    def max(self, values: Array) -> Array:
        """Return the maximum of an array (any shape) over all ranks."""
        return values.copy()

    def sum_before(self, values: Array) -> Array:
        """Return the sum of an array (any shape) over the ranks before this one."""
        return np.zeros_like(values)

    def exchange(self, owners: LocalIndices, *arrays: Array) -> tuple[Array, ...]:
        """Send element i of each array to rank ``owners[i]``; return what arrived, by sender."""
        del owners
        return arrays

    def exchange_lists(
        self, owners: LocalIndices, offsets: Offsets, data: Array
    ) -> tuple[Offsets, Array]:
        """Send each list, ``data[offsets[i]:offsets[i + 1]]``, to rank ``owners[i]``."""
        del owners
        return offsets, data

    def owners(self, row_map: RowMap, rows: GlobalIndices) -> LocalIndices:
        """Return (m,) int32 the ranks that own global rows; a single rank owns all."""
        return np.broadcast_to(np.int32(0), rows.shape)

    def rows_of(self, row_map: RowMap, rows: GlobalIndices, values: Array) -> Array:
        """Return the values of global rows; see `hpcgnn.comm.rows_of`."""
        del row_map
        selected: Array = values[rows]
        return selected

    def any(self, holds: bool) -> bool:
        """Tell whether `holds` is true on any rank."""
        return any(self.gather(holds))

    def rounds(self, items: Iterable[T], nothing: Callable[[], T]) -> Iterator[T]:
        """Yield items equally often on all ranks, and `nothing()` on ranks that have no more."""
        del nothing
        for item in items:
            watchdog.beat()
            yield item

    def starts(self, num_rows: int) -> Offsets:
        """Return (size + 1,) int64 the first rows of equal shares, and the number of rows."""
        return num_rows * np.arange(self.size + 1) // self.size

    def range_of(self, num_rows: int) -> range:
        """Return this rank's share if rows are divided into equal shares."""
        starts = self.starts(num_rows)
        return range(int(starts[self.rank]), int(starts[self.rank + 1]))

    def keepers(self, rows: GlobalIndices, num_rows: int) -> LocalIndices:
        """Return int32 the ranks of `rows` if `num_rows` are divided into equal shares."""
        return (np.searchsorted(self.starts(num_rows), rows, side="right") - 1).astype(np.int32)

    def borders(self, keys: Callable[[], Array]) -> Array:
        """Return (size - 1,) the smallest keys of the ranks after the first.

        They divide the keys that `keys` returns on all ranks about equally. A single rank does not
        call it.
        """
        del keys
        return np.zeros(0, np.int64)

    def ranks_of(self, keys: Array, borders: Array) -> LocalIndices:
        """Return (m,) int32 the ranks that `borders` assign to keys."""
        del borders
        return np.broadcast_to(np.int32(0), keys.shape)


ONE_PROCESS = RankGroup()


class MpiGroup(RankGroup):
    """The ranks of a communicator."""

    moves_rows = True

    def __init__(self, comm: Communicator) -> None:
        self.comm: Communicator = comm
        self.rank, self.size = comm.rank, comm.size

    @collective
    def agree(self) -> AbstractContextManager[None]:
        return agree(self.comm)

    @collective
    def from_first(self, make: Callable[[], T]) -> T:
        result = None
        with agree(self.comm):
            if self.rank == 0:
                result = make()
        return bcast(self.comm, result)

    @collective
    def gather(self, value: T) -> list[T]:
        gathered: list[T] = self.comm.allgather(value)
        return gathered

    @collective
    def sum(self, values: Array) -> Array:
        total = values.copy()
        allreduce_sum(self.comm, total)
        return total

    @collective
    def max(self, values: Array) -> Array:
        largest = values.copy()
        allreduce_max(self.comm, largest)
        return largest

    @collective
    def sum_before(self, values: Array) -> Array:
        return exclusive_sum(self.comm, values)

    @collective
    def exchange(self, owners: LocalIndices, *arrays: Array) -> tuple[Array, ...]:
        return redistribute(self.comm, owners, *arrays)

    @collective
    def exchange_lists(
        self, owners: LocalIndices, offsets: Offsets, data: Array
    ) -> tuple[Offsets, Array]:
        return redistribute_lists(self.comm, owners, offsets, data)

    def owners(self, row_map: RowMap, rows: GlobalIndices) -> LocalIndices:
        return row_map.owner(rows)

    @collective
    def rows_of(self, row_map: RowMap, rows: GlobalIndices, values: Array) -> Array:
        return rows_of(self.comm, row_map, rows, values)

    @collective
    def borders(self, keys: Callable[[], Array]) -> Array:
        own = np.sort(keys())
        own = own[:: max(1, len(own) * self.size // _SAMPLED_KEYS)]
        sample = np.sort(np.concatenate(self.gather(own)))
        if not len(sample):
            return np.zeros(self.size - 1, sample.dtype)
        return sample[len(sample) * np.arange(1, self.size) // self.size]

    def ranks_of(self, keys: Array, borders: Array) -> LocalIndices:
        return np.searchsorted(borders, keys, side="right").astype(np.int32)

    @collective
    def rounds(self, items: Iterable[T], nothing: Callable[[], T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            with agree(self.comm):
                item = next(iterator, None)
            if not self.any(item is not None):
                return
            watchdog.beat()
            yield nothing() if item is None else item
