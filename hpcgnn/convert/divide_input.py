"""Divide the files of an input into pieces, and the pieces among ranks."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hpcgnn.comm import RankGroup
from hpcgnn.console import Progress
from hpcgnn.errors import CollectiveInputError

if TYPE_CHECKING:
    from hpcgnn.convert.read.tables import Kind, Table, TableFile

LEAST_PIECE, MOST_PIECE = 1 << 18, 1 << 24
"""Least and most bytes of a piece of input, which a rank reads at a time."""

PLACE_BITS = 36
"""Low bits of an `order`, for a row's position in its piece; the piece's number is above them."""

_PIECES_PER_RANK = 4
_SAMPLED_PIECES = 8
_SAMPLED_BYTES = 1 << 16
QUIET_BELOW_BYTES = 8 << 20


class OneReaderError(CollectiveInputError):
    """Raised on all ranks for an input that only one process can read; the text is the reason."""


class Piece(NamedTuple):
    """Some rows of file `file_number`; `number` counts all pieces in the order of the input."""

    number: int
    file_number: int
    file: "TableFile"
    num_bytes: int


class Rows(NamedTuple):
    """Some rows of file `file_number`; `order` is the first row's position in the input."""

    table: "Table"
    file_number: int
    order: int


Kinds: TypeAlias = "Sequence[Mapping[int, Kind]]"
"""For each file, the kinds that its columns are read as."""


class SharedFiles:
    """Tables that all ranks read together, each rank its share of their pieces."""

    def __init__(self, files: "Sequence[TableFile]", ranks: RankGroup) -> None:
        """Divide the files into pieces, on the first rank; collective."""
        self.ranks, self._files = ranks, files
        self._pieces = ranks.from_first(lambda: _pieces_for(files, ranks))
        sizes = [piece.num_bytes for piece in self._pieces]
        self.share = [self._pieces[i] for i in dealt_pieces(sizes, ranks.size, ranks.rank)]
        self.num_pieces = len(self._pieces)

    def rows(self, kinds: Kinds, after: int = 0) -> Iterator[Rows]:
        """Yield the rows of this rank's share whose order is at least `after`."""
        pieces = [piece for piece in self.share if piece.number >= after >> PLACE_BITS]
        total = sum(piece.num_bytes for piece in pieces)
        quiet = self.ranks.rank > 0 or total < QUIET_BELOW_BYTES
        with Progress("reading", total >> 10, "KiB of the first rank's", quiet=quiet) as progress:
            for piece in pieces:
                row = 0
                for table in piece.file.blocks(kinds[piece.file_number]):
                    order = (piece.number << PLACE_BITS) + row
                    if order >= after:
                        yield Rows(table, piece.file_number, order)
                    row += table.num_rows
                progress.advance(piece.num_bytes >> 10)

    def sample(self, kinds: Kinds) -> Iterator[Rows]:
        """Yield a small first block from a few of this rank's pieces."""
        for piece in self.share[:: max(1, len(self.share) // _SAMPLED_PIECES)]:
            for table in piece.file.blocks(kinds[piece.file_number], _SAMPLED_BYTES):
                yield Rows(table, piece.file_number, piece.number << PLACE_BITS)
                break

    def rounds(
        self, rows: Iterator[Rows], kinds: Kinds, check: Callable[[Rows], object]
    ) -> Iterator[Rows]:
        """Yield equally often on all ranks, with empty rows once a rank has read its own.

        `check` raises errors in the rows before any collective uses them.
        """

        def checked() -> Iterator[Rows]:
            for block in rows:
                check(block)
                yield block

        return self.ranks.rounds(checked(), lambda: Rows(self._files[0].no_rows(kinds[0]), 0, 0))

    def locate(self, columns: Sequence[int], order: int) -> str:
        """Describe where the row with this `order` is; `columns` has any column of each file."""
        piece, row = self._pieces[order >> PLACE_BITS], order & ((1 << PLACE_BITS) - 1)
        for table in piece.file.blocks({columns[piece.file_number]: "text"}):
            if row < table.num_rows:
                return table.locate(row)
            row -= table.num_rows
        return str(piece.file.path)


def _pieces_for(files: "Sequence[TableFile]", ranks: RankGroup) -> list[Piece]:
    if not ranks.moves_rows:
        # Nothing to divide; and finding the size of a compressed file may take a while.
        return [Piece(number, number, file, 0) for number, file in enumerate(files)]
    total_bytes = sum(file.pieces(1 << 62)[0][1] for file in files)
    piece_bytes = min(MOST_PIECE, max(LEAST_PIECE, total_bytes // (ranks.size * _PIECES_PER_RANK)))
    pieces: list[Piece] = []
    for number, file in enumerate(files):
        for part, num_bytes in file.pieces(piece_bytes):
            pieces.append(Piece(len(pieces), number, part, num_bytes))
    return pieces


def dealt_pieces(sizes: Sequence[int], size: int, rank: int) -> list[int]:
    """Return the pieces that `rank` reads: pieces go, largest first, to the least loaded rank."""
    loads = [(0, number) for number in range(size)]
    numbers = []
    for number in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, owner = heapq.heappop(loads)
        heapq.heappush(loads, (load + sizes[number], owner))
        if owner == rank:
            numbers.append(number)
    return sorted(numbers)
