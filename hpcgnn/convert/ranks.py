"""Who reads an input: one process alone, or many ranks that divide it.

The readers are written for ranks; `Alone` is the only one of its kind, and what `convert.team` does
by MPI costs it nothing.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from hpcgnn.console import Progress
from hpcgnn.storage import ShareSizes, StoreHeader, StoreWriter
from hpcgnn.typing import Array

if TYPE_CHECKING:
    from hpcgnn.convert.read.tables import Kind, Table, TableFile

T = TypeVar("T")

LEAST_PIECE, MOST_PIECE = 1 << 18, 1 << 24
"""Bytes of a piece of input at least and at most: what a rank reads at a time."""

PLACE_BITS = 36
"""Bits of a row's place in its piece, below the number of the piece: together, an order."""

_PIECES_PER_RANK = 4
_SAMPLED_PIECES = 8
_SAMPLED_BYTES = 1 << 16
QUIET_BELOW_BYTES = 8 << 20


class OneReaderError(Exception):
    """Raised on all ranks for an input that one process reads alone; the text is the reason."""


class Piece(NamedTuple):
    """Rows of the file at `place`, called `number` among all pieces in the order of the input."""

    number: int
    place: int
    file: "TableFile"
    num_bytes: int


class Rows(NamedTuple):
    """Some rows of the file at `place`; `order` is the first row's place in the input."""

    table: "Table"
    place: int
    order: int


class Alone:
    """The one process that reads; what many ranks do together, it does itself."""

    rank = 0
    size = 1

    def agree(self) -> AbstractContextManager[None]:
        """Leave the block on all ranks alike."""
        return nullcontext()

    def from_first(self, make: Callable[[], T]) -> T:
        """Return on all ranks what `make` returns on the first."""
        return make()

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks."""
        return [value]

    def exchange(self, owners: Array, *arrays: Array) -> tuple[Array, ...]:
        """Send element i of each array to rank ``owners[i]``; return what arrived, by sender."""
        del owners
        return arrays

    def exchange_lists(self, owners: Array, offsets: Array, data: Array) -> tuple[Array, Array]:
        """Send each list, ``data[offsets[i]:offsets[i + 1]]``, to rank ``owners[i]``."""
        del owners
        return offsets, data

    def store(
        self,
        path: Path,
        header: StoreHeader,
        sizes: Callable[[], ShareSizes],
        declare: Callable[[StoreWriter], None],
    ) -> AbstractContextManager[StoreWriter]:
        """Give each rank a writer of its rows; leaving the block completes the store.

        Where there are several, `sizes` tells what this rank will append, and `declare` appends a
        block without rows of all that any rank will append.
        """
        del sizes, declare
        return StoreWriter(path, header)

    def any(self, holds: bool) -> bool:
        """Tell whether `holds` is true on a rank."""
        return any(self.gather(holds))

    def rounds(self, items: Iterable[T], nothing: Callable[[], T]) -> Iterator[T]:
        """Yield items on all ranks equally often, `nothing()` where a rank has no more."""
        del nothing
        yield from items

    def pieces(self, files: "Sequence[TableFile]") -> list[Piece]:
        """Divide files for all ranks, in their order."""
        return [Piece(place, place, file, 0) for place, file in enumerate(files)]

    def share(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return what this rank reads of pieces, in their order."""
        return list(pieces)

    def range_of(self, num_nodes: int) -> range:
        """Return the nodes whose data this rank keeps."""
        starts = self.starts(num_nodes)
        return range(int(starts[self.rank]), int(starts[self.rank + 1]))

    def starts(self, num_nodes: int) -> Array:
        """Return the first of the nodes whose data each rank keeps, and their number."""
        return num_nodes * np.arange(self.size + 1) // self.size

    def keepers(self, places: Array, num_nodes: int) -> Array:
        """Return the ranks (int32) that keep the data of the nodes `places`."""
        return (np.searchsorted(self.starts(num_nodes), places, side="right") - 1).astype(np.int32)

    def progress(self, text: str, pieces: Sequence[Piece]) -> Progress:
        """Return what shows how much of its pieces the first rank has read; files show theirs."""
        return Progress(text, len(pieces), quiet=True)


ALONE = Alone()


def divide(files: "Sequence[TableFile]", size: int) -> list[Piece]:
    """Divide files into pieces for `size` ranks, in their order."""
    whole = sum(file.pieces(1 << 62)[0][1] for file in files)
    wanted = min(MOST_PIECE, max(LEAST_PIECE, whole // (size * _PIECES_PER_RANK)))
    found: list[Piece] = []
    for place, file in enumerate(files):
        for part, num_bytes in file.pieces(wanted):
            found.append(Piece(len(found), place, part, num_bytes))
    return found


def dealt_pieces(sizes: Sequence[int], size: int, rank: int) -> list[int]:
    """Return which pieces of some `sizes` a rank reads: the largest go first, to who has least."""
    loads = [(0, each) for each in range(size)]
    mine = []
    for number in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, owner = heapq.heappop(loads)
        heapq.heappush(loads, (load + sizes[number], owner))
        if owner == rank:
            mine.append(number)
    return sorted(mine)


def sampled(
    ranks: Alone, pieces: Sequence[Piece], kinds: "Callable[[int], Mapping[int, Kind]]"
) -> Iterator[Rows]:
    """Yield a small first block of some of this rank's share of pieces."""
    mine = ranks.share(pieces)
    for piece in mine[:: max(1, len(mine) // _SAMPLED_PIECES)]:
        for table in piece.file.blocks(kinds(piece.place), _SAMPLED_BYTES):
            yield Rows(table, piece.place, piece.number << PLACE_BITS)
            break


def own_rows(
    ranks: Alone,
    pieces: Sequence[Piece],
    kinds: "Callable[[int], Mapping[int, Kind]]",
    after: int = 0,
) -> Iterator[Rows]:
    """Yield the rows of this rank's share of pieces, from the order `after` on.

    `kinds` are those of the columns of a file.
    """
    mine = [piece for piece in ranks.share(pieces) if piece.number >= after >> PLACE_BITS]
    with ranks.progress("reading", mine) as progress:
        for piece in mine:
            done = 0
            for table in piece.file.blocks(kinds(piece.place)):
                order = (piece.number << PLACE_BITS) + done
                if order >= after:
                    yield Rows(table, piece.place, order)
                done += table.num_rows
            progress.advance(piece.num_bytes >> 10)


def locate(pieces: Sequence[Piece], column: Callable[[int], int], order: int) -> str:
    """Return the place of the row with an order; `column` is one of a file's columns."""
    number, row = order >> PLACE_BITS, order & ((1 << PLACE_BITS) - 1)
    piece = pieces[number]
    for table in piece.file.blocks({column(piece.place): "text"}):
        if row < table.num_rows:
            return table.locate(row)
        row -= table.num_rows
    return str(piece.file.path)
