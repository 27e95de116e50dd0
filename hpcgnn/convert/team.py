"""The ranks that read one input together, by MPI."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from hpcgnn import watchdog
from hpcgnn.by_ranks import store_by_ranks
from hpcgnn.comm import Communicator, agree, bcast, redistribute, redistribute_lists
from hpcgnn.console import Progress
from hpcgnn.convert.ranks import QUIET_BELOW_BYTES, Alone, Piece, dealt_pieces, divide
from hpcgnn.convert.read.tables import TableFile
from hpcgnn.spmd import collective
from hpcgnn.storage import ShareSizes, StoreHeader, StoreWriter
from hpcgnn.typing import Array

T = TypeVar("T")


class Team(Alone):
    """The ranks of a communicator, each of which reads its share."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self.rank, self.size = comm.rank, comm.size

    @collective
    def agree(self) -> AbstractContextManager[None]:
        """Leave the block on all ranks alike."""
        return agree(self._comm)

    @collective
    def from_first(self, make: Callable[[], T]) -> T:
        """Return on all ranks what `make` returns on the first."""
        made = None
        with agree(self._comm):
            if self.rank == 0:
                made = make()
        return bcast(self._comm, made)

    @collective
    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, which are small."""
        found: list[T] = self._comm.allgather(value)
        return found

    @collective
    def exchange(self, owners: Array, *arrays: Array) -> tuple[Array, ...]:
        """Send element i of each array to rank ``owners[i]``; return what arrived, by sender."""
        return redistribute(self._comm, owners, *arrays)

    @collective
    def exchange_lists(self, owners: Array, offsets: Array, data: Array) -> tuple[Array, Array]:
        """Send each list, ``data[offsets[i]:offsets[i + 1]]``, to rank ``owners[i]``."""
        return redistribute_lists(self._comm, owners, offsets, data)

    @contextmanager
    @collective
    def store(
        self,
        path: Path,
        header: StoreHeader,
        sizes: Callable[[], ShareSizes],
        declare: Callable[[StoreWriter], None],
    ) -> Iterator[StoreWriter]:
        """Give each rank a writer of its rows, see `store_by_ranks`."""
        with agree(self._comm):
            mine = sizes()
        with store_by_ranks(self._comm, path, header, mine, declare) as writer:
            yield writer

    @collective
    def rounds(self, items: Iterable[T], nothing: Callable[[], T]) -> Iterator[T]:
        """Yield items on all ranks equally often, `nothing()` where a rank has no more."""
        iterator = iter(items)
        while True:
            with agree(self._comm):
                item = next(iterator, None)
            if not self.any(item is not None):
                return
            watchdog.beat()
            yield nothing() if item is None else item

    @collective
    def pieces(self, files: Sequence[TableFile]) -> list[Piece]:
        """Divide files for all ranks, in their order; only the first looks at them."""
        return self.from_first(lambda: divide(files, self.size))

    def share(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return what this rank reads of pieces, in their order; the largest are dealt first."""
        sizes = [each.num_bytes for each in pieces]
        return [pieces[number] for number in dealt_pieces(sizes, self.size, self.rank)]

    def progress(self, text: str, pieces: Sequence[Piece]) -> Progress:
        """Return what shows how many KiB of its pieces the first rank has read."""
        total = sum(each.num_bytes for each in pieces)
        quiet = self.rank > 0 or total < QUIET_BELOW_BYTES
        return Progress(text, total >> 10, "KiB of the first rank's", quiet=quiet)
